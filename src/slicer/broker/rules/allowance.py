"""The policy's caps: what each user may still take, what is over a cap for good, and the texts. Pure.

A request over a cap is passed over: it holds nothing back from other users. Once it has waited for long
(``keep``), it holds back its own user's later requests, which could otherwise make it wait for ever. If a cap
of a group's members is in its way, it holds back theirs, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from slicer.broker.rules import reservations
from slicer.broker.rules.policy import NO_POLICY, Rule, SitePolicy, rule_of, together_of
from slicer.errors import NotAllowedError
from slicer.model import CPU, PREEMPTIBLE, Busy, Lease, Request, Reservation, Ticket
from slicer.placement.capacity import eligible
from slicer.placement.devices import Device
from slicer.quantity import short_mib
from slicer.record import record, replace
from slicer.text import counted, slot_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    _Request = TypeVar("_Request", bound=Request)

Whose = tuple[str, int]  # ("user", uid), or ("group", gid): its members together
_Shape = tuple[int, int | None, tuple[str, ...], int]


@record
class Holdings:
    """The holdings of a user or of a group's members, or the need of a request."""

    gpus: int = 0
    vram_mib: int = 0
    slots: int = 0  # CPU slots


# The cap of each field of Taken.
_CAPS = (("max_gpus", "gpus"), ("max_vram_mib", "vram_mib"), ("max_cpu_slots", "slots"))


def taken(
    leases: Iterable[Lease], devices: tuple[Device, ...] | None, known_mib: Mapping[str, int] | None = None,
    policy: SitePolicy = NO_POLICY,
) -> dict[int, Holdings]:  # fmt: skip
    """The holdings of each user that count. A whole GPU counts with all its memory.

    ``known_mib``: the memory of each lease's job, if it is known without the GPUs.
    """
    sizes = sizes_of(devices)
    found: dict[int, list[int]] = {}
    for lease in leases:  # there may be thousands, for each decision
        has = found.setdefault(lease.uid, [0, 0, 0])
        has[2] += lease.slots.get(CPU, 0)
        if lease.gpus and not _is_free(lease, policy):
            has[0] += len(lease.gpus)
            has[1] += (known_mib or {}).get(lease.job) or held_vram(lease.gpus, lease.vram_mib, sizes)
    return {uid: Holdings(*has) for uid, has in found.items()}


def _is_free(found: Lease | Request, policy: SitePolicy) -> bool:
    """Whether its GPUs count against no cap: it gives them to whoever wants them."""
    return policy.preemptible_free and found.priority == PREEMPTIBLE


def taken_together(held: Mapping[int, Holdings], gids: Mapping[int, Sequence[int]], gid: int) -> Holdings:
    """The holdings of a group's members together."""
    found = _NOTHING
    for uid, has in held.items():
        if _is_member(uid, gid, gids):
            found = _sum(found, has)
    return found


def _is_member(uid: int, gid: int, gids: Mapping[int, Sequence[int]]) -> bool:
    """Whether a user counts in the group. Root is bound by no group and counts in none."""
    return bool(uid) and gid in gids.get(uid, ())


@record
class Bound:
    """The caps that bind a user, or a group's members together, by the field of :class:`Holdings`."""

    whose: Whose
    name: str  # the group's; "" for a user
    rules: dict[str, Rule]

    def says(self, user: str, field: str) -> str:
        """As in "alice may hold 2 GPUs at a time". ``user`` is the name of the request's user."""
        who, how = (f"the members of {self.name}", "together") if self.name else (user, "at a time")
        return f"{who} may hold {_words(field, self.rules[field].value)} {how}"


def _bound(whose: Whose, name: str, rule_for: Callable[[str], Rule | None]) -> Bound:
    rules = {field: rule for cap, field in _CAPS if (rule := rule_for(cap)) is not None}
    return Bound(whose, name, rules)


