"""Who gets what: a pure decision over one snapshot of the ledger and the GPUs.

A request gets everything at once, or nothing. The decision goes through the requests in their order
(:mod:`slicer.placement.order`, with a broker after the users' shares) and grants those that fit. A blocked
request holds nothing back at first, so others behind it may pass (backfill). Once it has waited for
``after`` (:func:`slicer.placement.order.overdue_after_s`) it is overdue, and the first overdue request in the
order has its turn: a reservation.

The reservation keeps the GPUs where its need should fit first, by the expected ends of their leases. It
should start at the latest of these, and at the earliest ``2 x after`` from its arrival: ``until``. Requests
that should end before that may use all that is free on a kept GPU. The others may use what is left beside the
need and the leases that should outlast ``until``. Where nobody knows when a lease ends, nothing is kept for
the first day (unless a duration is configured): there the GPU would stand idle for an unknown time.

Once it has waited for ``3 x after``, its turn is strict. A lease counts as ending now if it was granted since
then, or since the turn began and has overrun or never had an estimate. What fits already is kept, and a kept
GPU where the need does not fit takes only requests that should end before ``until``.

So no request starves: the first overdue request starts at most ``3 x after + 2 x L`` after its arrival, where
L is the length of the longest job, whatever anybody claims. The argument: from ``3 x after`` on, only leases
from before then put ``until`` into the future, and they end within L. From then on nobody is let in on a
kept GPU without room. The GPUs that are kept stay the same, because others have newer leases. What is on them
ends within another L. (If later leases counted by their claims, each could let in the next one, which claims
a little less, without an end.) The property tests play endless streams of others that claim the truth,
nothing or any lie.

Then the turn passes to the next. The requests ahead of one are those that were overdue before it, one after
another. Requests without GPUs have turns of their own, one for each slot: two of them can have theirs at a
time if they want no common slot. So nobody waits behind a stranger for the end of a job that has nothing to
do with either. What such a turn wants is kept from all behind it, and it starts at the latest when the leases
from before its turn have ended. A request further back may have its turn sooner, and lose it again: while A
has that for slot x, and B ahead of C waits for it because it wants x and y, C may have the turn for y. Once A
has started, B has the turn for both. Each such loss follows the start of a request ahead, so their number is
limited.

Three limits. A request with a higher priority that arrives later goes ahead. A job that uses more memory than
it declared can delay a request by its own length. Foreign processes may stay for days: a request that waits
for them keeps its reservation, and the next one has its turn all the same.
"""

from __future__ import annotations

from slicer.model import CPU, PREEMPTIBLE, Busy, Lease, Request, Ticket
from slicer.placement.capacity import Capacity, eligible, is_eligible, limits_of, shape_of, too_many
from slicer.placement.devices import Device, headroom, is_used_by_others, without
from slicer.placement.settings import NEVER, Policy
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any, Literal

    from slicer.placement.allowance import Allowance, Balance


# While GPUs are kept, the expected ends of leases decide who may use them, and these move with time.
_AGAIN_S = 30.0
_STALLED_AGAIN_S = 2.0  # the kernel's averages change that often


@record
class Verdict:
    grants: dict[str, tuple[str, ...]]  # by each job that can go, in order: its GPUs (none for CPU jobs)
    reserving: tuple[str, ...]  # the blocked jobs that have a reservation
    again_s: float | None  # decide again then, even without an event; None: only an event changes anything


@record
class Infeasible:
    """Not even an empty machine could serve the request.

    ``vram``: MiB wanted on each GPU, and of the smallest of those that it would have to take. ``gpu-choice``:
    ``uuid`` does not exist among ``total`` GPUs. ``slot``: the numbers of the slot ``slot``.
    """

    kind: Literal["gpu", "slot", "vram", "gpu-choice"]
    wanted: int
    total: int
    uuid: str = ""
    slot: str = ""


def decide(
    queue: Sequence[Request], devices: tuple[Device, ...] | None, leases: tuple[Lease, ...],
    policy: Policy, now_s: float, allowance: Allowance | None = None,
) -> Verdict:  # fmt: skip
    """The requests of the queue, given in their order, that can go now. Same input, same answer.

    ``devices`` None: the GPUs are unknown. Then only requests without GPUs are granted. A request with GPUs
    that also wants slots takes them as if it could go.

    ``allowance``: the caps of users and groups. A request over one of them is passed over. It keeps nothing
    from those whom the same caps do not bind, however long it has waited.
    """
    found = _served(queue, devices, leases, policy, now_s, allowance)
    ran = {lease.job for lease in leases if lease.priority == PREEMPTIBLE}
    others = [each for each in queue if each.priority > PREEMPTIBLE] if ran else []
    if not others or found.grants.keys() <= {each.job for each in others}:
        return found
    # No preemptible job begins while another job would begin if none of that kind ran. Else one that gave way
    # would begin again, before those have ended that make room together with it.
    free = None if devices is None else tuple(without(device, ran) for device in devices)
    staying = tuple(lease for lease in leases if lease.job not in ran)
    then = _served(others, free, staying, policy, now_s, allowance)
    if then.grants.keys() <= found.grants.keys():
        return found
    return _served(others, devices, leases, policy, now_s, allowance)


