"""Ends system calls that others could make last.

A descriptor in flight that nobody takes is closed by the kernel, in the receiver's time. Where it is the last
one of a TCP socket with SO_LINGER, that close waits for whoever is at its other end: for hours, if the sender
wants. A signal ends the wait.
"""

from __future__ import annotations

from slicer.kernel.signals import signal

_MOST_S = 0.002  # what else is done meanwhile takes microseconds


class Impatience:
    """Within its ``with`` no wait lasts longer than milliseconds. For the main thread alone."""

    def __init__(self) -> None:
        signal.signal(signal.SIGALRM, lambda *_: None)

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, _MOST_S, _MOST_S)  # again, for the case that it rings too early

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
