"""Points at which a crash test may hold a process still, to kill it just there, or have it fail or hang.

``SLICER_FAULTS=STATE_DIR:POINT[,POINT…]`` makes whoever comes to a POINT stop (SIGSTOP) until STATE_DIR.go
exists; POINTs named in the file STATE_DIR.armed count too, from the moment that it is there. ``POINT!``
raises an exception there, ``POINT~`` sleeps: a process that hangs, but is not stopped. It is honoured only
where STATE_DIR is what ``SLICER_STATE_DIR`` says, too: nobody names both by accident, and the machine's own
state directory, which no variable names, is out of its reach.

Where nothing is armed, a point costs a look into an empty set (20 of them a run, 50 ns each).
"""

from __future__ import annotations

import os
import time

from slicer.kernel.signals import signal

_PLACE, _, _NAMES = os.environ.get("SLICER_FAULTS", "").rpartition(":")
_IS_MEANT = bool(_PLACE) and os.environ.get("SLICER_STATE_DIR") == _PLACE

ARMED = frozenset(_NAMES.split(",")) if _IS_MEANT else frozenset()


class Injected(Exception):
    """What a test asked for."""


def point(name: str) -> None:
    """Stop, fail or hang here, if that is what the test asked for."""
    # Again and again: the keeper continues an outer half that it finds stopped.
    while _IS_MEANT and (asked := {name, f"{name}!", f"{name}~"}.intersection((*ARMED, *_armed_later()))):
        if os.path.exists(f"{_PLACE}.go"):
            return
        if f"{name}!" in asked:
            raise Injected(name)
        if f"{name}~" in asked:
            time.sleep(0.01)
        else:
            os.kill(os.getpid(), signal.SIGSTOP)


def _armed_later() -> list[str]:
    try:
        with open(f"{_PLACE}.armed", encoding="ascii") as file:
            return file.read().split()
    except FileNotFoundError:
        return []
