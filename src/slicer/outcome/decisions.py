"""What ``slicer route`` decided, kept beside the outcomes: one row for each job or refusal."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    # started: it has its lease. fallback: the same, after the GPU ran out of memory (``after`` is that job).
    Result = Literal["started", "fallback", "blocked", "too-large", "probe-error"]


@record
class DecisionRow:
    """One decision. The outcome of ``job`` is in the table of outcomes."""

    route: str
    decided_at: float  # seconds since the epoch
    kinds: tuple[str, ...]  # of the metrics
    metrics: tuple[float, ...]  # in the probes' units
    bounds: tuple[float | None, ...]  # of the destination, one for each metric
    destination: str  # "" where there was none
    mode: str  # "gpu", "cpu", or ""
    result: Result
    job: str  # "" if nothing ran
    after: str  # of a fallback: the job that ran out of GPU memory
    waited_s: float  # for the lease
    input: str
    command: tuple[str, ...]  # as it was given
    reason: str  # of what did not start: the error in one line; else ""
