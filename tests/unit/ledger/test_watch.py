"""Sleeping until the ledger changes: woken by what matters, and by nothing else."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.ledger import watch
from slicer.ledger.watch import LedgerWatch
from slicer.record import replace
from slicer.state.statedir import StateDir, locate
from tests.unit import made_up

pytestmark = pytest.mark.both_pythons

ORPHAN = made_up.lease("x", cgroup="/x.scope", unit="x.scope", cpu_slots=1)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[StateDir]:
    made = locate({"SLICER_STATE_DIR": str(tmp_path / "state")}, os.geteuid())
    yield made
    made.close()


@pytest.fixture
def state(state_dir: StateDir) -> Path:
    return Path(state_dir.path)


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("slicer.kernel.cgroup._ROOTS", (str(tmp_path / "cgroup"),))
    directory = tmp_path / "cgroup" / "x.scope"
    directory.mkdir(parents=True)
    (directory / "cgroup.events").write_text("populated 1\n")
    return directory


@pytest.fixture
def watched(state_dir: StateDir) -> Iterator[LedgerWatch]:
    with LedgerWatch(state_dir, (state_dir.leases, state_dir.tickets)) as made:
        yield made


def pending(watched: LedgerWatch) -> bool:
    poll = select.poll()
    poll.register(watched.fd, select.POLLIN)
    return bool(poll.poll(0))


def close_owned(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)


# X4
@pytest.mark.parametrize("folder", ["leases", "tickets"])
@pytest.mark.parametrize("change", [close_owned, os.unlink])
def test_an_owner_that_leaves_wakes(
    state: Path, watched: LedgerWatch, folder: str, change: Callable[[Path], None]
) -> None:
    path = state / folder / "0123456789ab"
    path.touch()
    watched.wait(None)  # the touch itself closed a file that was open for writing
    while pending(watched):
        watched.take()
    watched._settling.clear()
    waker = threading.Thread(target=change, args=(path,))
    waker.start()
    watched.wait(None)
    waker.join()


# X4: or every look at the ledger would wake all others, who would look again
def test_a_reader_wakes_nobody(state: Path, watched: LedgerWatch) -> None:
    path = state / "leases" / "0123456789ab"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"lease")
    assert path.read_bytes() == b"lease"
    assert not pending(watched)
    os.close(fd)
    assert pending(watched)


# K2
def test_a_scope_that_empties_wakes(watched: LedgerWatch, scope: Path) -> None:
    assert watched.follow((ORPHAN,))  # it may have become empty just before: look again
    assert not watched.follow((ORPHAN,))
    waker = threading.Timer(0.05, (scope / "cgroup.events").write_text, ["populated 0\n"])
    waker.start()
    watched.wait(None)
    waker.join()


# A2: the kernel announces a close an instant before it drops the flock
def test_a_close_is_looked_at_again_but_not_for_ever(state: Path, watched: LedgerWatch) -> None:
    (state / "leases" / "0123456789ab").touch()
    watched.wait(None)
    for _ in watch._SETTLING_S:
        assert watched.due_s() is not None
        watched.wait(None)  # returns without any event: or this test would hang
    assert watched.due_s() is None


# K2
def test_a_scope_that_has_gone_is_looked_at_once_more(watched: LedgerWatch, scope: Path) -> None:
    gone = replace(ORPHAN, job="y", cgroup="/y.scope")
    assert watched.follow((gone,))
    assert not watched.follow((gone,))


def test_many_events_are_taken_at_once(state: Path, watched: LedgerWatch) -> None:
    for number in range(1000):
        (state / "leases" / f"{number:012x}").touch()
    watched.take()
    assert watched.due_s() is not None
    assert not pending(watched)


def test_exhausted_inotify_is_an_error_with_a_way_out(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted:
        def inotify_init1(self, flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **named: Exhausted())
    with pytest.raises(StateError, match="max_user_instances"), LedgerWatch(state_dir):
        pass


def test_a_removed_directory_is_an_error_and_leaks_nothing(state_dir: StateDir, state: Path) -> None:
    (state / "leases").rmdir()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(StateError, match="gone") as caught, LedgerWatch(state_dir):
        pass
    assert caught.value.where == str(state / "leases")
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_settling_is_short_and_bounded() -> None:
    assert len(watch._SETTLING_S) < 10
    assert sum(watch._SETTLING_S) < 1000
