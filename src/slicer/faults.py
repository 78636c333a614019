"""Points at which a crash test stops a process in order to kill it there, or makes it fail or hang.

``SLICER_FAULTS=STATE_DIR:POINT[,POINT…]`` stops (SIGSTOP) every process that reaches a POINT, until
STATE_DIR.go exists. The POINTs in the file STATE_DIR.armed count, too, as soon as the file exists. ``POINT!``
raises an exception; at ``POINT~`` the process sleeps, as if it hung.

All this requires that ``SLICER_STATE_DIR`` names the same STATE_DIR. Nobody sets both by accident. The
machine's own state directory is out of reach, because no variable names it.

A point costs 50 ns if nothing is armed. A run passes 20 of them.
"""

from __future__ import annotations

import os
import time

from slicer.kernel.signals import signal

_PLACE, _, _NAMES = os.environ.get("SLICER_FAULTS", "").rpartition(":")
_IS_MEANT = bool(_PLACE) and os.environ.get("SLICER_STATE_DIR") == _PLACE

ARMED = frozenset(_NAMES.split(",")) if _IS_MEANT else frozenset()


class Injected(Exception):
    """The exception that a test requested."""


def point(name: str) -> None:
    """Stop, fail or hang here, if a test requested it."""
    # In a loop, because the keeper continues a supervisor that it finds stopped.
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
