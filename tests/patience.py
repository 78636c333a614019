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
# For one call that waits, and cannot look at the load meanwhile.
LONGEST_S = DEADLINE_S * MOST_STRETCHED


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


def until(look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Look until the result is true and return it; fail with the last result once the deadline has passed."""
    deadline, pause_s = Deadline(deadline_s), 0.002
    while not (seen := look()):
        if deadline.has_passed():
            raise AssertionError(f"still not, after {deadline_s:g} s: {what}; last seen: {seen!r}")
        time.sleep(pause_s)
        pause_s = min(0.02, pause_s * 1.5)
    return seen
