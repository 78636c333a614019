"""Slicer's own commands, with a broker, against what other users write: the list C in docs/dev/attacks.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.broker.protocol import messages
from tests.patience import LONGEST_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.attackers import HEAVY, TRY, command, everything, hold, ledger_of
from tests.systemd.helpers.callers import Running, acquire, ask, by, main_pid
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User
from tests.systemd.test_attacks import INHERITED, has_tried
from tests.systemd.test_attacks_words import CONTROL, ESCAPES, forged

pytest_plugins = [
    "tests.systemd.helpers.fixtures", "tests.systemd.helpers.attackers", "tests.systemd.helpers.callers",
]  # fmt: skip
pytestmark = [pytest.mark.systemd, pytest.mark.usefixtures("one_broker")]


@pytest.fixture
def slicer(public_slicer: Slicer, fresh_public_places: None) -> Slicer:
    return public_slicer


@pytest.fixture
def victim(slicer: Slicer) -> Iterator[Path]:
    place = slicer.path("victim")
    place.mkdir(mode=0o700)
    (place / "precious").write_text("precious\n")
    yield place
    assert (place / "precious").read_text() == "precious\n"


# What alice may write of herself, and others read.
NAMES = {"escapes": ESCAPES, "a shell's words": "zz$(touch${IFS}x)", "lines": "a\nb\r\nslicer: exit 0"}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_no_name_of_anothers_reaches_a_terminal_as_a_command(
    slicer: Slicer, alice: User, bob: User, root: User, name: str
) -> None:  # S5, S11, L1
    job, gate = hold(slicer, alice, "--name", name)
    waits = slicer.start(*HEAVY, "--", "true", via=bob.via)
    until(lambda: "waiting" in waits.stderr, "it waits")
    said = ""
    for who in (bob, root):
        for words in (
            ["status"], ["status", "--json"], ["stop", f"{name}x"], ["pause", f"{name}x"],
            ["run", "--no-wait", *HEAVY, "--", "true"], ["run", "--dry-run", *HEAVY, "--", "true"],
        ):  # fmt: skip
            said += everything(command(who, *words))
    for typed in ("", "z", "a"):
        offered = slicer.offered("stop", typed)
        assert not [word for word in offered if set(word) & set("$(){};&|<>`'\" \\*?!#~\x1b")], offered
    gate.open()
    job.end()
    assert waits.end().code == 0
    said += waits.stderr + everything(command(root, "history", "--all-users"))
    said += everything(command(root, "usage"))
    assert not set(said) & set(CONTROL)
    assert "\nslicer: exit 0" not in said
    assert alice.name in said


@pytest.fixture
def root() -> User:
    return User("root", Path("/root"), 0)


@pytest.mark.parametrize("ending", ["as usual", "supervisor killed"])
def test_what_a_job_inherits_is_good_for_nothing(
    slicer: Slicer, victim: Path, bob: User, ending: str
) -> None:  # S3, K2
    """A job of root's becomes bob, and writes, truncates, opens anew and unlocks all that it inherited."""
    gate, there = slicer.gate(), slicer.path("there")
    arguments = ("/run/slicer", victim / "precious", there, gate)  # and so /run/slicer-broker
    drop = ("runuser", "-u", "bob", "--", sys.executable, "-I", "-S", "-c", TRY + INHERITED)
    job = slicer.start(*HEAVY, "--", *drop, *map(str, arguments))
    has_tried(there)
    assert job.stdout == ""
    if ending == "supervisor killed":
        slicer.dirty = True
        job.kill()
        job.popen.wait()
    assert by(bob.uid, lambda: ask(acquire())) == "Busy"
    gate.open()
    if ending == "as usual":
        assert job.end().code == 0
    until(lambda: by(bob.uid, lambda: type(ask(acquire())).__name__) == "Granted", "it is over")


def test_what_a_user_writes_into_its_own_books_reaches_nobody(
    slicer: Slicer, alice: User, bob: User
) -> None:  # S7, S8, L1
    """Alice's own ledger says that bob's job is hers, and holds nothing."""
    with Running(bob.uid, acquire(name="bobs", slots={"own": 1}, slot_limits={"own": 1})) as bobs:
        job, gate = hold(slicer, alice)
        (own,) = (ledger_of(alice.uid) / "leases").iterdir()
        fields = {
            "JOB": bobs.job, "NAME": "bobs", "UNIT": bobs.unit, "CGROUP": bobs.cgroup,
            "PID": str(bobs.keeper.pid), "KEEPER": str(bobs.keeper.pid),
        }  # fmt: skip
        forgery = own.parent / bobs.job
        forgery.write_bytes(forged(own.read_bytes(), **fields))
        os.chown(forgery, alice.uid, alice.uid)
        for words in (["pause"], ["set", "CPUWeight=1"], ["resume"], ["stop"]):
            for name in ("bobs", bobs.job):
                command(alice, words[0], name, *words[1:])
        assert bobs.is_well()
        assert systemctl.show(bobs.unit, "CPUWeight")["CPUWeight"] == "[not set]"
        for path in own.parent.iterdir():
            path.unlink()  # her own lease as well: the broker knows better
        assert by(bob.uid, lambda: ask(acquire())) == "Busy"
        gate.open()
        job.popen.wait(LONGEST_S)
    until(lambda: by(bob.uid, lambda: type(ask(acquire())).__name__) == "Granted", "it is over")


def test_bad_files_of_the_brokers_own_cost_themselves_alone(alice: User, bob: User) -> None:  # S7, L1
    """As a full disk or a crash might leave them."""
    with Running(alice.uid) as job:
        for folder in ("leases", "tickets", "commands"):
            for number, data in enumerate((b"", bytes(range(256)) * 16, b"SLICER_LEASE=1\nJOB=x\nEND=\n")):
                Path(f"/run/slicer-broker/{folder}/{number:012x}").write_bytes(data)
        os.mkfifo("/run/slicer-broker/leases/00000000000a")
        os.symlink("/etc/shadow", "/run/slicer-broker/leases/00000000000b")
        before = main_pid()
        systemctl.output("systemctl", "kill", "--signal=SIGKILL", "slicer-broker.service")
        assert by(bob.uid, lambda: ask(acquire())) == "Busy"
        assert main_pid() != before
        found = by(bob.uid, lambda: [lease.job for lease in ask(messages.Status()).leases])
        assert found == [job.job]
        for path in Path("/run/slicer-broker").glob("*/0000000000*"):
            path.unlink()
