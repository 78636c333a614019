"""How long tests wait for what must come: the longer, the more a machine has to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# The emulated machine is 10 to 20 times slower.
SLOWNESS = 10 if os.environ.get("SLICER_TEST_MACHINE") == "qemu" else 1
DEADLINE_S = 30.0 * SLOWNESS
MOST_STRETCHED = 4.0


class Deadline:
    """Passes after so many seconds, or later where more wants to run than there are CPUs."""

    def __init__(self, deadline_s: float) -> None:
        self._began = time.monotonic()
        self._deadline_s = deadline_s

    def has_passed(self) -> bool:
        stretch = min(max(1.0, self._load()), MOST_STRETCHED)
        return time.monotonic() - self._began > self._deadline_s * stretch

    def _load(self) -> float:
        """Processes that want to run, for each CPU, over the last minute."""
        return os.getloadavg()[0] / len(os.sched_getaffinity(0))


def wait_until(what: str, probe: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    """The probe's first true value. Fails with what was expected and the last value seen."""
    deadline = Deadline(deadline_s)
    while not (found := probe()):
        if deadline.has_passed():
            raise AssertionError(f"not within {deadline_s:g} s: {what}; last seen: {found!r}")
        time.sleep(0.01)
    return found
