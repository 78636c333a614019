"""The settings on which decisions depend. Separate, because the configuration needs nothing else here."""

from __future__ import annotations

from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicer.model import OutOfService
    from slicer.placement.pressure import StallLimit

NEVER = float("inf")


@record
class Policy:
    """The settings on which decisions depend."""

    idle_threshold_mib: int = 200  # a GPU with no more foreign use than this counts as idle
    spike_buffer: float = 0.10  # of a peak, kept free in addition
    # How long a blocked request may be passed over; None: by its width and the length of the machine's jobs.
    reserve_after_s: float | None = None
    mean_job_s: float | None = None  # the mean length of the machine's jobs; None: unknown
    # GPUs (UUIDs, their beginnings, or indices), each with the reason.
    out_of_service: tuple[tuple[str, str], ...] = ()
    suspects: frozenset[str] = frozenset()  # GPUs that are placed last: slicer.placement.suspects
    by_arrival: bool = False  # requests of one priority go by arrival, however long their jobs are
    pressure: StallLimit | None = None  # beyond it nothing that takes GPUs or slots begins
    stall: str = ""  # that it is beyond it now, in words

    def without(self, taken: Iterable[OutOfService]) -> Policy:
        """The same, with GPUs that root has taken out of service by hand."""
        words = tuple((each.gpu, each.words) for each in taken)
        return replace(self, out_of_service=(*words, *self.out_of_service))
