"""Waiting until a scope that the broker was asked to stop is empty."""

from __future__ import annotations

import os
import select
import time

from slicer.broker.rules.units import cgroup_of, slice_of
from slicer.errors import BackendError
from slicer.kernel import cgroup
from slicer.model import SLICES


def wait_until_empty(unit: str, uid: int, deadline_s: float) -> None:
    """Sleep until the user's scope of that name is empty, ``deadline_s`` seconds at most.

    Raises BackendError if it is not.
    """
    end = time.monotonic() + deadline_s
    above = cgroup.of(1).removesuffix("/init.scope")
    for name in SLICES:
        if not _is_empty_by(cgroup.path_of(cgroup_of(slice_of(name, uid), unit, above)), end):
            message = f"{unit} has not ended within {deadline_s:g} s"
            raise BackendError(message, hint=f"see systemctl status {unit}")


def _is_empty_by(directory: str, end: float) -> bool:
    """Whether a cgroup is empty, or is so before ``end`` (monotonic). One that is not there is empty."""
    try:
        events = os.open(f"{directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    poll = select.poll()
    poll.register(events, select.POLLPRI)
    try:
        while b"populated 1" in os.pread(events, 4096, 0):
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            poll.poll(left_s * 1000)
    except OSError:
        return True  # it was removed meanwhile
    finally:
        os.close(events)
    return True
