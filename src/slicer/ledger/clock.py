"""The ledger's only clock."""

from __future__ import annotations

import time


def now_s() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