class Allowance:
    """The caps of all users: the ``allowance`` of :func:`slicer.placement.decision.decide`.

    ``gids``: the groups of each user that holds or waits, by uid. All requests have to be tickets.
    ``reservations``: those of all users, at the time ``now_at`` (since 1970).
    """

    def __init__(
        self, policy: SitePolicy, gids: Mapping[int, Sequence[int]],
        reservations: Sequence[Reservation] = (), now_at: float = 0.0,
    ) -> None:  # fmt: skip
        self._policy = policy
        self._gids = gids
        self.reservations = reservations
        self.now_at = now_at
        self._bounds: dict[int, tuple[Bound, ...]] = {}  # by uid

    def bounds(self, uid: int) -> tuple[Bound, ...]:
        """All caps that bind a user's requests, those of the user alone first."""
        found = self._bounds.get(uid)
        if found is None:
            policy, gids = self._policy, self._gids.get(uid, ())
            made = [_bound(("user", uid), "", lambda cap: rule_of(policy, uid, gids, cap))]
            for gid, said in (policy.together or {}).items():
                if _is_member(uid, gid, self._gids):
                    made.append(_bound(("group", gid), said.name, partial(together_of, policy, gid)))
            found = self._bounds[uid] = tuple(each for each in made if each.rules)
        return found

    def counted(self, request: Request) -> Request:
        """The request with only those needs that count against caps."""
        return replace(request, gpus=0) if _is_free(request, self._policy) else request

    def binds(self, whose: Whose, uid: int) -> bool:
        kind, number = whose
        return uid == number if kind == "user" else _is_member(uid, number, self._gids)

    def held(self, whose: Whose, by_user: Mapping[int, Holdings]) -> Holdings:
        """Sum the holdings of a user or of a group's members."""
        kind, number = whose
        if kind == "user":
            return by_user.get(number, _NOTHING)
        return taken_together(by_user, self._gids, number)

    def balance(self, leases: Iterable[Lease], devices: tuple[Device, ...] | None) -> Balance:
        return Balance(self, taken(leases, devices, None, self._policy), devices)


