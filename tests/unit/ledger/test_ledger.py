"""Leases and tickets on disk: what counts, what is refused, and what is cleaned up."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

import pytest

from slicer.errors import BrokerError, BusyError, InfeasibleError, StateError
from slicer.kernel import proc
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Snapshot
from slicer.model import Busy
from slicer.record import replace
from tests.unit import made_up
from tests.unit.ledger.box import LedgerBox, leaving

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
TWO_GPUS = ("GPU-a", "GPU-b")
ANOTHER_BOOT = "00000000-0000-0000-0000-000000000000"
SCOPE = "slicer-0123456789ab.scope"
pytest_plugins = ["tests.unit.ledger.box"]


# A1
def test_a_lease_is_exclusive_and_ends_with_its_release(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    busy = box.ask("bbbbbbbbbbbb")
    assert isinstance(busy, Busy)
    assert busy.holders == (held.lease,)
    held.release()
    held.release()
    assert os.listdir(box.path / "leases") == []
    box.take("bbbbbbbbbbbb").release()


# A6
def test_slots_are_counted(box: LedgerBox) -> None:
    held = [box.take("aaaaaaaaaaaa", limit=2), box.take("bbbbbbbbbbbb", limit=2)]
    assert isinstance(box.ask("cccccccccccc", limit=2), Busy)
    held[0].release()
    held.append(box.take("cccccccccccc", limit=2))
    for each in held:
        each.release()


def test_gpus_are_named_in_the_lease(box: LedgerBox) -> None:
    first = box.take("aaaaaaaaaaaa", 1, 0, of=TWO_GPUS)
    second = box.take("bbbbbbbbbbbb", 1, 0, of=TWO_GPUS)
    assert (first.lease.gpus, second.lease.gpus) == (("GPU-a",), ("GPU-b",))
    assert isinstance(box.ask("cccccccccccc", 1, 0, of=TWO_GPUS), Busy)
    first.release()
    second.release()


# A2
def test_a_closed_descriptor_is_the_end_of_a_lease(box: LedgerBox) -> None:
    held = box.take()
    held.close()  # as the kernel does for a killed owner
    assert os.listdir(box.path / "leases") == [held.lease.job]
    assert box.ledger.snapshot() == Snapshot((), ())
    assert os.listdir(box.path / "leases") == []
    assert box.warnings == []


# K2
def test_a_descriptor_that_the_job_inherited_keeps_the_lease(box: LedgerBox) -> None:
    held = box.take()
    job = os.dup(held.fd)
    held.close()
    assert box.ledger.snapshot().leases == (held.lease,)
    os.close(job)
    assert box.ledger.snapshot().leases == ()


@pytest.mark.parametrize("number", [{"boot_id": ANOTHER_BOOT}, {"backend": "systemd"}, {}])
def test_stale_leases_are_removed(box: LedgerBox, number: dict[str, object]) -> None:
    path = box.put(box.lease(**number))
    assert box.ledger.snapshot().leases == ()
    assert not path.exists()
    assert box.warnings == []


# K2
def test_an_ownerless_lease_counts_while_its_scope_is_populated(
    box: LedgerBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slicer.kernel.cgroup._ROOTS", (str(tmp_path / "cgroup"),))
    scope = tmp_path / "cgroup" / SCOPE
    scope.mkdir(parents=True)
    events = scope / "cgroup.events"
    events.write_text("populated 1\nfrozen 0\n")
    lease = box.lease(backend="systemd", unit=SCOPE, cgroup=f"/{SCOPE}", cpu_slots=1)
    box.put(lease)
    assert box.ledger.snapshot().leases == (lease,)
    assert isinstance(box.ask("bbbbbbbbbbbb"), Busy)
    # another boot's scope of the same name is another scope
    box.put(replace(lease, boot_id=ANOTHER_BOOT))
    assert box.ledger.snapshot().leases == ()
    box.put(lease)
    events.write_text("populated 0\nfrozen 0\n")
    assert box.ledger.snapshot().leases == ()


def make_directory(path: Path) -> None:
    path.mkdir()


def make_symlink(path: Path) -> None:
    (path.parents[2] / "target").write_text("precious")
    path.symlink_to(path.parents[2] / "target")


def make_hard_link(path: Path) -> None:
    (path.parents[2] / "target").write_text("precious")
    os.link(path.parents[2] / "target", path)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_garbage(path: Path) -> None:
    path.write_bytes(b"garbage\xff\0")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"SLICER_LEASE=9\n")
        file.truncate(2**40)


def make_foreign_version(path: Path) -> None:
    path.write_bytes(b"SLICER_LEASE=99\nJOB=x\nEND=\n")


FOREIGN = [
    make_directory, make_symlink, make_hard_link, make_fifo, make_garbage, make_socket, make_huge,
    make_foreign_version,
]  # fmt: skip


@pytest.mark.parametrize("folder", ["leases", "tickets"])
@pytest.mark.parametrize("make", FOREIGN)
def test_what_is_no_file_of_ours_is_warned_of_and_touched_by_nobody(
    box: LedgerBox, make: object, folder: str
) -> None:
    path = box.path / folder / "0123456789ab"
    make(path)  # type: ignore[operator]
    before = os.lstat(path)
    held = box.take("aaaaaaaaaaaa")
    assert box.warnings
    assert all(str(path) in warning and "\n" not in warning for warning in box.warnings)
    held.release()
    assert os.lstat(path).st_ino == before.st_ino
    target = box.path.parent / "target"
    assert not target.exists() or target.read_text() == "precious"


# D18: a thousand at once would each read the leases of all others, under the lock
def test_who_needs_nothing_reads_few_leases_or_is_one_of_some(box: LedgerBox) -> None:
    for number in range(16):
        box.put(box.lease(f"{number:012x}"))
    box.take("ffffffffffff", slots=0).release()
    assert box.left() == []
    for number in range(17):
        box.put(box.lease(f"{number:012x}"))
    box.take("ffffffffffff", slots=0).release()
    assert len(box.left()) == 17
    box.take("0fffffffffff", slots=0).release()
    assert box.left() == []


def test_an_empty_unlocked_file_is_a_killed_owners_and_goes_quietly(box: LedgerBox) -> None:
    (box.path / "leases" / "0123456789ab").write_bytes(b"")
    assert box.ledger.snapshot() == Snapshot((), ())
    assert os.listdir(box.path / "leases") == []
    assert box.warnings == []


def test_a_file_under_another_jobs_name_is_ignored(box: LedgerBox) -> None:
    path = box.put(box.lease("aaaaaaaaaaaa", cpu_slots=1), name="bbbbbbbbbbbb")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert box.ledger.snapshot().leases == ()
    assert len(box.warnings) == 1


# S1, S7
@ROOT_ONLY
@pytest.mark.parametrize("uid", [os.geteuid(), 65534])
def test_a_lease_that_somebody_else_made_is_ignored(box: LedgerBox, uid: int) -> None:
    path = box.put(box.lease(cpu_slots=1, uid=uid))
    os.chown(path, 65534, -1)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert box.ledger.snapshot().leases == ()
    assert box.warnings == [f"{path}: ignored: belongs to uid 65534, not to you"]
    assert path.exists()


# S7
def test_a_lease_that_speaks_for_somebody_else_is_ignored(box: LedgerBox) -> None:
    path = box.put(box.lease(cpu_slots=1, uid=65534))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert box.ledger.snapshot().leases == ()
    (warning,) = box.warnings
    assert warning.startswith(f"{path}: it belongs to uid 65534; it may hold any GPU")


def test_creating_does_not_follow_or_overwrite(box: LedgerBox, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (box.path / "leases" / "0123456789ab").symlink_to(tmp_path / "target")
    with pytest.raises(StateError, match="cannot be created"):
        box.ask()
    assert (tmp_path / "target").read_text() == "precious"


@pytest.mark.parametrize("length", [100, 5000, 130_000])
def test_a_long_name_does_not_make_a_lease_invisible(box: LedgerBox, length: int) -> None:
    name = "x" * length
    request = made_up.request("aaaaaaaaaaaa", cpu_slots=1, cpu_limit=1)
    held = box.ledger.acquire(request, box.lease("aaaaaaaaaaaa", name=name), box.observer())
    assert isinstance(held, HeldLease)
    second = box.ask("bbbbbbbbbbbb")
    for each in (held, second):
        if isinstance(each, HeldLease):
            each.release()
    assert isinstance(second, Busy)


# S9: whoever can open a file can lock it
def test_nobody_else_can_open_what_is_in_a_ledger_whatever_the_umask(box: LedgerBox) -> None:
    before = os.umask(0)
    try:
        held, waiting = box.take("aaaaaaaaaaaa"), box.wait("bbbbbbbbbbbb")
    finally:
        os.umask(before)
    made = [*box.path.rglob("*")]
    assert {path.parent.name for path in made if not path.is_dir()} == {"leases", "tickets", "bells", "state"}
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in made)
    waiting.leave()
    held.release()


# K2
def test_no_descriptor_is_inherited_unless_it_is_handed_on(box: LedgerBox) -> None:
    held = box.take()
    waiting = box.wait("bbbbbbbbbbbb")
    assert not any(
        os.get_inheritable(fd)
        for each in (held.descriptors, held.private, waiting.descriptors, waiting.private)
        for fd in (*each, *box.ledger.descriptors())
    )
    waiting.leave()
    held.release()


def test_an_update_is_seen_by_others(box: LedgerBox) -> None:
    held = box.take()
    held.update(unit=SCOPE, cgroup=f"/cpu.slice/{SCOPE}", keeper=42)
    assert box.ledger.snapshot().leases == (held.lease,)
    held.update(cgroup="")  # shorter than before
    assert box.ledger.snapshot().leases == (held.lease,)
    assert held.lease.keeper == 42
    held.release()


# X4
def test_tickets_are_in_the_order_of_priority_then_arrival(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    waiting = [box.wait("dddddddddddd"), box.wait("bbbbbbbbbbbb"), box.wait("cccccccccccc", priority=1)]
    assert [ticket.job[0] for ticket in box.ledger.snapshot().tickets] == ["c", "d", "b"]
    held.release()
    assert box.try_again(waiting[0]) is None
    first = box.try_again(waiting[2])
    assert isinstance(first, HeldLease)
    first.release()
    second = box.try_again(waiting[0])
    assert isinstance(second, HeldLease)
    second.release()
    assert [ticket.job[0] for ticket in box.ledger.snapshot().tickets] == ["b"]
    waiting[1].leave()
    waiting[1].leave()
    assert box.left() == []


# X4
def test_nobody_overtakes_those_who_wait(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    with box.waits("bbbbbbbbbbbb"):
        held.release()
        busy = box.ask("cccccccccccc")
        assert isinstance(busy, Busy)
        assert (busy.holders, busy.ahead) == ((), 1)
    box.take("cccccccccccc").release()


# A2
def test_a_dead_waiters_ticket_holds_nobody_up(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    waiting = box.wait("bbbbbbbbbbbb")
    for fd in (*waiting.descriptors, *waiting.private):
        os.close(fd)
    waiting._fd = -1
    held.release()
    box.take("cccccccccccc").release()
    assert box.left() == []


# E4
def test_the_infeasible_is_refused_at_once_and_leaves_nothing(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    for slots in (2, 10**9):
        with pytest.raises(InfeasibleError) as caught:
            box.queue("bbbbbbbbbbbb", slots=slots)
        assert caught.value.exit_code == 2
        assert str(slots) in str(caught.value)
    held.release()
    assert box.left() == []


@pytest.mark.parametrize(
    ("gpus", "slots", "of", "message"),
    [
        (3, 0, TWO_GPUS, "3 GPUs were asked for, but this machine has 2 GPUs"),
        (2, 0, ("GPU-a",), "2 GPUs were asked for, but this machine has 1 GPU"),
        (0, 2, (), "2 CPU slots were asked for, but this machine has 1 CPU slot"),
    ],
)
def test_the_infeasible_is_told_in_good_english(
    box: LedgerBox, gpus: int, slots: int, of: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        box.ask("aaaaaaaaaaaa", gpus, slots, of=of)
    assert caught.value.message == message


# B1
def test_busy_as_an_error_carries_the_holders_and_exit_code_75(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    busy = box.ask("bbbbbbbbbbbb")
    assert isinstance(busy, Busy)
    error = BusyError(busy)
    assert error.exit_code == 75
    assert error.kind == "cpu-busy"
    assert error.busy.holders == (held.lease,)
    held.release()


def test_a_write_that_fails_is_said_and_leaves_nothing(
    box: LedgerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StateError, match="No space left"):
        box.ask()
    monkeypatch.undo()
    assert os.listdir(box.path / "leases") == []
    box.take().release()


def test_the_clock_of_the_ledger_counts_from_boot() -> None:
    assert proc.now_s() >= float(Path("/proc/uptime").read_text().split()[0]) - 1


def test_nothing_is_given_out_beside_a_broker_that_was_switched_on(box: LedgerBox) -> None:  # L1, W22
    held = box.take("aaaaaaaaaaaa")
    waiting = box.wait("bbbbbbbbbbbb")
    box.ledger.broker_now = lambda: "/run/slicer-broker/socket"
    held.release()
    with pytest.raises(BrokerError, match="a broker was switched on"), leaving(waiting):
        box.try_again(waiting)
    with pytest.raises(BrokerError):
        box.ask("cccccccccccc")
    assert box.left() == []
    box.take("dddddddddddd", 0, 0).release()  # it holds nothing that a broker could give to others
