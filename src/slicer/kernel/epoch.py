"""From the ledger's clock to the calendar's, which somebody may set."""

from __future__ import annotations

import time

from slicer.kernel.proc import now_s


def epoch_s(at_s: float = 0.0) -> float:
    """A time of :func:`now_s` in seconds since 1970, as the calendar's clock is set now. 0: of the boot."""
    return time.time() - now_s() + at_s
