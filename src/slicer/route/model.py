"""What is decided for one call of a route. Pure data."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import Destination, ProbeKind, Route


@record
class Metric:
    """What one probe measured, in its unit (see :class:`slicer.config.routes.Probe`)."""

    kind: ProbeKind
    value: float
    at_least: bool = False  # counting ended once it was too much for every bound: there is more


@record
class Decision:
    """Where a job goes. ``choices`` are all destinations that would take it, the first first."""

    route: Route
    input: str  # as the command line has it; "-" for standard input; "" if none was found
    metrics: tuple[Metric, ...]  # () where the probe failed and the route says where to go then
    choices: tuple[Destination, ...]  # () if the job is too large for all
    why: str  # for people, without the route's name: "duration 12m ≤ 1h: gpu"
