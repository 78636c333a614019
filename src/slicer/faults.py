"""Points at which a crash test may hold a process still, to kill it just there.

``SLICER_FAULTS=STATE_DIR:POINT[,POINT…]`` makes whoever comes to a POINT stop (SIGSTOP). It is honoured only
where STATE_DIR is what ``SLICER_STATE_DIR`` says, too: nobody names both by accident, and the machine's own
state directory, which no variable names, is out of its reach.

Where nothing is armed, a point costs a look into an empty set (20 of them a run, 50 ns each).
"""

from __future__ import annotations

import os

from slicer.signals import signal


def _points() -> frozenset[str]:
    place, _, names = os.environ.get("SLICER_FAULTS", "").rpartition(":")
    is_meant = bool(place) and place == os.environ.get("SLICER_STATE_DIR")
    return frozenset(names.split(",")) if is_meant else frozenset()


ARMED = _points()


def point(name: str) -> None:
    """Stop here, if that is what the test asked for."""
    if name in ARMED:
        os.kill(os.getpid(), signal.SIGSTOP)