def _served(
    queue: Sequence[Request], devices: tuple[Device, ...] | None, leases: tuple[Lease, ...],
    policy: Policy, now_s: float, allowance: Allowance | None,
) -> Verdict:  # fmt: skip
    """The decision, whoever gives way."""
    capacity = Capacity(devices, leases, policy, now_s, limits_of(queue))
    balance = None if allowance is None else allowance.balance(leases, devices)
    if not policy.stall:
        return go_through(queue, capacity, balance)
    found = go_through([each for each in queue if not _is_held_up(each, policy)], capacity, balance)
    return replace(found, again_s=_STALLED_AGAIN_S)


def go_through(
    queue: Sequence[Request], capacity: Capacity, balance: Balance | None, *, takes: bool = True
) -> Verdict:
    """Serve the queue from the capacity; without ``takes`` each as if it gave back at once what it gets."""
    grants: dict[str, tuple[str, ...]] = {}
    reserving: list[str] = []
    for each in queue:
        request = balance.within(each) if balance else each
        if request is None:
            if balance and takes and capacity.is_overdue(each):
                balance.keep(each)
            continue
        if request.gpus and not capacity.sees_gpus:
            if takes:
                capacity.take(request, ())  # its slots
            continue
        is_blocked = capacity.is_exhausted and (request.gpus or request.slots)
        gpus = None if is_blocked else capacity.fit(request)
        if gpus is not None:
            grants[request.job] = gpus
            if takes:
                capacity.take(request, gpus)
            if balance and takes:
                balance.take(request, gpus)
        elif capacity.is_overdue(request) and capacity.reserve(request):
            if balance and takes:
                balance.keep(request)
            reserving.append(request.job)
    return Verdict(grants, tuple(reserving), _AGAIN_S if capacity.keeps_gpus else None)


def infeasible(request: Request, devices: tuple[Device, ...] | None) -> Infeasible | None:
    """Why not even an empty machine could serve the request; None if it could (or the GPUs are unknown)."""
    slot = too_many(request)
    if slot:
        return Infeasible("slot", request.slots[slot], request.slot_limits[slot], slot=slot)
    if not request.gpus or devices is None:
        return None
    known = {device.uuid for device in devices}
    for uuid in request.gpu_choice:
        if uuid not in known:
            return Infeasible("gpu-choice", request.gpus, len(known), uuid)
    pool = eligible(request, devices)
    if request.gpus > len(pool):
        return Infeasible("gpu", request.gpus, len(pool))
    need = request.need_mib
    if need is not None:
        sizes = sorted((device.total_mib for device in pool), reverse=True)
        if sizes[request.gpus - 1] < need:
            return Infeasible("vram", need, sizes[request.gpus - 1])
    return None


