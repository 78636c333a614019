"""A held lease: what its job inherits, who else holds it when its owner lets go, and who may have it next."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from types import SimpleNamespace

import pytest

from slicer.errors import StateError
from slicer.kernel import proc
from slicer.ledger import entries, files
from slicer.ledger.files import ANSWER_WITHIN_S
from slicer.ledger.held_lease import HeldLease
from slicer.model import LEASE_VARIABLE, Busy
from slicer.state.directory import Directory
from tests.patience import until
from tests.unit.ledger.box import LedgerBox

pytest_plugins = ["tests.unit.ledger.box"]
JOB = "aaaaaaaaaaaa"


def mode_of(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE


# -- what is inherited ------------------------------------------------------------------------------------


def holders(box: LedgerBox) -> list[HeldLease]:
    """A lease granted at once, and one that was a ticket before."""
    first = box.take(JOB, limit=2)
    second = box.take("cccccccccccc", limit=2)
    waiting = box.wait("bbbbbbbbbbbb")
    second.release()
    first.release()
    converted = box.try_again(waiting)
    assert converted is not None
    return [box.take(JOB, limit=2), converted]


# S3
def test_a_job_can_only_read_its_lease(box: LedgerBox) -> None:
    for held in holders(box):
        path = box.path / "leases" / held.lease.job
        assert held.descriptors == (held.fd,)
        assert mode_of(held.fd) == os.O_RDONLY
        before = path.read_bytes()
        for write in (lambda fd: os.write(fd, b"x"), lambda fd: os.ftruncate(fd, 0)):
            with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
                write(held.fd)
        assert path.read_bytes() == before
        held.release()


# S3
def test_what_can_write_a_lease_is_not_inherited(box: LedgerBox) -> None:
    for held in holders(box):
        (writer,) = held.private
        assert mode_of(writer) == os.O_WRONLY
        assert writer not in held.descriptors
        assert not os.get_inheritable(writer)
        assert os.path.sameopenfile(writer, held.fd)
        held.release()


# S3
def test_a_waiting_job_can_only_read_its_ticket(box: LedgerBox) -> None:
    held = box.take(JOB)
    with box.waits("bbbbbbbbbbbb") as waiting:
        (ticket,) = waiting.descriptors
        assert mode_of(ticket) == os.O_RDONLY
        assert not set(waiting.private) & {ticket}
        assert not any(map(os.get_inheritable, waiting.private))
    held.release()


# -- who else holds it ------------------------------------------------------------------------------------


# D1, D2
def test_a_lease_that_others_hold_too_outlives_its_owner(box: LedgerBox) -> None:
    held = box.take(JOB)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=held.descriptors) as job:
        held.is_handed_on = True
        held.release()
        assert held.is_outlived
        assert box.left() == [f"leases/{JOB}"]
        assert box.ledger.snapshot().leases == (held.lease,)
        assert isinstance(box.ask("bbbbbbbbbbbb"), Busy)
        held.release()  # safe to repeat
        job.communicate()
    assert box.ledger.snapshot().leases == ()
    assert box.left() == []


# D1, D2
def test_a_lease_that_nobody_else_holds_goes_with_its_owner(box: LedgerBox) -> None:
    held = box.take(JOB)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=held.descriptors) as job:
        job.communicate()
    held.is_handed_on = True
    held.release()
    assert not held.is_outlived
    assert box.left() == []


# D1, D2
def test_a_lease_of_a_job_that_closed_its_descriptors_outlives_its_owner(box: LedgerBox) -> None:
    held = box.take(JOB)
    environ = {**os.environ, LEASE_VARIABLE: JOB}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environ) as job:
        held.is_handed_on = True
        held.release()
        assert held.is_outlived
        assert box.ledger.snapshot().leases == (held.lease,)
        job.communicate()
    assert box.ledger.snapshot().leases == ()


# D1, D2: it was not handed on, so a descriptor elsewhere is one of ours (a child that is about to end)
def test_a_lease_that_was_not_handed_on_goes_with_its_owner(box: LedgerBox) -> None:
    held = box.take(JOB)
    other = os.dup(held.fd)
    held.release()
    assert not held.is_outlived
    assert box.left() == []
    os.close(other)


# D1, D2
def test_who_finds_nobody_else_still_holds_the_lease(box: LedgerBox) -> None:
    held = box.take(JOB)
    held.is_handed_on = True
    assert not held.is_shared()
    assert entries.is_held(box.ledger.directory.leases, JOB)
    held.update(keeper=42)
    other = os.dup(held.fd)
    assert held.is_shared()
    assert held.is_outlived
    os.close(other)
    held.release()  # it is known now that the job outlives us: it stays until somebody looks
    # A child that another thread forks at this moment has our descriptors for an instant, too.
    until(lambda: box.ledger.snapshot().leases == (), "nobody holds it")


# D2
def test_a_lease_that_was_removed_by_hand_is_no_obstacle(box: LedgerBox) -> None:
    held = box.take(JOB)
    held.is_handed_on = True
    (box.path / "leases" / JOB).unlink()
    assert not held.is_shared()
    held.release()
    assert box.left() == []


# D2, D14
def test_who_cannot_find_out_says_so_and_still_holds_the_lease(
    box: LedgerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_descriptors(*args: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    held = box.take(JOB)
    held.is_handed_on = True
    monkeypatch.setattr(Directory, "open", out_of_descriptors)
    for call in (held.is_shared, held.release):
        with pytest.raises(StateError, match="Too many open files"):
            call()
    monkeypatch.undo()
    assert entries.is_held(box.ledger.directory.leases, JOB)
    held.release()
    assert box.left() == []


# -- who goes ahead ---------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the ledger takes for the time: one number, to be changed."""
    now_s = [1000.0]
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return now_s


