"""The resources left on one machine: the arithmetic of :mod:`slicer.placement.decision`. Pure."""

from __future__ import annotations

from slicer.placement.order import overdue_after_s
from slicer.placement.rooms import GpuRoom, Pool, StrictTurn
from slicer.placement.settings import NEVER, Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slicer.model import Lease, Request
    from slicer.placement.devices import Device

_OPEN_ENDED_S = 24 * 3600.0  # a wait, before which nothing is kept on a GPU with a lease of unknown length


class Capacity:
    """The resources left while a decision goes through the queue. They only shrink.

    Most requests of a long queue are blocked. To see that takes constant time.
    """

    def __init__(
        self, devices: tuple[Device, ...] | None, leases: tuple[Lease, ...], policy: Policy, now_s: float,
        limits: Mapping[str, int],
    ) -> None:  # fmt: skip
        """``limits``: for each slot that a request names, how many there are (see :func:`limits_of`)."""
        self.sees_gpus = devices is not None
        self.reserved_for: dict[tuple[str, str], str] = {}  # jobs by ("gpu", UUID) and ("slot", name)
        self._policy = policy
        self._now_s = now_s
        self._limits = dict(limits)
        self._slots = dict.fromkeys(limits, 0)  # held, granted or reserved
        self._reserved_slots = dict.fromkeys(limits, 0)
        self._gpus_have_turn = True  # whether a request with GPUs may still reserve
        self._slots_in_turn: set[str] = set()  # slots for which a request without GPUs has a reservation
        for lease in leases:
            self._add_slots(lease.slots)
        in_service = [device for device in devices or () if not device.out]
        in_service.sort(key=lambda device: device.uuid in policy.suspects)
        by_uuid: dict[str, list[Lease]] = {device.uuid: [] for device in in_service}
        for lease in leases:
            for uuid in lease.gpus:
                if uuid in by_uuid:
                    by_uuid[uuid].append(lease)
        self._gpus = {
            device.uuid: GpuRoom(index, device, by_uuid[device.uuid], policy, now_s)
            for index, device in enumerate(in_service)
        }
        self._by_index = list(self._gpus.values())
        self._unreserved = dict(self._gpus)
        self._until_s = NEVER  # when the first reservation should begin to run
        self._all = Pool(self._by_index)  # for requests that should end by then
        self._spare = self._all  # for the others
        self._update()

    def _update(self) -> None:
        self.is_exhausted = (  # nothing can be granted to any request
            not self._all.idle
            and (not self._all.free or self._all.free[-1][0] <= 0)
            and all(held >= self._limits[name] for name, held in self._slots.items())
        )

    def fit(self, request: Request) -> tuple[str, ...] | None:
        """The GPUs for the request (none for a CPU job), or None if it does not fit."""
        if request.slots and self.missing_slot(request):
            return None
        return self.fit_gpus(request) if request.gpus else ()

    def missing_slot(self, request: Request) -> str:
        """The first slot, by name, that does not suffice for the request; "" for none."""
        missing = ""
        for name, wanted in request.slots.items():
            if self._slots[name] + wanted > min(request.slot_limits[name], self._limits[name]):
                missing = min(missing or name, name)
        return missing

    def _pool(self, request: Request) -> Pool:
        if self._spare is self._all or not self._ends_in_time(request):
            return self._spare
        return self._all

    def _ends_in_time(self, request: Request) -> bool:
        return request.est_s is not None and self._now_s + request.est_s < self._until_s

    def fit_gpus(self, request: Request) -> tuple[str, ...] | None:
        """As :meth:`fit`, without slots."""
        wanted, pool = request.gpus, self._pool(request)
        if request.vram_mib is None:
            if len(pool.idle) < wanted:
                return None
            found = _eligible(request, pool.idle)
            return tuple(gpu.uuid for gpu in found[:wanted]) if len(found) >= wanted else None
        need = request.vram_mib + request.margin_mib  # need_mib without a call, for thousands of requests
        if len(pool.free) < wanted or pool.free[-wanted][0] < need:
            return None
        tightest = [each for each in pool.free if each[0] >= need]
        if request.gpu_choice:
            able = {gpu.index for gpu in _eligible(request, self._gpus)}
            tightest = [each for each in tightest if each[1] in able]
        if len(tightest) < wanted:
            return None
        if self._policy.suspects:
            tightest.sort(key=lambda each: self._by_index[each[1]].uuid in self._policy.suspects)
        return tuple(self._by_index[index].uuid for index in sorted(index for _, index in tightest[:wanted]))

    def take(self, request: Request, gpus: tuple[str, ...]) -> None:
        """Grant the request the resources that :meth:`fit` found."""
        self._add_slots(request.slots)
        for uuid in gpus:
            gpu = self._gpus[uuid]
            before_mib = self._all.mib[gpu.index]
            left_mib = (
                None if request.vram_mib is None or before_mib is None else before_mib - request.vram_mib
            )
            self._all.set(gpu, left_mib)
            if self._spare is not self._all:
                spare_mib = self._spare.mib[gpu.index]
                if spare_mib is not None and not self._ends_in_time(request):
                    spare_mib -= request.vram_mib or spare_mib
                if left_mib is None or spare_mib is None:
                    self._spare.set(gpu, None)
                else:
                    self._spare.set(gpu, min(spare_mib, left_mib))
            gpu.take(request, left_mib, self._now_s)
        self._update()

    @property
    def keeps_gpus(self) -> bool:
        """Whether a request has a reservation of GPUs."""
        return self._spare is not self._all

    def is_overdue(self, request: Request) -> bool:
        """Whether the request may have a reservation."""
        waited_s = self._now_s - request.arrived_s
        return waited_s >= overdue_after_s(request, len(self._gpus), self._policy)

    def _add_slots(self, slots: Mapping[str, int]) -> None:
        for name, count in slots.items():
            if name in self._slots:  # otherwise no request wants any
                self._slots[name] += count

    def reserve(self, request: Request) -> bool:
        """Keep what the request needs from all requests behind it; returns whether it kept any.

        One request with GPUs has its turn at a time, and one without for each slot. A request that waits for
        processes of no lease passes its turn on, because these may stay for days. A request behind it does
        the same.
        """
        if request.gpus:
            if not self._gpus_have_turn:
                return False
        elif not self._slots_in_turn.isdisjoint(request.slots):
            return False
        slots = [name for name in request.slots if self._reserved_slots[name] < self._limits[name]]
        wants_gpus = request.gpus > 0 and bool(self._unreserved)
        if not (slots or wants_gpus) or not self._is_feasible(request):
            return False
        after_s = overdue_after_s(request, len(self._gpus), self._policy)
        strict_s = request.arrived_s + 3 * after_s
        turn = StrictTurn(request.arrived_s + after_s, strict_s) if self._now_s >= strict_s else None
        kept = self._most_promising(request, turn) if wants_gpus else []
        if not slots and not kept:
            return False
        need = request.need_mib
        if request.gpus:
            self._gpus_have_turn = len(kept) < request.gpus or any(gpu.is_stuck(need) for gpu in kept)
        else:
            self._slots_in_turn.update(request.slots)
        for name in slots:
            self._reserve_slots(name, request)
        if kept:
            self._keep(request, kept, request.arrived_s + 2 * after_s, turn)
        self._update()
        return True

    def _keep(
        self, request: Request, kept: list[GpuRoom], earliest_s: float, turn: StrictTurn | None
    ) -> None:
        """Keep these GPUs: requests that should end by the start of this one may still use all of them."""
        need = request.need_mib
        until_s = max(earliest_s, *(gpu.fits_at(need, self._now_s, turn) for gpu in kept))
        self._until_s = min(self._until_s, until_s)
        if self._spare is self._all:
            self._spare = Pool(self._by_index)
            for gpu in self._by_index:
                if gpu.uuid not in self._all.idle:
                    self._spare.set(gpu, self._all.mib[gpu.index])
        for gpu in kept:
            del self._unreserved[gpu.uuid]
            free_mib = self._all.mib[gpu.index]
            spare_mib = None
            if need is not None and free_mib is not None:
                spare_mib = free_mib - need if turn else gpu.spare_mib(need, self._until_s)
            self._spare.set(gpu, None if spare_mib is None or free_mib is None else min(spare_mib, free_mib))
            self.reserved_for["gpu", gpu.uuid] = request.job

    def _reserve_slots(self, name: str, request: Request) -> None:
        self._slots[name] += request.slots[name]
        self._reserved_slots[name] += request.slots[name]
        # A request that assumes more slots than this one would delay it for ever.
        self._limits[name] = min(self._limits[name], request.slot_limits[name])
        self.reserved_for.setdefault(("slot", name), request.job)

    def _is_feasible(self, request: Request) -> bool:
        """Whether waiting can help. A GPU may have disappeared since the request was made."""
        if too_many(request):
            return False
        need = request.need_mib
        if not request.gpu_choice and need is None:
            return request.gpus <= len(self._gpus)
        able = [gpu for gpu in _eligible(request, self._gpus) if need is None or gpu.total_mib >= need]
        return request.gpus <= len(able)

    def _most_promising(self, request: Request, turn: StrictTurn | None) -> list[GpuRoom]:
        """The GPUs to keep for the request: those that should have room for it first."""
        need, now_s = request.need_mib, self._now_s
        waited_s = now_s - request.arrived_s

        def rank(gpu: GpuRoom) -> tuple[bool, float, bool, float, int]:
            at_s = gpu.fits_at(need, now_s, turn)
            # A lease that is let in beside the need must not cost a GPU its place: the need still fits there.
            newest_s = gpu.newest_s if turn else 0
            return gpu.is_taken_by_foreign(need), at_s, gpu.lacks(need), newest_s, gpu.index

        able = [gpu for gpu in _eligible(request, self._unreserved) if need is None or gpu.total_mib >= need]
        if self._policy.reserve_after_s is None and waited_s < _OPEN_ENDED_S:
            able = [gpu for gpu in able if not gpu.is_open_ended]
            if len(able) < request.gpus:
                return []
        return sorted(able, key=rank)[: request.gpus]