class Balance:
    """The rest of the caps during one decision. It only shrinks."""

    def __init__(
        self, allowance: Allowance, held: dict[int, Holdings], devices: tuple[Device, ...] | None
    ) -> None:
        self._allowance = allowance
        self._by_user = held  # at the beginning of the decision
        self._held: dict[Whose, Holdings] = {}
        self._devices = devices or ()
        self._sizes = sizes_of(devices)
        # In a long queue many requests are alike, and a user over a cap remains so.
        self._least: dict[_Shape, Holdings] = {}
        self._over: set[tuple[int, _Shape]] = set()
        self._kept: set[tuple[int, _Shape]] = set()

    def within(self, request: _Request) -> _Request | None:
        """The request within the caps, with a narrower choice of GPUs; None: it is over them."""
        uid = _uid(request)
        found = self._opened(request)
        if found is None:
            return None
        request = found
        bounds = self._allowance.bounds(uid)
        if not bounds:
            return request
        counted = self._allowance.counted(request)
        shape = _shape(counted)
        if (uid, shape) in self._over:
            return None
        if self._exceeded(counted) is not None:
            self._over.add((uid, shape))
            return None
        if not counted.gpus or request.vram_mib is not None:
            return request
        left_mib = [
            int(bound.rules["vram_mib"].value) - self._of(bound.whose).vram_mib
            for bound in bounds
            if "vram_mib" in bound.rules
        ]
        return _affordable(request, self._devices, min(left_mib)) if left_mib else request

    def _opened(self, request: _Request) -> _Request | None:
        """The request with only those GPUs that no reservation closes to it; None: they are too few."""
        known = self._allowance.reservations
        if not known or not request.gpus or not self._devices:
            return request
        assert isinstance(request, Ticket)
        uuids = request.gpu_choice or tuple(device.uuid for device in self._devices)
        choice = reservations.opened(request, known, uuids, self._allowance.now_at)
        if len(choice) < request.gpus:
            return None
        return request if len(choice) == len(uuids) else replace(request, gpu_choice=choice)

    def is_closed_out(self, request: Request) -> bool:
        """Whether reservations of others leave it too few GPUs."""
        return self._opened(request) is None

    def why(self, request: Ticket, name_of: Callable[[int], str]) -> str:
        """The reservation or the cap for which a request waits, in words; "" if there is none.

        As in "alice may hold 2 GPUs at a time (policy.toml:7) and holds 2". ``name_of`` gives a user's name.
        """
        if self.is_closed_out(request):
            numbers = {device.uuid: number for number, device in enumerate(self._devices)}
            known, now_at = self._allowance.reservations, self._allowance.now_at
            return reservations.why(request, known, numbers, name_of, now_at)
        found = self._exceeded(self._allowance.counted(request))
        if found is None:
            return ""
        bound, field = found
        now = getattr(self._of(bound.whose), field)
        says = f"{bound.says(name_of(request.uid), field)} ({bound.rules[field].where})"
        holds = "hold" if bound.name else "holds"
        number = short_mib(now) if field == "vram_mib" else str(now)
        return f"{says} and {holds} {number}" if now else f"{says}; this asks for more"

    def busy(self, request: Request, leases: Iterable[Lease]) -> Busy | None:
        """Why a request over a cap waits, whatever else is free; None: it is within all caps.

        A request that reservations leave too few GPUs waits for nobody's lease.
        """
        if self.is_closed_out(request):
            return Busy("gpu", (), 0, (), "")
        found = self._exceeded(self._allowance.counted(request))
        if found is None:
            return None
        bound, field = found
        counted = [lease for lease in leases if self._allowance.binds(bound.whose, lease.uid)]
        if field == "slots":
            return Busy("cpu", tuple(each for each in counted if CPU in each.slots), 0, (), "", slot=CPU)
        return Busy("gpu", tuple(each for each in counted if each.gpus), 0, (), "")

    def _exceeded(self, request: Request) -> tuple[Bound, str] | None:
        """The first cap that the request exceeds, as a field of :class:`Holdings`."""
        for bound in self._allowance.bounds(_uid(request)):
            field = over(bound.rules, self._of(bound.whose), self._least_of(request))
            if field:
                return bound, field
        return None

    def _of(self, whose: Whose) -> Holdings:
        found = self._held.get(whose)
        if found is None:
            found = self._held[whose] = self._allowance.held(whose, self._by_user)
        return found

    def _least_of(self, request: Request) -> Holdings:
        shape = _shape(request)
        found = self._least.get(shape)
        if found is None:
            found = self._least[shape] = _least(request, self._devices)
        return found

    def take(self, request: Request, gpus: tuple[str, ...]) -> None:
        """Count these GPUs, and the other needs of the request, as granted."""
        bounds = self._allowance.bounds(_uid(request))
        if bounds:
            if not self._allowance.counted(request).gpus:
                gpus = ()
            vram_mib = held_vram(gpus, request.vram_mib, self._sizes)
            self._add(bounds, Holdings(len(gpus), vram_mib, request.slots.get(CPU, 0)))

    def keep(self, request: Request) -> None:
        """Keep what the request needs from later ones, once for all alike requests of a user.

        If its user's own cap is in its way, only that user's requests are held back.
        """
        counted = self._allowance.counted(request)
        uid, shape = _uid(request), _shape(counted)
        bounds = self._allowance.bounds(uid)
        if not bounds or (uid, shape) in self._kept or self.is_closed_out(request):
            return
        self._kept.add((uid, shape))
        found = self._exceeded(counted)
        if found is not None and not found[0].name:
            bounds = (found[0],)
        self._add(bounds, self._least_of(counted))

    def _add(self, bounds: Iterable[Bound], more: Holdings) -> None:
        for bound in bounds:
            self._held[bound.whose] = _sum(self._of(bound.whose), more)


def over(rules: Mapping[str, Rule], held: Holdings, more: Holdings) -> str:
    """The first cap that would be exceeded, as a field of :class:`Holdings`; "" for none.

    A cap on something that the request does not want is never in its way, even if it is exceeded already.
    """
    for field, rule in rules.items():
        wanted = getattr(more, field)
        if wanted and getattr(held, field) + wanted > rule.value:
            return field
    return ""