class Book:
    """A ledger at one moment, and what follows from that. Same state, same answers.

    The private ledger and the broker decide with the same book. Only the state comes from elsewhere.
    """

    def __init__(
        self, queue: Sequence[Request], devices: tuple[Device, ...] | None, leases: tuple[Lease, ...],
        policy: Policy, now_s: float, allowance: Allowance | None = None,
    ) -> None:  # fmt: skip
        """The arguments are those of :func:`decide`."""
        self.queue: tuple[Any, ...] = tuple(queue)  # requests; all of the broker's are tickets
        self.devices = devices
        self.leases = leases
        self.policy = policy
        self.now_s = now_s
        self.allowance = allowance
        self.verdict = decide(self.queue, devices, leases, policy, now_s, allowance)
        self._places: dict[str, tuple[int, int]] = {}  # see _find_places
        self._wanted: dict[str, int] = {}  # by resource: the places of the requests for it, as bits
        self._last: tuple[int, int] | None = None
        self._balance: Balance | None = None
        self._known: dict[object, Busy] = {}

    @property
    def served(self) -> set[str]:
        """The jobs that get something, now or by a reservation."""
        return {*self.verdict.grants, *self.verdict.reserving}

    def among_able(self, idle: Callable[[Book], Collection[str]]) -> Book:
        """The book without requests that would leave unused what they get.

        ``idle`` finds such jobs, whose owners are stopped or dead, among those that a book serves.
        """
        found = self
        while jobs := idle(found):
            queue = [each for each in found.queue if each.job not in jobs]
            found = Book(queue, self.devices, self.leases, self.policy, self.now_s, self.allowance)
        return found

    def busy(self, request: Request) -> Busy:
        """Why a request is not granted. One that is not in the queue would be the last."""
        if self._last is None:
            self._last, self._balance = self._find_places(), self._balanced()
        place, matter = self._places.get(request.job, self._last)
        capped = None if self._balance is None else self._balance.busy(request, self.leases)
        rivals = 0
        for name in _wants(request):
            rivals |= self._wanted.get(name, 0)
        ahead = (rivals & ((1 << place) - 1)).bit_count()
        if capped is not None:
            return replace(capped, ahead=ahead)
        kind = matter, *shape_of(request)  # those that ask for the same share an answer
        if _is_held_up(request, self.policy):
            slot = "" if request.gpus else min(request.slots)
            found = _busy_slot(slot, (), "") if slot else Busy("gpu", (), 0, (), "")
            return replace(found, ahead=ahead, why=self.policy.stall)
        if kind not in self._known:
            self._known[kind] = self._explain(request, self.queue[:matter])
        return replace(self._known[kind], ahead=ahead)

    def _find_places(self) -> tuple[int, int]:
        """Find the place of each job, and how many ahead matter to it: the last of them gets something.

        Returns the same for a job that is not in the queue.
        """
        served, matter = self.served, 0
        for place, request in enumerate(self.queue):
            self._places[request.job] = place, matter
            for name in _wants(request):
                self._wanted[name] = self._wanted.get(name, 0) | 1 << place
            matter = place + 1 if request.job in served else matter
        return len(self.queue), matter

    def _explain(self, request: Request, before: Sequence[Request]) -> Busy:
        left = self._capacity(limits_of([*before, request]))
        go_through(before, left, self._balanced())
        reserved_for = _reserved_for(request, left)
        alone = self._capacity(request.slot_limits)
        if request.gpus and alone.fit_gpus(request) is None:
            able = eligible(request, self.devices)
            foreign = tuple(device.uuid for device in able if is_used_by_others(device, self.policy))
            why = out_of_service(self.devices or (), request)
            return Busy("gpu", gpu_holders(request, self.leases), 0, foreign, reserved_for, why=why)
        slot = alone.missing_slot(request)
        if slot:
            return _busy_slot(slot, slot_holders(self.leases, (slot,)), reserved_for)
        slot = left.missing_slot(request)
        if not slot or (request.gpus and left.fit_gpus(request) is None):
            return Busy("gpu", (), 0, (), reserved_for)
        return _busy_slot(slot, (), reserved_for)

    def _balanced(self) -> Balance | None:
        """The rest of the caps beside the leases; None: there are no caps."""
        return None if self.allowance is None else self.allowance.balance(self.leases, self.devices)

    def _capacity(self, limits: Mapping[str, int]) -> Capacity:
        return Capacity(self.devices, self.leases, self.policy, self.now_s, limits)

    def roomiest(self, request: Request) -> tuple[str, ...]:
        """The GPUs with most headroom: for a request that fits nowhere and will not wait any longer."""
        able = eligible(request, self.devices)
        headrooms = {device.uuid: headroom(device, self.leases, self.policy) for device in able}
        out = {device.uuid for device in able if device.out}
        ranked = sorted(
            headrooms, key=lambda uuid: (uuid in out, NEVER if (mib := headrooms[uuid]) is None else -mib)
        )
        chosen = ranked[: request.gpus]
        return tuple(uuid for uuid in headrooms if uuid in chosen)


def out_of_service(devices: Iterable[Device], request: Request) -> str:
    """Of the GPUs that the request could use, as in "GPU 3 is out of service (it is lost)"; "" for none."""
    return ", ".join(
        f"GPU {number} is out of service ({device.out})"
        for number, device in enumerate(devices)
        if device.out and is_eligible(request, device.uuid)
    )


def _is_held_up(request: Request, policy: Policy) -> bool:
    """Whether it waits until the machine stalls less. The jobs around one wait for it, so it does not."""
    is_inside = isinstance(request, Ticket) and request.inside
    return bool(policy.stall) and not request.is_nothing and not is_inside


def _wants(request: Request) -> tuple[str, ...]:
    """The resources for which it competes; "" is the GPUs."""
    return ("", *request.slots) if request.gpus else tuple(request.slots)


def _busy_slot(slot: str, holders: tuple[Lease, ...], reserved_for: str) -> Busy:
    return Busy("cpu" if slot == CPU else "slot", holders, 0, (), reserved_for, slot=slot)


def slot_holders(leases: Iterable[Lease], names: Iterable[str]) -> tuple[Lease, ...]:
    wanted = set(names)
    return tuple(lease for lease in leases if not wanted.isdisjoint(lease.slots))


def gpu_holders(request: Request, leases: Iterable[Lease]) -> tuple[Lease, ...]:
    return tuple(lease for lease in leases if any(is_eligible(request, uuid) for uuid in lease.gpus))


def _reserved_for(request: Request, left: Capacity) -> str:
    """The first job ahead that has reserved resources which the request could use; "" for none."""
    for (kind, name), job in left.reserved_for.items():
        if (request.gpus and is_eligible(request, name)) if kind == "gpu" else name in request.slots:
            return job
    return ""


def expected_remaining(lease: Lease, now_s: float) -> float | None:
    """The seconds that the holder should still need (never negative); None without an estimate."""
    return None if lease.expect_s is None else max(0.0, lease.since_s + lease.expect_s - now_s)


def first_to_finish(holders: tuple[Lease, ...], now_s: float) -> Lease | None:
    """The holder to name: the one expected to finish first, else the one that has held longest."""

    def rank(lease: Lease) -> tuple[bool, float, float]:
        left = expected_remaining(lease, now_s)
        return left is None, left or 0.0, lease.since_s

    return min(holders, key=rank, default=None)
