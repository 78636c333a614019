"""A detached queue goes on after its systemd has ended: the user's manager here, and so the machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.queues import wide_open
from tests.systemd.helpers.users import User, start_manager, stop_manager
from tests.systemd.test_queue_detach import Detached, of

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

_HOLD = "[vram=1G] echo up; : < {gate}; exit 3"


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    # A test with a broker has installed slicer for all users.
    systemctl.output("systemctl", "--global", "disable", "slicer-queues.service", check=False)
    return public_slicer


@pytest.fixture
def installed(slicer: Slicer, alice: User) -> Iterator[None]:
    """Alice has the units of `slicer install --user`."""
    slicer.command("install", "--user", via=alice.via)
    yield
    slicer.command("install", "--user", "--remove", via=alice.via)


@pytest.fixture
def queues(slicer: Slicer, alice: User) -> Iterator[Detached]:
    made = Detached(slicer, of(alice), "alices")
    yield made
    made.close()


def boot(alice: User) -> None:
    """Her manager ends as at a shutdown, and starts as at a boot, with the units that it starts then."""
    stop_manager(alice)
    start_manager(alice)
    settled = (*alice.systemctl, "is-system-running", "--wait")
    systemctl.output(*settled, check=False)


def marks(alice: User) -> list[Path]:
    return list((alice.home / ".local/state/slicer/queues").glob("*.detached"))


def test_it_goes_on_after_each_boot_until_it_is_done(
    slicer: Slicer, alice: User, queues: Detached, installed: None
) -> None:  # U16
    gate = slicer.gate()
    queues.write(_HOLD.format(gate=gate), 'test "$KEY" = "a secret" && exit 4')  # alone on a GPU, so at last
    service = queues.detach("--jobs", "1", env={"KEY": "a secret"})
    service.has_told("started")
    (mark,) = marks(alice)
    assert (mark.stat().st_mode & 0o777, mark.stat().st_uid) == (0o600, alice.uid)
    for times in (2, 3):
        boot(alice)
        service.has_told("started", times=times)
        assert service.show("ActiveState")["ActiveState"] == "active"
    assert marks(alice) == [mark]
    with wide_open(gate):
        service.end()
    assert queues.exit_codes() == {1: 3, 2: 4}
    assert marks(alice) == []
    boot(alice)
    assert service.is_gone()
    assert len(service.events("opened")) == 3


@pytest.mark.parametrize("word", ["queue stop", "stop", "systemctl", "not running"])
def test_what_was_stopped_by_a_word_stays_stopped(
    slicer: Slicer, alice: User, queues: Detached, installed: None, word: str
) -> None:  # U16
    gate = slicer.gate()
    queues.write(_HOLD.format(gate=gate))
    service = queues.detach()
    service.has_told("started")
    if word == "systemctl":
        systemctl.output(*alice.systemctl, "stop", "--no-block", service.unit)
        service.has_told("stopping")
        with wide_open(gate):
            until(service.is_gone, "the queue has ended")
    elif word == "not running":
        stop_manager(alice)
        assert len(marks(alice)) == 1
        said = slicer.command("queue", "stop", str(queues.file), via=alice.via)
        assert "will not be resumed" in said.stdout, said
    else:
        slicer.command(*word.split(), str(queues.file), via=alice.via)
    assert marks(alice) == []
    boot(alice)
    assert service.is_gone()
    assert len(service.events("opened")) == 1


def test_a_paused_one_comes_back_paused(
    slicer: Slicer, alice: User, queues: Detached, installed: None
) -> None:  # U16
    gate = slicer.gate()
    queues.write(_HOLD.format(gate=gate))
    service = queues.detach()
    service.has_told("started")
    slicer.command("queue", "pause", str(queues.file), via=alice.via)
    boot(alice)
    service.has_told("opened", times=2)
    listed = json.loads(slicer.command("queue", "--json", via=alice.via).stdout)["queues"]
    assert [each["state"] for each in listed] == ["paused"]
    assert len(service.events("started")) == 1
    with wide_open(gate):
        slicer.command("queue", "resume", str(queues.file), via=alice.via)
        service.end()
    assert queues.exit_codes() == {1: 3}


def test_many_are_restored_at_once_and_one_that_cannot_be_costs_only_itself(
    slicer: Slicer, alice: User
) -> None:  # U16, U23
    gate = slicer.gate()
    all_queues = [Detached(slicer, of(alice), f"alices-{no}") for no in range(8)]
    try:
        for each in all_queues:
            each.write(_HOLD.format(gate=gate))
            each.detach("--jobs", "1").has_told("opened")
        stop_manager(alice)
        gone, foreign, *others = all_queues
        gone.file.unlink()  # as on a disk that is not mounted
        foreign.log_dir.chmod(0o777)  # others can write there by now
        start_manager(alice)
        done = slicer.command("queue", "restore", code=125, via=alice.via)
        assert str(gone.file) in done.stderr
        assert str(foreign.log_dir) in done.stderr
        assert done.stdout.count("goes on as slicer-queue-") == 6
        for each in others:
            each.services[0].has_told("opened", times=2)
        assert slicer.command("queue", "restore", code=125, via=alice.via).stdout == ""
        assert len(marks(alice)) == 8
        foreign.log_dir.chmod(0o755)
        for each in (gone, foreign):
            slicer.command("queue", "stop", str(each.file), via=alice.via)
        with wide_open(gate):
            for each in others:
                each.services[0].end()
        assert marks(alice) == []
    finally:
        for each in all_queues:
            each.close()


def test_doctor_says_what_is_missing_for_that(
    slicer: Slicer, alice: User, queues: Detached
) -> None:  # U16, X10
    gate = slicer.gate()
    queues.write(_HOLD.format(gate=gate))
    service = queues.detach()
    service.has_told("started")

    linger = Path(f"/var/lib/systemd/linger/{alice.name}")

    def found() -> list[str]:
        done = slicer.run("--json", via=alice.via, program="doctor")
        told = json.loads(done.stdout)
        return [each["what"] for each in told["findings"] if each["id"] == "queue-not-resumed"]

    assert "not enabled" in found()[0]
    slicer.command("install", "--user", via=alice.via)
    try:
        assert found() == []
        linger.unlink()  # logind is not told, as it would end her manager
        assert "does not linger" in found()[0]
    finally:
        linger.touch()
        slicer.command("install", "--user", "--remove", via=alice.via)
    with wide_open(gate):
        service.end()
    assert found() == []
