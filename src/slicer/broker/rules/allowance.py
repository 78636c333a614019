"""The policy's caps: what each user may still take, what is over a cap for good, and the words. Pure.

A request over its user's caps is passed over: it holds nothing back from other users. It does from its own
user's later requests, once it has waited for long (``keep``); else those could keep it waiting for ever.
"""

from __future__ import annotations

from slicer.broker.rules.resolve import rule_of
from slicer.errors import NotAllowedError
from slicer.model import CPU
from slicer.placement.capacity import is_eligible
from slicer.quantity import short_mib
from slicer.record import record, replace
from slicer.text import counted, slot_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeVar

    from slicer.broker.rules.policy import Policy
    from slicer.broker.rules.resolve import Rule
    from slicer.model import Lease, Ticket
    from slicer.placement.capacity import AnyRequest, Device

    _Request = TypeVar("_Request", bound=AnyRequest)
    _Shape = tuple[int, int | None, tuple[str, ...], int]


@record
class Taken:
    """What a user holds, or a request would add."""

    gpus: int = 0
    vram_mib: int = 0
    slots: int = 0  # of the CPU


# Which cap limits which field of Taken.
_CAPS = (("max_gpus", "gpus"), ("max_vram_mib", "vram_mib"), ("max_cpu_slots", "slots"))


def taken(
    leases: Iterable[Lease], devices: tuple[Device, ...] | None, known_mib: Mapping[str, int] | None = None
) -> dict[int, Taken]:
    """What the leases of each user hold together. A whole GPU counts with all its memory.

    ``known_mib``: of a lease's job the memory that it holds, where that is known without the GPUs.
    """
    sizes = _sizes(devices)
    found: dict[int, Taken] = {}
    for lease in leases:
        vram_mib = (known_mib or {}).get(lease.job) or _vram(lease.gpus, lease.vram_mib, sizes)
        more = Taken(len(lease.gpus), vram_mib, lease.slots.get(CPU, 0))
        found[lease.uid] = _sum(found.get(lease.uid, _NOTHING), more)
    return found


def held_vram(gpus: Sequence[str], vram_mib: int | None, devices: tuple[Device, ...] | None) -> int:
    """MiB that a lease counts for, over all its GPUs."""
    return _vram(gpus, vram_mib, _sizes(devices))


class Allowance:
    """The caps of all users: what :func:`slicer.placement.decision.decide` takes as ``allowance``.

    ``gids``: the groups of each user that holds or waits, by uid. All requests have to be tickets.
    """

    def __init__(self, policy: Policy, gids: Mapping[int, Sequence[int]]) -> None:
        self._policy = policy
        self._gids = gids
        self._rules: dict[int, dict[str, Rule]] = {}  # by uid and field of Taken

    def rules(self, uid: int) -> dict[str, Rule]:
        """The caps of a user that there are, by the field of :class:`Taken`."""
        found = self._rules.get(uid)
        if found is None:
            gids = self._gids.get(uid, ())
            asked = ((field, rule_of(self._policy, uid, gids, cap)) for cap, field in _CAPS)
            found = self._rules[uid] = {field: rule for field, rule in asked if rule is not None}
        return found

    def balance(self, leases: Iterable[Lease], devices: tuple[Device, ...] | None) -> Balance:
        """What is left of the caps beside these leases."""
        return Balance(self, taken(leases, devices), devices)


class Balance:
    """What is left of the caps during one decision. It only shrinks."""

    def __init__(
        self, allowance: Allowance, held: dict[int, Taken], devices: tuple[Device, ...] | None
    ) -> None:
        self._allowance = allowance
        self._held = held
        self._devices = devices or ()
        self._sizes = _sizes(devices)
        # Of a long queue many ask for the same, and who is over a cap stays so.
        self._least: dict[_Shape, Taken] = {}
        self._over: set[tuple[int, _Shape]] = set()
        self._kept: set[tuple[int, _Shape]] = set()

    def within(self, request: _Request) -> _Request | None:
        """The request as far as the caps allow it, with fewer GPUs to choose from; None: it is over them."""
        uid = _uid(request)
        rules = self._allowance.rules(uid)
        if not rules:
            return request
        shape = _shape(request)
        if (uid, shape) in self._over:
            return None
        held = self._held.get(uid, _NOTHING)
        if over(rules, held, self._least_of(request, shape)):
            self._over.add((uid, shape))
            return None
        rule = rules.get("vram_mib")
        if rule is None or not request.gpus or request.vram_mib is not None:
            return request
        return _affordable(request, self._devices, int(rule.value) - held.vram_mib)

    def why(self, request: AnyRequest, name: str) -> str:
        """The cap that a request is over, in words; "" if it is within all of them.

        As in "alice may hold 2 GPUs at a time (policy.toml:7) and holds 2". ``name`` is its user's.
        """
        rules = self._allowance.rules(_uid(request))
        if not rules:
            return ""
        held = self._held.get(_uid(request), _NOTHING)
        field = over(rules, held, self._least_of(request, _shape(request)))
        if not field:
            return ""
        rule = rules[field]
        now = getattr(held, field)
        says = f"{name} may hold {_words(field, rule.value)} at a time ({rule.where})"
        return f"{says} and holds {_number(field, now)}" if now else f"{says}; this asks for more"

    def _least_of(self, request: AnyRequest, shape: _Shape) -> Taken:
        found = self._least.get(shape)
        if found is None:
            found = self._least[shape] = _least(request, self._devices)
        return found

    def take(self, request: AnyRequest, gpus: tuple[str, ...]) -> None:
        """The request was granted these GPUs, and what else it wants."""
        if self._allowance.rules(_uid(request)):
            vram_mib = _vram(gpus, request.vram_mib, self._sizes)
            self._add(request, Taken(len(gpus), vram_mib, request.slots.get(CPU, 0)))

    def keep(self, request: AnyRequest) -> None:
        """Keep what the request needs from its user's later ones: once for all that ask for the same."""
        uid, shape = _uid(request), _shape(request)
        if self._allowance.rules(uid) and (uid, shape) not in self._kept:
            self._kept.add((uid, shape))
            self._add(request, self._least_of(request, shape))

    def _add(self, request: AnyRequest, more: Taken) -> None:
        uid = _uid(request)
        self._held[uid] = _sum(self._held.get(uid, _NOTHING), more)


