"""The order in which a decision goes through the requests. Pure.

Within one priority, a request goes by its score until it is overdue: the longer it has waited for its length,
and the more memory it wants, the sooner it goes. Overdue requests go by arrival, before the others.
"""

from __future__ import annotations

from slicer.placement.settings import NEVER, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeVar

    from slicer.model import Lease, Request
    from slicer.placement.devices import Device

    _Request = TypeVar("_Request", bound=Request)

_CPU_AFTER_S = 300.0  # for requests without GPUs
_SCALE = 10.0  # mean lengths of the machine's jobs
_LEAST_AFTER_S, _USUAL_AFTER_S, _MOST_AFTER_S = 300.0, 4 * 3600.0, 12 * 3600.0
_MOST_FACTOR = 6.0
_GRACE_S = 600.0  # added to waits and lengths, so that short ones differ little
_UNKNOWN_S = 1800.0  # the length of a job of which nothing is known


def overdue_after_s(request: Request, total_gpus: int, policy: Policy) -> float:
    """How long the request may be passed over.

    A wide request waits until several GPUs are free at once, so it is overdue sooner than a narrow one.
    """
    if policy.reserve_after_s is not None:
        return policy.reserve_after_s
    if not request.gpus:
        return _CPU_AFTER_S
    usual_s = _USUAL_AFTER_S
    if policy.mean_job_s is not None:
        usual_s = min(max(_SCALE * policy.mean_job_s, _LEAST_AFTER_S), _MOST_AFTER_S)
    return usual_s * min(_MOST_FACTOR, max(1.0, total_gpus / (2 * request.gpus)) ** 2)


def length_of(request: Request) -> float:
    """The seconds that the job is taken to run."""
    return _UNKNOWN_S if request.est_s is None else request.est_s


def score_of(request: Request, largest_mib: int, now_s: float) -> float:
    """How much the request gains from going first: its wait and its memory, for its length.

    ``largest_mib``: the memory of the machine's largest GPU, for requests that want whole ones.
    """
    need_mib = largest_mib if request.need_mib is None else request.need_mib
    waited_s = max(0.0, now_s - request.arrived_s)
    return (waited_s + _GRACE_S) / (length_of(request) + _GRACE_S) * request.gpus * need_mib


def places(
    devices: Sequence[Device] | None, policy: Policy, now_s: float
) -> Callable[[Request], tuple[float, float, str]]:
    """The sort key among requests of one priority: the overdue ones by arrival, then by their scores."""
    total_gpus = len(devices or ())
    largest_mib = max((device.total_mib for device in devices or ()), default=0) or 1

    def place(request: Request) -> tuple[float, float, str]:
        waited_s = now_s - request.arrived_s
        if policy.by_arrival or waited_s >= overdue_after_s(request, total_gpus, policy):
            return -NEVER, request.arrived_s, request.job
        return -score_of(request, largest_mib, now_s), request.arrived_s, request.job

    return place


def rank_of(request: Request) -> tuple[int, float, str]:
    """The sort key of a request among others: by priority (highest first), then arrival, then job."""
    return -request.priority, request.arrived_s, request.job


def with_gpus_by(queue: Iterable[_Request], key: Callable[[_Request], Any]) -> list[_Request]:
    """The requests by arrival. Those for GPUs exchange their places by ``key``, by priority first."""
    by_arrival = sorted(queue, key=rank_of)
    served = iter(sorted((each for each in by_arrival if each.gpus), key=key))
    return [next(served) if each.gpus else each for each in by_arrival]


def in_order(
    queue: Iterable[_Request], devices: Sequence[Device] | None, policy: Policy, now_s: float
) -> tuple[_Request, ...]:
    """The requests in the order of a decision: by priority, then by :func:`places`.

    Requests without GPUs keep their places by arrival.
    """
    place = places(devices, policy, now_s)
    return tuple(with_gpus_by(queue, lambda each: (-each.priority, *place(each))))


def expected_end(lease: Lease, now_s: float) -> float:
    """When the lease should end (CLOCK_BOOTTIME seconds, not before now).

    A job that has exceeded its estimate is taken to need half as long again as it ran. One without an
    estimate is taken to need as long again, and at least half an hour. One that gives way ends by then.
    """
    if lease.gives_way_by_s is not None and lease.gives_way_by_s > now_s:
        return lease.gives_way_by_s
    elapsed_s = max(0.0, now_s - lease.since_s)
    if lease.est_s is None:
        return now_s + max(elapsed_s, _UNKNOWN_S)
    end_s = lease.since_s + lease.est_s
    return end_s if end_s > now_s else now_s + elapsed_s / 2
