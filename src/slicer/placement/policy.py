"""The settings that decisions depend on. In a file of its own: the configuration needs nothing else here."""

from __future__ import annotations

from slicer.record import record


@record
class Policy:
    """The settings that decisions depend on."""

    idle_threshold_mib: int = 200  # a GPU with no more foreign use counts as idle
    spike_buffer: float = 0.10  # of a peak, kept free beyond it
    reserve_after_s: float = 300.0  # how long a blocked request may be passed over
