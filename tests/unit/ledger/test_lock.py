"""The ledger's lock: who waits for it is told, can be interrupted, and need not wait for ever."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from slicer.errors import EX_TEMPFAIL, LedgerBusy, StateError
from slicer.ledger import lock as ledger_lock
from slicer.ledger.lock import LedgerLock
from slicer.ledger.status import existing_ledger
from tests.unit.ledger.box import LedgerBox

pytestmark = pytest.mark.both_pythons

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
    box: LedgerBox, tell: Tell, mask: frozenset[int] | None = None, patience_s: float | None = 3600.0
) -> LedgerLock:
    return LedgerLock(box.ledger._lock_fd, f"{box.path}/lock", mask, patience_s, 0.5, tell)


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
    with pytest.raises(LedgerBusy, match="another process has held the lock"):
        box.ledger.snapshot()
    monkeypatch.undo()


class Naps:
    """Pauses that take no time. ``during`` is called in each one, with their number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, during: Callable[[int], None]) -> None:
        self.taken: list[float] = []
        self._during = during
        # The lock's own: other threads of this process tell the time, too.
        clock = SimpleNamespace(
            monotonic=lambda: 1000.0 + sum(self.taken), monotonic_ns=time.monotonic_ns, sleep=self._nap
        )
        monkeypatch.setattr(ledger_lock, "time", clock)

    def _nap(self, seconds: float) -> None:
        self.taken.append(seconds)
        self._during(len(self.taken))


# D13, D18: a thousand that look every 20 ms leave the holder no CPU
@pytest.mark.parametrize(("longest_s", "whose"), [(0.5, "locked"), (0.02, "existing_ledger")])
def test_who_waits_for_long_looks_seldom_and_not_when_others_do(
    box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch, longest_s: float, whose: str
) -> None:
    ledger = box.ledger
    if whose == "existing_ledger":  # of slicer status
        ledger = existing_ledger({"SLICER_STATE_DIR": str(box.path)}, pytest.fail) or box.ledger
    ledger.patience_s = None
    told: list[str] = []
    ledger.tell = told.append
    naps = Naps(monkeypatch, lambda number: holder.leave() if number == 200 else None)
    with ledger.locked():
        pass
    assert naps.taken[0] < 0.001
    assert all(later < 3 * sum(naps.taken[: number + 1]) for number, later in enumerate(naps.taken[1:], 1))
    late = naps.taken[100:]
    assert 0.5 * longest_s <= min(late) < max(late) <= 1.5 * longest_s
    assert len(set(late)) > 10
    if ledger is not box.ledger:
        ledger.close()


# D13
def test_who_holds_the_lock_for_long_is_told_once(
    box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    naps = Naps(monkeypatch, lambda number: holder.leave() if number == 100 else None)
    with entering(box, told.append):
        pass
    assert sum(naps.taken) > 6
    (said,) = told
    # Looks are up to 0.75 s apart by now.
    assert re.search(f"pid {os.getpid()} has held the lock for [34] s", said)
    assert "\n" not in said


# D19
@pytest.mark.parametrize("patience_s", [2.0, None])
def test_nobody_is_blamed_where_many_hold_the_lock_in_turn(
    box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch, patience_s: float | None
) -> None:
    def in_turn(number: int) -> None:
        os.utime(f"{box.path}/lock", ns=(number, number))  # as each does that takes it
        if number == 60:
            holder.leave()

    naps = Naps(monkeypatch, in_turn)
    with entering(box, pytest.fail, patience_s=patience_s):
        pass
    assert 10 < sum(naps.taken) < 20


# D19
def test_who_does_not_wait_is_told_that_it_is_a_crowd(
    box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_turn(number: int) -> None:
        os.utime(f"{box.path}/lock", ns=(number, number))

    naps = Naps(monkeypatch, in_turn)
    with (
        pytest.raises(LedgerBusy, match=r"other processes have taken turns with the lock for 2[01] s"),
        entering(box, pytest.fail, patience_s=2.0),
    ):
        pytest.fail("it is inside")
    assert 20 <= sum(naps.taken) < 21
    holder.leave()


# D19
def test_who_takes_the_lock_is_seen_to(box: LedgerBox) -> None:
    os.utime(box.ledger._lock_fd, ns=(0, 0))
    box.ledger.snapshot()
    assert os.fstat(box.ledger._lock_fd).st_mtime_ns


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


# A9: found by the soak as a keeper's traceback
@pytest.mark.usefixtures("interruptible")
def test_a_child_is_not_interrupted_in_its_parents_place(
    box: LedgerBox, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_lock, "_TELL_S", 0.0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    box.ledger.mask = frozenset()  # the parent's, who waits

    def leave(said: str) -> None:
        signal.raise_signal(signal.SIGUSR1)
        holder.leave()

    box.ledger.after_fork()
    box.ledger.tell = leave
    box.ledger.snapshot()
    signal.sigtimedwait([signal.SIGUSR1], 0)