def limits_of(requests: Iterable[Request]) -> dict[str, int]:
    """The number of slots of each requested name: the most that any request assumes."""
    found: dict[str, int] = {}
    # In a long queue many have the same (see slicer.ledger.tickets).
    for limits in {id(request.slot_limits): request.slot_limits for request in requests}.values():
        for name, limit in limits.items():
            found[name] = max(limit, found.get(name, 0))
    return found


def held_slots(leases: Iterable[Lease]) -> dict[str, int]:
    """The number of slots of each name that the leases hold together."""
    found: dict[str, int] = {}
    for lease in leases:
        for name, count in lease.slots.items():
            found[name] = found.get(name, 0) + count
    return found


def too_many(request: Request) -> str:
    """A slot of which the request wants more than exist; "" for none."""
    for name, wanted in request.slots.items():
        if wanted > request.slot_limits[name]:
            return name
    return ""


def shape_of(request: Request) -> tuple[object, ...]:
    """The kind of a request: equal for all that request the same."""
    return (
        request.gpus, request.gpu_choice, request.vram_mib, request.margin_mib,
        *sorted(request.slots.items()), *sorted(request.slot_limits.items()),
    )  # fmt: skip


def _eligible(request: Request, gpus: dict[str, GpuRoom]) -> list[GpuRoom]:
    """The GPUs that the request may use, in PCI order. Its choice is mostly short, and the GPUs many."""
    if not request.gpu_choice:
        return list(gpus.values())
    found = {gpus[uuid].index: gpus[uuid] for uuid in request.gpu_choice if uuid in gpus}
    return [found[index] for index in sorted(found)]


def is_eligible(request: Request, uuid: str) -> bool:
    """Whether the request may use the GPU."""
    return not request.gpu_choice or uuid in request.gpu_choice


def eligible(request: Request, devices: Iterable[Device] | None) -> list[Device]:
    """The GPUs that the request may use; none if they are unknown."""
    return [device for device in devices or () if is_eligible(request, device.uuid)]
