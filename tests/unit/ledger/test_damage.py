"""What is broken in a ledger costs itself only, and what cannot be read is not taken for gone."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.errors import StateError, UsageError
from slicer.kernel import cgroup, proc
from slicer.ledger import entries, tickets
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Snapshot
from slicer.model import Busy, Lease
from slicer.record import replace
from slicer.state import statefile
from slicer.state.directory import Directory
from tests.patience import LONGEST_S, until
from tests.process.harness import SRC
from tests.unit import made_up
from tests.unit.ledger.box import LedgerBox
from tests.unit.state.test_hostile_files import changed

pytest_plugins = ["tests.unit.ledger.box"]
BAD = "0123456789ab"
SCOPE = f"slicer-{BAD}.scope"


def told(field: str, said: str) -> Callable[[Path, Lease], None]:
    """Makes a lease that would count, but for one field."""

    def make(path: Path, lease: Lease) -> None:
        path.write_bytes(changed(statefile.encode(lease), field, said))

    return make


def a_fifo(path: Path, lease: Lease) -> None:
    os.mkfifo(path)


def a_directory(path: Path, lease: Lease) -> None:
    path.mkdir()


def a_link(path: Path, lease: Lease) -> None:
    (path.parents[2] / "elsewhere").write_bytes(statefile.encode(lease))
    path.symlink_to(path.parents[2] / "elsewhere")


def a_hard_link(path: Path, lease: Lease) -> None:
    (path.parents[2] / "elsewhere").write_bytes(statefile.encode(lease))
    os.link(path.parents[2] / "elsewhere", path)


def zeros(path: Path, lease: Lease) -> None:
    path.write_bytes(bytes(2 << 20))


def nothing_yet(path: Path, lease: Lease) -> None:
    path.touch()


@pytest.fixture
def locked() -> Iterator[Callable[[Path], None]]:
    """Flocks a file, so that it counts as soon as it is one that can."""
    held: list[int] = []

    def lock(path: Path) -> None:
        held.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        fcntl.flock(held[-1], fcntl.LOCK_EX)

    yield lock
    for fd in held:
        os.close(fd)


# S7
@pytest.mark.parametrize(
    "make",
    [
        told("CGROUP", f"/a\0b/{SCOPE}"), told("CGROUP", f"/../../../dev/{SCOPE}"), told("CGROUP", "/../x"),
        told("SINCE_S", "nan"), told("EXPECT_S", "inf"), told("PID", "9" * 4200), told("SLOTS", "cpu=-50"),
        told("UNIT", "ssh.service"), told("GPUS", "../GPU"), told("JOB", "ba9876543210"),
        told("UID", "54321"), a_fifo, a_directory, a_hard_link, zeros, nothing_yet,
    ],
)  # fmt: skip
def test_one_bad_file_costs_itself_only(
    box: LedgerBox, locked: Callable[[Path], None], make: Callable[[Path, Lease], None]
) -> None:
    held = [box.take("000000000000", limit=2), box.take("ffffffffffff", limit=2)]
    path = box.path / "leases" / BAD
    make(path, box.lease(BAD, unit=SCOPE, cgroup=f"/{SCOPE}", backend="systemd", cpu_slots=1))
    locked(path)
    for _ in range(3):
        assert box.ledger.snapshot() == Snapshot((held[0].lease, held[1].lease), ())
    (warning,) = box.warnings
    assert str(path) in warning
    assert "\n" not in warning
    assert len(warning) < 500
    for each in held:
        each.release()
    assert path.exists()


UNREADABLE: list[Callable[[Path, Lease], None]] = [
    told("EXPECT_S", "1e13"), told("UID", "54321"), told("JOB", "ba9876543210"), a_hard_link, zeros,
    nothing_yet,
]  # fmt: skip


# D17
@pytest.mark.parametrize("make", UNREADABLE)
def test_a_lease_that_nobody_can_read_closes_all_gpus_while_it_is_held(
    box: LedgerBox, make: Callable[[Path, Lease], None]
) -> None:
    path = box.path / "leases" / BAD
    make(path, box.lease(BAD, gpus=("GPU-a",)))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        busy = box.ask("aaaaaaaaaaaa", 1, 0, of=("GPU-a", "GPU-b"))
        assert isinstance(busy, Busy)
        assert [lease.job for lease in busy.holders] == [BAD]
        box.take("bbbbbbbbbbbb").release()  # what wants no GPU goes on
        (warning,) = box.warnings
        assert warning.startswith(f"{path}: ")
        assert "may hold any GPU" in warning
        assert [lease.job for lease in box.ledger.orphans()] == [BAD]  # those who wait watch who has it open
    box.take("aaaaaaaaaaaa", 1, 0, of=("GPU-a", "GPU-b")).release()


# D17
def test_an_unreadable_lease_of_the_dead_is_removed_unless_its_job_lives_on(box: LedgerBox) -> None:
    path = box.path / "leases" / BAD
    told("EXPECT_S", "1e13")(path, box.lease(BAD, gpus=("GPU-a",)))
    job = subprocess.Popen(["sleep", "60"], env={"SLICER_LEASE": BAD, "PATH": os.environ["PATH"]})
    try:
        until(lambda: BAD.encode() in proc.environment(job.pid), "the job to have its environment")
        assert isinstance(box.ask("aaaaaaaaaaaa", 1, 0, of=("GPU-a",)), Busy)
    finally:
        job.kill()
        job.wait()
    box.warnings.clear()
    box.take("aaaaaaaaaaaa", 1, 0, of=("GPU-a",)).release()
    assert box.left() == []
    assert box.warnings == []


# D17
def test_an_unreadable_ticket_of_the_dead_is_removed(box: LedgerBox) -> None:
    ticket = made_up.ticket(BAD, gpus=1, gpu_choice=("GPU-a",), uid=os.geteuid(), boot_id=proc.boot_id())
    path = box.path / "tickets" / tickets.name_of(ticket)
    path.write_bytes(changed(statefile.encode(ticket), "EXPECT_S", "1e13"))
    assert box.ledger.snapshot() == Snapshot((), ())
    assert box.left() == []
    assert box.warnings == []


# D17
def test_what_nobody_could_read_back_is_not_granted(box: LedgerBox) -> None:
    request = made_up.request(BAD, cpu_slots=1, cpu_limit=1)
    with pytest.raises(UsageError, match="cannot be written: EXPECT_S"):
        box.ledger.acquire(request, box.lease(BAD, expect_s=1e13), box.observer())
    with pytest.raises(UsageError, match="longer than 1 MiB"):
        box.ledger.acquire(request, box.lease(BAD, name="x" * 1_200_000), box.observer())
    held = box.take("aaaaaaaaaaaa")
    with pytest.raises(UsageError, match="cannot be written: EXPECT_S"):
        box.queue("bbbbbbbbbbbb", expect_s=1e13)
    with pytest.raises(UsageError, match="cannot be written: NAME"):
        held.update(name=7)
    assert box.ledger.snapshot().leases == (replace(held.lease, name=""),)
    held.release()
    assert box.left() == []


# S7
def test_a_link_among_the_leases_is_not_followed(box: LedgerBox, locked: Callable[[Path], None]) -> None:
    held = box.take("ffffffffffff")
    path = box.path / "leases" / BAD
    a_link(path, box.lease(BAD, cpu_slots=1))
    locked(path)
    assert box.ledger.snapshot().leases == (held.lease,)
    assert len(box.warnings) == 1
    held.release()


# S3, S7: outside the hierarchy nothing is opened, so nothing is waited for
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_cgroup_is_looked_for_in_the_hierarchy_only(
    box: LedgerBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    (tmp_path / "cgroup" / SCOPE).mkdir(parents=True)
    (tmp_path / SCOPE).mkdir()
    monkeypatch.setattr(cgroup, "_ROOTS", (str(tmp_path / "cgroup"),))
    make(tmp_path / SCOPE / "cgroup.events")
    make(tmp_path / "cgroup" / SCOPE / "cgroup.events")
    lease = box.lease(BAD, unit=SCOPE, cgroup=f"/{SCOPE}", backend="systemd", cpu_slots=1)
    box.put(lease)
    assert box.ledger.snapshot().leases == ()
    (box.path / "leases" / BAD).write_bytes(changed(statefile.encode(lease), "CGROUP", f"/../{SCOPE}"))
    assert box.ledger.snapshot().leases == ()


# -- a writer that was killed ----------------------------------------------------------------------------


# D14
def test_a_lease_counts_with_its_gpus_wherever_its_writer_was_killed(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa", 1, 0, of=("GPU-a",))
    path = box.path / "leases" / held.lease.job
    before = path.read_bytes()
    new = replace(held.lease, keeper=4_000_000, name="longer")
    text = statefile.encode(new)
    box.ledger.spare(new.job).lay(text)
    for done in range(1, len(text)):
        for half in (text[:done] + before[done:], text[:done]):  # over a longer text, over a shorter one
            path.write_bytes(half)
            assert box.ledger.snapshot().leases == (new,)  # never a mixture of both
    assert isinstance(box.ask("bbbbbbbbbbbb", 1, 0, of=("GPU-a",)), Busy)
    path.write_bytes(text + before[len(text) :])  # only to be cut to its length
    assert box.ledger.snapshot().leases == (new,)
    path.write_bytes(text)
    box.ledger.spare(new.job).remove()
    assert box.ledger.snapshot().leases == (new,)
    assert box.warnings == []
    held.release()
    assert box.left() == []


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel says of the scope of a lease, in a hierarchy of our own."""
    (tmp_path / "cgroup" / SCOPE).mkdir(parents=True)
    monkeypatch.setattr(cgroup, "_ROOTS", (str(tmp_path / "cgroup"),))
    return tmp_path / "cgroup" / SCOPE / "cgroup.events"


