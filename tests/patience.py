"""How long tests wait for what must come: the longer, the more a machine has to do."""

from __future__ import annotations

import os
import time

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
