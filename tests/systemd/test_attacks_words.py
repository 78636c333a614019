"""Forged files and hostile words, and what they are good for: the list in docs/dev/attacks.md."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.systemd.helpers import systemctl
from tests.systemd.helpers.attackers import BOB, HEAVY, command, everything, hold, ledger_of
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.queues import Queues
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.attackers"]
pytestmark = pytest.mark.systemd

ESCAPES = "\x1b]0;gone\x07\x1b[2J\x1b[31m\x9b2Jred"
CONTROL = "\x1b\x07\x9b"


@pytest.fixture
def slicer(public_slicer: Slicer, fresh_public_places: None) -> Slicer:
    return public_slicer


# -- forged files --------------------------------------------------------------------------------------------

BAD = {
    "nothing": b"",
    "noise": bytes(range(256)) * 16,
    "NUL": b"SLICER_LEASE=1\nJOB=0123456789ab\nCGROUP=/a\0b\nEND=\n",
    "a way out": b"SLICER_LEASE=1\nJOB=0123456789ab\nCGROUP=/../../../../../tmp\nEND=\n",
    "another's id": b"SLICER_LEASE=1\nJOB=../../../etc/shadow\nEND=\n",
    "endless digits": b"SLICER_LEASE=1\nJOB=0123456789ab\nPID=" + b"9" * 4200 + b"\nEND=\n",
    "not a number": b"SLICER_LEASE=1\nJOB=0123456789ab\nSINCE_S=nan\nEXPECT_S=inf\nSLOTS=cpu=-50\nEND=\n",
}


def forged(like: bytes, **fields: str) -> bytes:
    """A lease as slicer writes them, with other values."""
    lines = []
    for line in like.decode().splitlines():
        name, equals, value = line.partition("=")
        lines.append(f"{name}{equals}{fields.get(name, value)}")
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.mark.parametrize("folder", ["leases", "tickets"])
@pytest.mark.parametrize("what", list(BAD))
def test_a_bad_file_in_ones_own_ledger_costs_itself_alone(
    slicer: Slicer, alice: User, folder: str, what: str
) -> None:  # S7
    job, gate = hold(slicer, alice)
    path = ledger_of(alice.uid) / folder / "0123456789ab"
    path.write_bytes(BAD[what])
    os.chown(path, alice.uid, alice.uid)
    assert slicer.run("--no-wait", *HEAVY, "--", "true", via=alice.via).code == 75
    assert slicer.run("--", "sh", "-c", "exit 3", via=alice.via).code == 3
    assert command(alice, "status").returncode == 0
    assert slicer.run(*HEAVY, "--", "true").code == 0  # root has not even looked
    gate.open()
    assert job.end().code == 0
    assert slicer.run("--no-wait", *HEAVY, "--", "true", via=alice.via).code == 0


def test_stop_signals_nobody_whom_only_a_file_names(slicer: Slicer, alice: User) -> None:  # S8
    job, gate = hold(slicer, alice)
    leases = ledger_of(alice.uid) / "leases"
    (good,) = leases.iterdir()
    bystander = subprocess.Popen([*alice.identity, "sleep", "1000"])
    try:
        start = Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19]
        bad = leases / "ba9876543210"
        fields = {"PID": str(bystander.pid), "PID_START": start, "KEEPER": str(bystander.pid)}
        bad.write_bytes(forged(good.read_bytes(), JOB=bad.name, NAME="bait", BACKEND="plain", **fields))
        os.chown(bad, alice.uid, alice.uid)
        command(alice, "stop", "bait")
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()
    gate.open()
    assert job.end().code == 0


def test_nobody_reads_anothers_ledger(slicer: Slicer, alice: User, bob: User) -> None:  # S7, S8, S9
    """Bob's is full of traps: whoever opened a file of it would hang, and who read the lease would wait."""
    job, gate = hold(slicer, bob, "--name", "bobs")
    ledger = ledger_of(bob.uid)
    ledger.chmod(0o777)
    for folder in ("leases", "tickets", "bells"):
        (ledger / folder).chmod(0o777)
        os.mkfifo(ledger / folder / "fifo")
    for someone in (alice, None):
        via = someone.via if someone else ()
        assert slicer.run("--no-wait", *HEAVY, "--", "true", via=via).code == 0
    assert "bobs" not in command(alice, "status").stdout
    ledger.chmod(0o700)
    for folder in ("leases", "tickets", "bells"):
        (ledger / folder / "fifo").unlink()
        (ledger / folder).chmod(0o700)
    gate.open()
    assert job.end().code == 0


# -- words of others -----------------------------------------------------------------------------------------


def test_no_name_reaches_a_terminal_as_a_command(slicer: Slicer, alice: User) -> None:  # S11
    job, gate = hold(slicer, alice, "--name", ESCAPES)
    said = ""
    for words in (["status"], ["stop", f"{ESCAPES}x"], ["run", "--no-wait", *HEAVY, "--", "true"]):
        said += everything(command(alice, *words))
    gate.open()
    said += job.end().stderr + everything(command(alice, "history"))
    assert "red" in said
    assert not set(said) & set(CONTROL)


def test_a_queues_board_shows_no_escape_of_its_jobs(slicer: Slicer) -> None:  # S11
    queues = Queues(slicer)
    queues.write(f"[profile=light] echo {ESCAPES}; false")
    queue = queues.start()
    assert queue.end().code == 1
    shown = (queues.log_dir / "status.txt").read_text(errors="replace")
    assert "echo" in shown or "failed" in shown
    assert not set(shown) & set(CONTROL)


def test_completion_offers_no_word_that_a_shell_would_execute(slicer: Slicer) -> None:  # S5
    gate = slicer.gate()
    job = slicer.start(
        *HEAVY, "--name", "zz$(touch${IFS}x)", "--", "sh", "-c", f"echo up; : < {gate}"
    )  # fmt: skip
    job.said("up")
    for typed in ("", "z", "zz"):
        offered = slicer.offered("stop", typed)
        assert not [word for word in offered if set(word) & set("$(){};&|<>`'\" \\*?!#~")], offered
    assert not slicer.path("x").exists()
    gate.open()
    assert job.end().code == 0


def test_no_other_user_is_told_a_jobs_command_line_by_systemd(slicer: Slicer) -> None:  # S10
    gate = slicer.gate()
    job = slicer.start(*HEAVY, "--", "sh", "-c", f"echo up; : < {gate}; : open-sesame")
    job.said("up")
    unit = job.lease().unit
    seen = systemctl.output(*BOB, "systemctl", "list-units", "--all", "--full", "--plain", "--no-legend")
    seen += systemctl.output(*BOB, "systemctl", "show", unit)
    assert unit in seen
    assert "open-sesame" not in seen
    gate.open()
    assert job.end().code == 0
