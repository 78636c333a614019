"""The resources left on one machine: the arithmetic of :mod:`slicer.placement.decision`. Pure.

Jobs that declared their memory share a GPU. A job that declared none holds it whole.

    headroom = total - max(used, reserved)
    reserved = sum over its leases of (the declaration; once the peak is more, peak x (1 + spike buffer))
               + foreign peaks x (1 + spike buffer)
"""

from __future__ import annotations

from slicer.placement.policy import Policy as Policy
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slicer.model import Lease, Request

NEVER = float("inf")


@record
class Device:
    """One GPU as a decision sees it: the data of the driver and /proc at one moment."""

    uuid: str
    total_mib: int  # 0: unknown, the memory is shared with the CPU
    used_mib: int  # by all processes, according to the driver
    used_by: dict[str, int]  # MiB now, by the job of a lease
    foreign_mib: int  # by foreign processes, each at its highest use
    foreign_pids: tuple[int, ...]


def reserved_mib(device: Device, leases: Iterable[Lease], policy: Policy) -> int:
    """The MiB reserved on the GPU for leases and foreign use. A lease without ``vram`` takes all of it."""
    total = _buffered(device.foreign_mib, policy)
    for lease in leases:
        if device.uuid not in lease.gpus:
            continue
        if lease.vram_mib is None:
            return max(device.total_mib, total)
        total += _budget(lease, device, policy)
    return total


def _budget(lease: Lease, device: Device, policy: Policy) -> int:
    """The MiB that a sharing lease counts for: its declaration, or more once it has used more."""
    seen = device.used_by.get(lease.job, 0)
    index = lease.gpus.index(device.uuid)
    if index < len(lease.vram_peak_mib):
        seen = max(seen, lease.vram_peak_mib[index])
    declared = lease.vram_mib or 0
    return declared if seen <= declared else _buffered(seen, policy)