def over(rules: Mapping[str, Rule], held: Taken, more: Taken) -> str:
    """The first cap that would be exceeded, as a field of :class:`Taken`; "" for none.

    A cap of which the request wants nothing is never in its way, even if it is exceeded already.
    """
    for field, rule in rules.items():
        wanted = getattr(more, field)
        if wanted and getattr(held, field) + wanted > rule.value:
            return field
    return ""


def _least(request: AnyRequest, devices: tuple[Device, ...]) -> Taken:
    """The least that the request would take of its user's caps: the smallest of the GPUs that would do."""
    slots = request.slots.get(CPU, 0)
    if request.vram_mib is not None:
        return Taken(request.gpus, request.gpus * request.vram_mib, slots)
    sizes = sorted(device.total_mib for device in devices if is_eligible(request, device.uuid))
    return Taken(request.gpus, sum(sizes[: request.gpus]), slots)


def _affordable(request: _Request, devices: tuple[Device, ...], left_mib: int) -> _Request:
    """The request with only so many GPUs to choose from that the memory of any choice is within the cap.

    These are the smallest ones: as many as possible, so that the largest of them together are not too much.
    """
    pool = sorted(
        (device for device in devices if is_eligible(request, device.uuid)), key=lambda each: each.total_mib
    )
    sizes = [device.total_mib for device in pool]
    most = len(pool)
    while most > request.gpus and sum(sizes[most - request.gpus : most]) > left_mib:
        most -= 1
    if most == len(pool):
        return request
    return replace(request, gpu_choice=tuple(device.uuid for device in pool[:most]))


def check(
    policy: Policy, gids: Sequence[int], ticket: Ticket, devices: tuple[Device, ...] | None, name: str
) -> None:
    """Refuse what a user may never have, whatever others do. Raises NotAllowedError.

    ``name`` is the user's. ``devices`` None: nobody has looked; then nothing is said of whole GPUs' memory.
    """
    rule = rule_of(policy, ticket.uid, gids, "max_priority")
    if rule is not None and ticket.priority > rule.value:
        raise NotAllowedError(
            f"priority {ticket.priority} was asked for, but {name} may ask for at most {rule.value:.0f}",
            where=rule.where, hint=f"--priority {rule.value:.0f}, or ask the administrator",
        )  # fmt: skip
    least = _least(ticket, devices or ())
    rules = Allowance(policy, {ticket.uid: gids}).rules(ticket.uid)
    field = over(rules, _NOTHING, least)
    if field:
        rule = rules[field]
        wanted = getattr(least, field)
        raise NotAllowedError(
            f"{_words(field, wanted)} {'was' if wanted == 1 else 'were'} asked for, but {name}"
            f" may hold {_words(field, rule.value)} at a time",
            where=rule.where, hint="ask for less, or ask the administrator",
        )  # fmt: skip


def why(
    policy: Policy, gids: Sequence[int], ticket: Ticket, leases: Iterable[Lease],
    devices: tuple[Device, ...] | None, name: str,
) -> str:  # fmt: skip
    """As :meth:`Balance.why`, of one request beside these leases."""
    return Allowance(policy, {ticket.uid: gids}).balance(leases, devices).why(ticket, name)


def may_force(policy: Policy, gids: Sequence[int], ticket: Ticket, leases: Iterable[Lease]) -> bool:
    """Whether a request that has waited too long may run beside the holders: no GPUs, and within the caps."""
    return not ticket.gpus and not why(policy, gids, ticket, leases, None, "")


def too_many_waiting(policy: Policy, uid: int, gids: Sequence[int], waiting: int, name: str) -> str:
    """Why a user with so many requests in the queue may not add one, in words; "" if it may."""
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


def _number(field: str, value: int) -> str:
    return short_mib(value) if field == "vram_mib" else str(value)


def _sizes(devices: tuple[Device, ...] | None) -> dict[str, int]:
    return {device.uuid: device.total_mib for device in devices or ()}


def _vram(gpus: Sequence[str], vram_mib: int | None, sizes: Mapping[str, int]) -> int:
    if vram_mib is not None:
        return len(gpus) * vram_mib
    return sum(sizes.get(uuid, 0) for uuid in gpus)


def _sum(one: Taken, other: Taken) -> Taken:
    return Taken(one.gpus + other.gpus, one.vram_mib + other.vram_mib, one.slots + other.slots)


def _shape(request: AnyRequest) -> _Shape:
    """What of a request caps depend on, beside its user."""
    return request.gpus, request.vram_mib, request.gpu_choice, request.slots.get(CPU, 0)


def _uid(request: AnyRequest) -> int:
    uid: int = request.uid  # type: ignore[union-attr]  # the broker's requests are tickets
    return uid


_NOTHING = Taken()
