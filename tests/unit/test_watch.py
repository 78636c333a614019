"""Sleeping until the ledger changes: woken by what matters, and by nothing else."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer import watch
from slicer.errors import StateError
from slicer.model import Lease
from slicer.watch import LedgerWatch

HOLDER = Lease("x", "", "", 1, 1, 0, "", 0, "systemd", "system", "x.scope", "/x.scope", (), 1, 0.0, None)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for folder in ("leases", "tickets"):
        (tmp_path / folder).mkdir()
    return tmp_path


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("slicer.cgroup._ROOTS", (str(tmp_path / "cgroup"),))
    directory = tmp_path / "cgroup" / "x.scope"
    directory.mkdir(parents=True)
    (directory / "cgroup.events").write_text("populated 1\n")
    return directory


@pytest.fixture
def watched(state: Path) -> Iterator[LedgerWatch]:
    with LedgerWatch(str(state)) as made:
        yield made


def pending(watched: LedgerWatch) -> bool:
    poll = select.poll()
    poll.register(watched._fd, select.POLLIN)
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
    watched.wait_for_change(())  # the touch itself closed a file that was open for writing
    while pending(watched):
        watched._drain()
    watched._settling.clear()
    waker = threading.Thread(target=change, args=(path,))
    waker.start()
    watched.wait_for_change(())
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
    waker = threading.Timer(0.05, (scope / "cgroup.events").write_text, ["populated 0\n"])
    waker.start()
    watched.wait_for_change((HOLDER,))
    waker.join()


def test_a_holder_whose_scope_has_gone_is_looked_at_again_but_not_for_ever(watched: LedgerWatch) -> None:
    assert watch._SETTLING_MS
    for _ in watch._SETTLING_MS:
        watched.wait_for_change((HOLDER,))  # returns without any event: or this test would hang
    assert watched._settling == [] or watched._settling == list(watch._SETTLING_MS)


def test_many_events_are_taken_at_once(state: Path, watched: LedgerWatch) -> None:
    for number in range(1000):
        (state / "leases" / f"{number:012x}").touch()
    assert watched._drain()
    assert not pending(watched)


def test_exhausted_inotify_is_an_error_with_a_way_out(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted:
        def inotify_init1(self, flags: int) -> int:
            import ctypes

            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(watch.ctypes, "CDLL", lambda *args, **named: Exhausted())
    with pytest.raises(StateError, match="max_user_instances"), LedgerWatch(str(state)):
        pass


def test_a_missing_directory_is_an_error_and_leaks_nothing(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(StateError), LedgerWatch(str(tmp_path / "nowhere")):
        pass
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_settling_is_short_and_bounded() -> None:
    assert len(watch._SETTLING_MS) < 10
    assert sum(watch._SETTLING_MS) < 1000