# D4
def test_who_was_rung_and_does_not_look_stands_in_nobodys_way(box: LedgerBox, clock: list[float]) -> None:
    held = box.take(JOB)
    hanging, next_one = box.wait("bbbbbbbbbbbb"), box.wait("cccccccccccc")
    held.release()
    assert proc.is_running(hanging.ticket.pid, hanging.ticket.pid_start)
    assert box.ledger.unanswered_s("bbbbbbbbbbbb") is not None
    assert box.try_again(next_one) is None  # it may still be on its way
    clock[0] += ANSWER_WITHIN_S
    taken = box.try_again(next_one)
    assert isinstance(taken, HeldLease)
    # It has kept its place, and is the next again as soon as it looks.
    assert [ticket.job for ticket in box.ledger.snapshot().tickets] == ["bbbbbbbbbbbb"]
    with box.waits("dddddddddddd") as last:
        assert box.try_again(hanging) is None
        taken.release()
        assert box.try_again(last) is None
        late = box.try_again(hanging)
        assert isinstance(late, HeldLease)
        late.release()
    assert box.left() == []


# D4
def test_nobody_is_idle_who_was_not_rung(box: LedgerBox, clock: list[float]) -> None:
    held = box.take(JOB)
    with box.waits("bbbbbbbbbbbb") as first, box.waits("cccccccccccc") as second:
        clock[0] += 3600
        assert box.ledger.unanswered_s("bbbbbbbbbbbb") is None
        held.release()
        assert box.try_again(second) is None
        clock[0] += 1
        box.ledger.ring("bbbbbbbbbbbb")  # once more: since when it has rung stays what it is
        assert box.ledger.unanswered_s("bbbbbbbbbbbb") == 1
        taken = box.try_again(first)
        assert isinstance(taken, HeldLease)
        taken.release()


def test_a_decision_that_cannot_be_written_was_not_made(
    box: LedgerBox, monkeypatch: pytest.MonkeyPatch
) -> None:  # U8, K2
    held = box.take(JOB, limit=1)

    def full(*_: object) -> None:
        raise StateError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.LedgerFiles, "write", full)
        with pytest.raises(StateError):
            held.update_by(lambda: {"gives_way_to": "eval"})
    held.update(cgroup="")
    assert held.lease.gives_way_to == ""
    held.update_by(lambda: {"gives_way_to": "eval"})
    assert held.lease.gives_way_to == "eval"
    held.release()