# D14
def test_a_dead_owners_half_written_lease_counts_by_its_scope(box: LedgerBox, events: Path) -> None:
    events.write_text("populated 1\n")
    lease = box.lease(BAD, unit=SCOPE, cgroup=f"/{SCOPE}", backend="systemd", cpu_slots=1)
    text = statefile.encode(lease)
    box.ledger.spare(BAD).lay(text)
    box.put(lease).write_bytes(text[:40])
    assert box.ledger.snapshot().leases == (lease,)
    events.write_text("populated 0\n")
    assert box.ledger.snapshot().leases == ()
    assert sorted(os.listdir(box.path)) == ["bells", "leases", "lock", "tickets", "version"]
    assert box.left() == []


# D14
def test_who_was_killed_while_its_ticket_became_a_lease_leaves_nothing(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    waiting = box.wait("bbbbbbbbbbbb")
    text = statefile.encode(box.lease("bbbbbbbbbbbb"))
    box.ledger.spare("bbbbbbbbbbbb").lay(text)
    (box.path / "tickets" / waiting._name).write_bytes(text)
    waiting._close()  # as the kernel does
    held.release()
    box.take("cccccccccccc").release()
    assert box.left() == []
    assert sorted(os.listdir(box.path)) == ["bells", "leases", "lock", "tickets", "version"]


# D14
def test_a_writer_that_was_killed_while_it_laid_the_text_aside_has_changed_nothing(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa", 1, 0, of=("GPU-a",))
    text = statefile.encode(replace(held.lease, keeper=7))
    for done in range(len(text) + 1):
        box.ledger.spare(held.lease.job).lay(text[:done])
        assert box.ledger.snapshot().leases == (held.lease,)
    held.update(keeper=8)
    assert box.ledger.snapshot().leases == (held.lease,)
    held.release()
    assert sorted(os.listdir(box.path)) == ["bells", "leases", "lock", "tickets", "version"]


# D14
def test_a_write_that_takes_several_calls_is_a_whole_one(
    box: LedgerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:7], offset))
    first = box.take("aaaaaaaaaaaa")
    waiting = box.wait("bbbbbbbbbbbb")
    first.update(keeper=42)
    assert box.ledger.snapshot() == Snapshot((first.lease,), (waiting.ticket,))
    first.release()
    second = box.try_again(waiting)
    assert isinstance(second, HeldLease)
    assert box.ledger.snapshot() == Snapshot((second.lease,), ())
    second.release()
    assert box.warnings == []


