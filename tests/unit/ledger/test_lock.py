"""The ledger's lock: who waits for it is told, can be interrupted, and need not wait for ever."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from slicer.errors import EX_TEMPFAIL, LedgerBusy, StateError
from slicer.ledger import lock as ledger_lock
from slicer.ledger.lock import LedgerLock
from tests.unit.ledger.box import LedgerBox

pytest_plugins = ["tests.unit.ledger.box"]

_HOLDER = """
import fcntl, sys
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class Interrupted(Exception):
    """What a signal's handler raises."""


class Holder:
    """Somebody else inside, in this process: another open file."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def leave(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


@pytest.fixture
def lock(box: LedgerBox) -> str:
    return f"{box.path}/lock"


@pytest.fixture
def holder(lock: str) -> Iterator[Holder]:
    made = Holder(lock)
    yield made
    made.leave()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGUSR1 interrupts, where it is let through."""

    def interrupt(signo: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGUSR1, before)


def blocked() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


Tell = Callable[[str], None]


def entering(
    box: LedgerBox, tell: Tell, mask: frozenset[int] | None = None, patience_s: float = 3600.0
) -> LedgerLock:
    return LedgerLock(box.ledger._lock_fd, f"{box.path}/lock", mask, patience_s, tell)


# D13
def test_whose_patience_is_over_is_told_who_holds_the_lock(box: LedgerBox, lock: str) -> None:
    command = [sys.executable, "-c", _HOLDER, lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        before = blocked()
        box.ledger.patience_s = 0.0
        with pytest.raises(LedgerBusy) as caught:
            box.ledger.snapshot()
        assert caught.value.exit_code == EX_TEMPFAIL
        assert caught.value.where == lock
        assert f"pid {process.pid} has held the lock" in caught.value.message
        assert blocked() == before
        process.communicate()
    box.ledger.snapshot()
    assert box.warnings == []


# D13, D14
@pytest.mark.usefixtures("holder")
def test_whose_patience_is_over_is_told_so_where_nobody_can_see_the_holder(
    box: LedgerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_descriptors(*args: object, **named: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("builtins.open", out_of_descriptors)
    box.ledger.patience_s = 0.0
    with pytest.raises(LedgerBusy, match="somebody has held the lock"):
        box.ledger.snapshot()
    monkeypatch.undo()


# D13
def test_a_patience_that_is_not_over_waits_for_who_is_inside(
    box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 30:
            holder.leave()

    monkeypatch.setattr(ledger_lock.time, "sleep", nap)
    with entering(box, pytest.fail):
        pass
    assert naps == sorted(naps)  # ever less often
    assert naps[-1] < 0.1  # but nobody who leaves is noticed late


# D13
def test_a_long_wait_is_told_once(box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 10:
            holder.leave()

    monkeypatch.setattr(ledger_lock, "_TELL_S", 0.0)
    monkeypatch.setattr(ledger_lock.time, "sleep", nap)
    with entering(box, told.append):
        pass
    (said,) = told
    assert f"pid {os.getpid()} has held the lock" in said
    assert "\n" not in said


# D13
def test_a_ledger_that_was_removed_while_somebody_waited_for_it_is_an_error(
    box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = blocked()
    monkeypatch.setattr(ledger_lock, "_TELL_S", 0.0)

    def remove(said: str) -> None:
        shutil.rmtree(box.path)
        holder.leave()

    with pytest.raises(StateError, match="was removed while it was in use"), entering(box, remove):
        pytest.fail("it is inside")
    assert blocked() == before
    again = os.open(f"/proc/self/fd/{box.ledger._lock_fd}", os.O_RDONLY)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody is left inside
    os.close(again)


# D13
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("is_held_back", [False, True])
def test_a_signal_ends_the_wait(
    box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch, is_held_back: bool
) -> None:
    monkeypatch.setattr(ledger_lock, "_TELL_S", 0.0)
    if is_held_back:  # by a caller who lets it through while asleep, and only there
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    before = blocked()

    def interrupt(said: str) -> None:
        signal.raise_signal(signal.SIGUSR1)

    mask = frozenset[int]() if is_held_back else None
    with pytest.raises(Interrupted), entering(box, interrupt, mask):
        pytest.fail("it is inside")
    assert blocked() == before
    holder.leave()
    Holder(f"{box.path}/lock").leave()  # it is free: whoever was interrupted has not kept it
    box.ledger.snapshot()


# D13: or Ctrl-Z would stop everybody else's decisions
@pytest.mark.usefixtures("interruptible")
def test_inside_no_signal_comes_through(box: LedgerBox) -> None:
    is_through = []

    def decide() -> None:
        with entering(box, pytest.fail):
            signal.raise_signal(signal.SIGUSR1)
            is_through.append(True)

    with pytest.raises(Interrupted):
        decide()
    assert is_through
    box.ledger.snapshot()
