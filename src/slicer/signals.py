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

__all__ = ["INTERRUPTS", "STOP", "signal"]
