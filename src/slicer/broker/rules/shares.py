"""Each user's recent use of the GPUs, and the share that is due. Pure.

Use is counted in GPU-seconds: a job that declared its memory counts for that part of a GPU's memory, any
other for whole GPUs. Use decays: after each half-life it counts half. A rate r from ``begin`` to ``end``
counts at ``now`` (the integral of the decayed rate):

    r x H / ln 2 x (2^-((now - end) / H) - 2^-((now - begin) / H))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, expm1, log

from slicer.broker.protocol.messages import UsageRow
from slicer.broker.rules.policy import SitePolicy, weight_of
from slicer.model import Lease
from slicer.record import as_dict, record

NEVER = -float("inf")


@record
class Past:
    """The known use by a user's jobs that have ended."""

    gpu_s: float  # GPU-seconds, decayed to ``at_s``
    at_s: float  # CLOCK_BOOTTIME
    granted_s: float  # when the last of them with GPUs was granted; possibly before this boot


@record
class Shares:
    """For each user that holds, waits or has used something: its use and its weight."""

    used: dict[int, float]  # decayed GPU-seconds
    weights: dict[int, float]
    active: frozenset[int]  # users that hold GPUs or wait for some: the due shares are divided among them
    granted_s: dict[int, float]  # when each user last got GPUs

    def share(self, uid: int) -> float:
        """This user's part of all recent use: 0 … 1."""
        total = sum(self.used.values())
        return self.used.get(uid, 0.0) / total if total > 0 else 0.0

    def due(self, uid: int) -> float:
        """The share that is due to a user by the weights of all active users: 0 … 1."""
        if uid not in self.active:
            return 0.0
        return self.weights[uid] / sum(self.weights[each] for each in self.active)

    def rank(self, uid: int) -> float:
        """The sort key of users with one priority: the one that used least for its weight goes first."""
        return self.used.get(uid, 0.0) / self.weights.get(uid, 1.0)


def gpu_rate(gpus: Sequence[str], vram_mib: int | None, sizes: Mapping[str, int]) -> float:
    """How many GPUs a lease counts for. ``sizes``: MiB of each GPU; one of unknown size counts whole."""
    return sum(
        1.0 if vram_mib is None or not sizes.get(uuid) else min(1.0, vram_mib / sizes[uuid]) for uuid in gpus
    )


def used_rate(rate: float, vram_mib: int | None, peak_mib: int, gpus: int) -> float:
    """The :func:`gpu_rate` of a lease, given the highest use of its job on one of its GPUs.

    A job that uses more than it declared counts for its use, as it does in decisions.
    """
    if not vram_mib or peak_mib <= vram_mib:
        return rate
    return min(float(gpus), rate * peak_mib / vram_mib)


def decayed(gpu_s: float, passed_s: float, half_life_s: float) -> float:
    """The rest of a use after some seconds. A clock that was set back reduces nothing."""
    return gpu_s * exp(-max(0.0, passed_s) * log(2.0) / half_life_s)


def held(rate: float, begin_s: float, end_s: float, now_s: float, half_life_s: float) -> float:
    """The use at ``now_s`` by a lease from ``begin_s`` to ``end_s``."""
    if end_s <= begin_s:
        return 0.0
    # expm1: for a short time and a long half-life, the plain difference would be mostly rounding errors.
    lasted = -expm1(-(end_s - begin_s) * log(2.0) / half_life_s)
    return rate * half_life_s / log(2.0) * decayed(lasted, now_s - end_s, half_life_s)


def shares_of(
    policy: SitePolicy, gids: Mapping[int, Sequence[int]], past: Mapping[int, Past],
    leases: Iterable[tuple[Lease, float]], waiting: Iterable[int], now_s: float,
) -> Shares:  # fmt: skip
    """The shares at one moment.

    ``leases``: each with its :func:`gpu_rate`. ``waiting``: the uids of requests for GPUs in the queue.
    """
    half_life_s = policy.half_life_s
    used = {uid: decayed(each.gpu_s, now_s - each.at_s, half_life_s) for uid, each in past.items()}
    granted_s = {uid: each.granted_s for uid, each in past.items()}
    active = set(waiting)
    for lease, rate in leases:
        if lease.gpus:
            active.add(lease.uid)
            now_used = held(rate, lease.since_s, now_s, now_s, half_life_s)
            used[lease.uid] = used.get(lease.uid, 0.0) + now_used
            granted_s[lease.uid] = max(lease.since_s, granted_s.get(lease.uid, NEVER))
    weights = {uid: weight_of(policy, uid, gids.get(uid, ())) for uid in {*used, *active}}
    return Shares(used, weights, frozenset(active), granted_s)


def so_far(
    of: str, lasts_s: float, most_s: float, rate: float, vram_mib: int, waited_s: float
) -> UsageRow:
    """The usage by a running lease in the last ``most_s`` seconds; ``rate``: :func:`gpu_rate`."""
    used_s = min(lasts_s, most_s)
    return UsageRow(of, 1, 1, rate * used_s, vram_mib * used_s, 0.0, waited_s if lasts_s <= most_s else 0.0)


def added_up(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """One row for each user, group or profile, the most GPU time first."""
    found: dict[str, UsageRow] = {}
    for row in rows:
        sums = as_dict(found.get(row.of) or UsageRow(row.of, 0, 0, 0.0, 0.0, 0.0, 0.0))
        more = as_dict(row)
        found[row.of] = UsageRow(**{name: sums[name] + more[name] for name in sums} | {"of": row.of})
    return tuple(sorted(found.values(), key=lambda row: (-row.gpu_s, -row.cpu_s, row.of)))