def _least(request: Request, devices: tuple[Device, ...]) -> Holdings:
    """The least that the request takes from its user's caps: with the smallest GPUs that it accepts."""
    slots = request.slots.get(CPU, 0)
    if request.vram_mib is not None:
        return Holdings(request.gpus, request.gpus * request.vram_mib, slots)
    sizes = sorted(device.total_mib for device in eligible(request, devices))
    return Holdings(request.gpus, sum(sizes[: request.gpus]), slots)


def _affordable(request: _Request, devices: tuple[Device, ...], left_mib: int) -> _Request:
    """The request with its choice narrowed, so that the memory of any choice is within the cap.

    The smallest GPUs remain: as many as possible, provided that the largest of them together are within it.
    """
    pool = sorted(eligible(request, devices), key=lambda each: each.total_mib)
    sizes = [device.total_mib for device in pool]
    most = len(pool)
    while most > request.gpus and sum(sizes[most - request.gpus : most]) > left_mib:
        most -= 1
    if most == len(pool):
        return request
    return replace(request, gpu_choice=tuple(device.uuid for device in pool[:most]))


def check(
    policy: SitePolicy, gids: Sequence[int], ticket: Ticket, devices: tuple[Device, ...] | None, name: str
) -> None:
    """Refuse what a user may never have, whatever others do. Raises NotAllowedError.

    ``name`` is the user's. ``devices`` None: the GPUs are unknown; then the memory of whole GPUs is not
    checked.
    """
    rule = rule_of(policy, ticket.uid, gids, "max_priority")
    if rule is not None and ticket.priority > rule.value:
        raise NotAllowedError(
            f"priority {ticket.priority} was asked for, but {name} may ask for at most {rule.value:.0f}",
            where=rule.where, hint=f"--priority {rule.value:.0f}, or ask the administrator",
        )  # fmt: skip
    allowance = Allowance(policy, {ticket.uid: gids})
    least = _least(allowance.counted(ticket), devices or ())
    for bound in allowance.bounds(ticket.uid):
        field = over(bound.rules, _NOTHING, least)
        if field:
            wanted = getattr(least, field)
            raise NotAllowedError(
                f"{_words(field, wanted)} {'was' if wanted == 1 else 'were'} asked for,"
                f" but {bound.says(name, field)}",
                where=bound.rules[field].where, hint="ask for less, or ask the administrator",
            )  # fmt: skip


def too_many_waiting(policy: SitePolicy, uid: int, gids: Sequence[int], waiting: int, name: str) -> str:
    """Why a user with this number of waiting requests may not add one, in words; "" if it may."""
    rule = rule_of(policy, uid, gids, "max_waiting")
    if rule is None or waiting < rule.value:
        return ""
    requests = counted(int(rule.value), "request")
    return f"{name} may have {requests} in the queue ({rule.where}) and has {waiting}"


def _words(field: str, value: float) -> str:
    number = int(value)
    if field == "gpus":
        return counted(number, "GPU")
    return f"{short_mib(number)} of GPU memory" if field == "vram_mib" else slot_words(CPU, number)


def sizes_of(devices: tuple[Device, ...] | None) -> dict[str, int]:
    return {device.uuid: device.total_mib for device in devices or ()}


def held_vram(gpus: Sequence[str], vram_mib: int | None, sizes: Mapping[str, int]) -> int:
    """The MiB that a lease counts for, over all its GPUs."""
    if vram_mib is not None:
        return len(gpus) * vram_mib
    return sum(sizes.get(uuid, 0) for uuid in gpus)


def _sum(one: Holdings, other: Holdings) -> Holdings:
    return Holdings(one.gpus + other.gpus, one.vram_mib + other.vram_mib, one.slots + other.slots)


def _shape(request: Request) -> _Shape:
    """The parts of a request on which caps depend, except its user."""
    return request.gpus, request.vram_mib, request.gpu_choice, request.slots.get(CPU, 0)


def _uid(request: Request) -> int:
    assert isinstance(request, Ticket)  # all of the broker's are
    return request.uid


_NOTHING = Holdings()