def _buffered(mib: int, policy: Policy) -> int:
    # In millionths, because 200 x 1.1 is more than 220 in floating point.
    return -(-mib * round(1_000_000 * (1 + policy.spike_buffer)) // 1_000_000)


def headroom(device: Device, leases: Iterable[Lease], policy: Policy) -> int | None:
    """The MiB available to one more sharer (may be negative); None: the whole GPU is held."""
    here = [lease for lease in leases if device.uuid in lease.gpus]
    if any(lease.vram_mib is None for lease in here):
        return None
    return device.total_mib - max(device.used_mib, reserved_mib(device, here, policy))


def is_idle(device: Device, leases: Iterable[Lease], policy: Policy) -> bool:
    """Whether nobody uses the GPU, so that it could be taken whole."""
    return not any(device.uuid in lease.gpus for lease in leases) and not is_used_by_others(device, policy)


def is_used_by_others(device: Device, policy: Policy) -> bool:
    """Whether foreign processes use too much of the GPU for it to count as idle."""
    return max(device.foreign_mib, _unexplained_mib(device)) > policy.idle_threshold_mib


def _unexplained_mib(device: Device) -> int:
    return device.used_mib - sum(device.used_by.values())


class _Gpu:
    """The rest of one GPU during a decision."""

    def __init__(self, index: int, device: Device, leases: list[Lease], policy: Policy) -> None:
        self.uuid = device.uuid
        self.index = index  # in PCI order
        self.total_mib = device.total_mib
        self.foreign_mib = max(_buffered(device.foreign_mib, policy), _unexplained_mib(device))
        self.is_foreign = is_used_by_others(device, policy)
        self.is_idle = not leases and not self.is_foreign
        self.free_mib = headroom(device, leases, policy) if device.total_mib else None  # None: no sharing
        self.newest_s = max((lease.since_s for lease in leases), default=-NEVER)
        # When the last of its leases should end. Not the time left: that is 0 for every overdue lease, so the
        # order of the GPUs would change by itself.
        self.end_s = max(
            (NEVER if lease.expect_s is None else lease.since_s + lease.expect_s for lease in leases),
            default=-NEVER,
        )

    def lacks(self, need: int | None) -> bool:
        """Whether some use has to end before ``need`` MiB (None: the whole GPU) are free."""
        if need is None:
            return self.newest_s > -NEVER or self.is_foreign
        return self.free_mib is None or self.free_mib < need

    def is_taken_by_foreign(self, need: int | None) -> bool:
        """Whether foreign processes are in the way of ``need`` MiB (None: of the whole GPU)."""
        return self.is_foreign if need is None else self.total_mib - self.foreign_mib < need

    def is_stuck(self, need: int | None) -> bool:
        """Whether foreign processes take it, and no lease is left whose end could free it."""
        return self.is_taken_by_foreign(need) and self.newest_s == -NEVER


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
        by_uuid: dict[str, list[Lease]] = {device.uuid: [] for device in devices or ()}
        for lease in leases:
            for uuid in lease.gpus:
                if uuid in by_uuid:
                    by_uuid[uuid].append(lease)
        self._gpus = {
            device.uuid: _Gpu(index, device, by_uuid[device.uuid], policy)
            for index, device in enumerate(devices or ())
        }
        self._by_index = list(self._gpus.values())
        self._unreserved = dict(self._gpus)
        self._idle = {uuid: gpu for uuid, gpu in self._gpus.items() if gpu.is_idle}
        # In increasing order: the n-th last entry shows at once whether n GPUs have enough.
        self._free = sorted((gpu.free_mib, gpu.index) for gpu in self._by_index if gpu.free_mib is not None)
        self._update()

    def _update(self) -> None:
        self.is_exhausted = (  # nothing can be granted to any request
            not self._idle
            and (not self._free or self._free[-1][0] <= 0)
            and all(held >= self._limits[name] for name, held in self._slots.items())
        )

    def fit(self, request: Request) -> tuple[str, ...] | None:
        """The GPUs for the request (none for a CPU job), or None if it does not fit."""
        if not self.has_slots(request):
            return None
        return self.fit_gpus(request) if request.gpus else ()

    def has_slots(self, request: Request) -> bool:
        """Whether the slots suffice for the request."""
        return not request.slots or not self.missing_slot(request)

    def missing_slot(self, request: Request) -> str:
        """The first slot, by name, that does not suffice for the request; "" for none."""
        missing = ""
        for name, wanted in request.slots.items():
            if self._slots[name] + wanted > min(request.slot_limits[name], self._limits[name]):
                missing = min(missing or name, name)
        return missing

    def fit_gpus(self, request: Request) -> tuple[str, ...] | None:
        """As :meth:`fit`, without slots."""
        wanted = request.gpus
        if request.vram_mib is None:
            if len(self._idle) < wanted:
                return None
            found = _eligible(request, self._idle)
            return tuple(gpu.uuid for gpu in found[:wanted]) if len(found) >= wanted else None
        need = request.vram_mib + request.margin_mib  # need_mib without a call, for thousands of requests
        if len(self._free) < wanted or self._free[-wanted][0] < need:
            return None
        if request.gpu_choice:
            able = [gpu for gpu in _eligible(request, self._gpus) if not gpu.lacks(need)]
            tightest = sorted((gpu.free_mib or 0, gpu.index) for gpu in able)[:wanted]
        else:
            tightest = [each for each in self._free if each[0] >= need][:wanted]
        if len(tightest) < wanted:
            return None
        return tuple(self._by_index[index].uuid for index in sorted(index for _, index in tightest))

    def take(self, request: Request, gpus: tuple[str, ...]) -> None:
        """Grant the request the resources that :meth:`fit` found."""
        self._add_slots(request.slots)
        for uuid in gpus:
            gpu = self._gpus[uuid]
            self._shrink(gpu, request.vram_mib)
            gpu.newest_s, gpu.end_s = self._now_s, NEVER
        self._update()

    def take_slots(self, slots: Mapping[str, int]) -> None:
        """Grant slots only."""
        self._add_slots(slots)
        self._update()

    def _add_slots(self, slots: Mapping[str, int]) -> None:
        for name, count in slots.items():
            if name in self._slots:  # otherwise no request wants any
                self._slots[name] += count

    def _shrink(self, gpu: _Gpu, by_mib: int | None) -> None:
        """Take this number of MiB of the GPU; None: all of it."""
        before_mib = gpu.free_mib
        if before_mib is not None:
            self._free.remove((before_mib, gpu.index))
        self._idle.pop(gpu.uuid, None)
        gpu.free_mib = None
        if before_mib is not None and by_mib is not None:
            gpu.free_mib = before_mib - by_mib
            self._free.append((gpu.free_mib, gpu.index))
            self._free.sort()

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
        kept = self._most_promising(request) if wants_gpus else []
        if not slots and not kept:
            return False
        need = request.need_mib
        if request.gpus:
            self._gpus_have_turn = len(kept) < request.gpus or any(gpu.is_stuck(need) for gpu in kept)
        else:
            self._slots_in_turn.update(request.slots)
        for name in slots:
            self._reserve_slots(name, request)
        for gpu in kept:
            del self._unreserved[gpu.uuid]
            self._shrink(gpu, None if gpu.lacks(need) else need)
            self.reserved_for["gpu", gpu.uuid] = request.job
        self._update()
        return True

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

    def _most_promising(self, request: Request) -> list[_Gpu]:
        """The GPUs to keep for the request. Every decision chooses the same ones, so that they accumulate.

        First come GPUs on which the request fits already, then GPUs without a new grant since the reservation
        began, then those whose last grant is oldest. So no stream of small jobs can move the reservation from
        GPU to GPU, whatever durations they declare.
        """
        need = request.need_mib
        began_s = request.arrived_s + self._policy.reserve_after_s  # or later, when it got its turn

        def rank(gpu: _Gpu) -> tuple[bool, bool, float, float, float, int]:
            lacks = gpu.lacks(need)
            if not lacks:
                return gpu.is_taken_by_foreign(need), lacks, 0, 0, 0, gpu.index
            newest_s = gpu.newest_s if gpu.newest_s > began_s else -NEVER
            emptiest = NEVER if need is None or gpu.free_mib is None else -gpu.free_mib
            return gpu.is_taken_by_foreign(need), lacks, newest_s, emptiest, gpu.end_s, gpu.index

        able = [gpu for gpu in _eligible(request, self._unreserved) if need is None or gpu.total_mib >= need]
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


def rank_of(request: Request) -> tuple[int, float, str]:
    """The sort key of a request among others: by priority (highest first), then arrival, then job."""
    return -request.priority, request.arrived_s, request.job


def shape_of(request: Request) -> tuple[object, ...]:
    """The kind of a request: equal for all that request the same."""
    return (
        request.gpus, request.gpu_choice, request.vram_mib, request.margin_mib,
        *sorted(request.slots.items()), *sorted(request.slot_limits.items()),
    )  # fmt: skip


def _eligible(request: Request, gpus: dict[str, _Gpu]) -> list[_Gpu]:
    """The GPUs that the request may use, in PCI order. Its choice is mostly short, and the GPUs many."""
    if not request.gpu_choice:
        return list(gpus.values())
    found = {gpus[uuid].index: gpus[uuid] for uuid in request.gpu_choice if uuid in gpus}
    return [found[index] for index in sorted(found)]


def is_eligible(request: Request, uuid: str) -> bool:
    """Whether the request may use the GPU."""
    return not request.gpu_choice or uuid in request.gpu_choice
