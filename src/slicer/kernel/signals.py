"""The standard library's ``signal`` without its enums, whose import costs 2 to 3 ms."""

from __future__ import annotations

from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import FrameType
    from typing import Any
else:
    import _signal as signal

# From the outer half (or ``slicer stop``) to a keeper without systemd: stop the job, as systemctl would.
STOP = signal.SIGRTMIN + 3

# What ends a program that has nothing to say about it; held back where half a step must not be left.
INTERRUPTS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})

SI_KERNEL = 0x80  # si_code of what no process sent

_before: frozenset[int] | None = None  # the mask from before the first block_interrupts()


def block_interrupts() -> frozenset[int]:
    """Block the interrupts, and return the signal mask as it was before this was first done.

    An exception out of a signal handler can get lost in an import or an extension, and the signal with it;
    so from its first instant ``slicer run`` takes signals only where it sleeps, and later on for the job.
    """
    global _before
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS))
    if _before is None:
        _before = mask
    return _before


def unblock_interrupts() -> None:
    """Undo :func:`block_interrupts`: an interrupt that came meanwhile acts now."""
    if _before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _before)


class Postponed:
    """Holds the interrupts back from this thread but where :attr:`mask` is put in force, and lets them act at
    the end: of a ``with`` that returns, one that came meanwhile raises what its handler raises.

    For programs with handlers and threads of their own. What one thread holds back the kernel gives to
    another, and Python runs the handler in the first thread all the same: so it is sent to that one alone.
    """

    def __enter__(self) -> Postponed:
        self.mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS))
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        for signo in INTERRUPTS - self.mask:
            handler = signal.getsignal(signo)
            if callable(handler):
                try:
                    signal.signal(signo, self._handle)
                except ValueError:
                    break  # no handler runs in any but the first thread
                self._handlers[signo] = handler
        return self

    def _handle(self, signo: int, frame: FrameType | None) -> None:
        if signo in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            signal.pthread_kill(get_ident(), signo)
        else:
            self._handlers[signo](signo, frame)

    def __exit__(self, *_: object) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        finally:
            for signo, handler in self._handlers.items():
                signal.signal(signo, handler)


def timed_wait(signals: frozenset[int], timeout_s: float) -> Any:
    """``signal.sigtimedwait``: what came, or None when the time is over.

    Where it is over while the process is stopped (SIGSTOP), CPython returns what lies on its stack.
    """
    info = signal.sigtimedwait(signals, timeout_s)
    return info if info is not None and info.si_signo in signals else None


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 40`` where it has no name."""
    names = (name for name in dir(signal) if name.startswith("SIG") and name[3].isalpha())
    return next((name for name in sorted(names) if getattr(signal, name) == number), f"signal {number}")


__all__ = [
    "INTERRUPTS",
    "SI_KERNEL",
    "STOP",
    "Postponed",
    "block_interrupts",
    "signal",
    "signal_name",
    "timed_wait",
    "unblock_interrupts",
]
