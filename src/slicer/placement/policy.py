"""The settings on which decisions depend. Separate, because the configuration needs nothing else here."""

from __future__ import annotations

from slicer.record import record


@record
class Policy:
    """The settings on which decisions depend."""

    idle_threshold_mib: int = 200  # a GPU with no more foreign use than this counts as idle
    spike_buffer: float = 0.10  # of a peak, kept free in addition
    reserve_after_s: float = 300.0  # how long a blocked request may be passed over
