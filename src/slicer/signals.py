"""The standard library's ``signal`` without its enums, whose import costs 2 to 3 ms."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

# From the outer half (or ``slicer stop``) to a keeper without systemd: stop the job, as systemctl would.
STOP = signal.SIGRTMIN + 3

# What ends a program that has nothing to say about it; held back where half a step must not be left.
INTERRUPTS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})

_before: frozenset[int] | None = None  # the mask from before the first hold_back()


def hold_back() -> frozenset[int]:
    """Block the interrupts, and return the signal mask as it was before this was first done.

    An exception out of a signal handler can get lost in an import or an extension, and the signal with it;
    so from its first instant ``slicer run`` takes signals only where it sleeps, and later on for the job.
    """
    global _before
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS))
    if _before is None:
        _before = mask
    return _before


def let_go() -> None:
    """Undo :func:`hold_back`: an interrupt that came meanwhile acts now."""
    if _before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _before)


__all__ = ["INTERRUPTS", "STOP", "hold_back", "let_go", "signal"]