# D14
def test_a_disk_that_is_full_leaves_the_lease_as_it_was(
    box: LedgerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = box.take("aaaaaaaaaaaa", 1, 0, of=("GPU-a",))
    before = held.lease

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StateError, match="No space left"):
        held.update(keeper=42)
    monkeypatch.undo()
    assert box.ledger.snapshot().leases == (before,)
    held.release()


# -- what cannot be read for now -------------------------------------------------------------------------


def out_of_descriptors(*args: object, **named: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


# D14
def test_a_lease_that_cannot_be_opened_is_not_taken_for_gone(
    box: LedgerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = box.take("aaaaaaaaaaaa")
    with box.waits("bbbbbbbbbbbb") as waiting:
        left = box.left()
        monkeypatch.setattr(Directory, "open", out_of_descriptors)
        for look in (box.ledger.snapshot, lambda: box.ask("cccccccccccc"), waiting.look):
            with pytest.raises(StateError, match="Too many open files"):
                look()
        monkeypatch.undo()
        assert box.left() == left
        assert box.ledger.snapshot() == Snapshot((held.lease,), (waiting.ticket,))
    held.release()


# D14
def test_a_text_laid_aside_that_cannot_be_opened_is_not_taken_for_none(
    box: LedgerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = box.take("aaaaaaaaaaaa")
    text = statefile.encode(replace(held.lease, keeper=7))
    box.ledger.spare("aaaaaaaaaaaa").lay(text)
    (box.path / "leases" / "aaaaaaaaaaaa").write_bytes(text[:40])
    real = Directory.open

    def starved(folder: Directory, name: str, flags: int, mode: int = 0o600) -> int:
        return out_of_descriptors() if name.endswith(".new") else real(folder, name, flags, mode)

    monkeypatch.setattr(Directory, "open", starved)
    with pytest.raises(StateError, match="Too many open files"):
        box.ledger.snapshot()
    monkeypatch.undo()
    assert [lease.keeper for lease in box.ledger.snapshot().leases] == [7]
    held.release()


_STARVED = """
import os, resource, sys
from slicer.errors import StateError
from slicer.ledger.ledger import Ledger
from slicer.state.statedir import locate
ledger = Ledger(locate({"SLICER_STATE_DIR": sys.argv[1]}, os.geteuid()), print)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), 64))
try:
    ledger.snapshot()
except StateError as error:
    print(error.message)
"""


# D14
def test_who_has_no_descriptor_left_deletes_nothing(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    box.put(box.lease("bbbbbbbbbbbb"))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 64
    command = [sys.executable, "-c", _STARVED, str(box.path)]
    environ = {**os.environ, "PYTHONPATH": SRC}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONGEST_S)
    assert "Too many open files" in done.stdout
    assert done.stderr == ""
    assert sorted(box.left()) == ["leases/aaaaaaaaaaaa", "leases/bbbbbbbbbbbb"]
    held.release()


# D14
def test_a_scope_that_cannot_be_looked_at_counts(
    box: LedgerBox, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.write_text("populated 0\n")
    lease = box.lease(BAD, unit=SCOPE, cgroup=f"/{SCOPE}", backend="systemd", cpu_slots=1)
    box.put(lease)
    real = os.open

    def starved(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path.endswith("cgroup.events"):
            out_of_descriptors()
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", starved)
    assert box.ledger.snapshot().leases == (lease,)
    monkeypatch.setattr(os, "open", real)
    assert box.ledger.snapshot().leases == ()
    assert box.left() == []


# D14
def test_a_file_that_is_written_anew_stays_the_one_that_is_flocked(box: LedgerBox) -> None:
    held = box.take("aaaaaaaaaaaa")
    before = os.fstat(held.fd).st_ino
    held.update(keeper=42)
    assert (box.path / "leases" / "aaaaaaaaaaaa").stat().st_ino == before
    assert entries.is_held(box.ledger.directory.leases, "aaaaaaaaaaaa")
    held.release()
