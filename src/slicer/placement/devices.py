"""The memory of one GPU: what is used, reserved and free. Pure.

Jobs that declared their memory share a GPU. A job that declared none holds it whole.

    headroom = total - max(used, reserved)
    reserved = sum over its leases of (the declaration; once the peak is more, peak x (1 + spike buffer))
               + foreign peaks x (1 + spike buffer)
"""

from __future__ import annotations

from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicer.model import Lease
    from slicer.placement.settings import Policy


@record
class Device:
    """One GPU as a decision sees it: the data of the driver and /proc at one moment."""

    uuid: str
    total_mib: int  # 0: unknown, the memory is shared with the CPU
    used_mib: int  # by all processes, according to the driver
    used_by: dict[str, int]  # MiB now, by the job of a lease
    foreign_mib: int  # by foreign processes, each at its highest use
    foreign_pids: tuple[int, ...]
    out: str = ""  # why it is out of service, and gets no more jobs; "" if it is not


def emptied(devices: tuple[Device, ...] | None) -> tuple[Device, ...] | None:
    """The same GPUs, unused by anybody."""
    return devices and tuple(Device(each.uuid, each.total_mib, 0, {}, 0, ()) for each in devices)


def without(device: Device, jobs: set[str]) -> Device:
    """The GPU once those jobs have ended."""
    gone = {job: mib for job, mib in device.used_by.items() if job in jobs}
    if not gone:
        return device
    kept = {job: mib for job, mib in device.used_by.items() if job not in jobs}
    return replace(device, used_mib=max(0, device.used_mib - sum(gone.values())), used_by=kept)


def reserved_mib(device: Device, leases: Iterable[Lease], policy: Policy) -> int:
    """The MiB reserved on the GPU for leases and foreign use. A lease without ``vram`` takes all of it."""
    total = buffered(device.foreign_mib, policy)
    for lease in leases:
        if device.uuid not in lease.gpus:
            continue
        if lease.vram_mib is None:
            return max(device.total_mib, total)
        total += budget_mib(lease, device, policy)
    return total


def budget_mib(lease: Lease, device: Device, policy: Policy) -> int:
    """The MiB that a sharing lease counts for: its declaration, or more once it has used more."""
    seen = device.used_by.get(lease.job, 0)
    index = lease.gpus.index(device.uuid)
    if index < len(lease.vram_peak_mib):
        seen = max(seen, lease.vram_peak_mib[index])
    declared = lease.vram_mib or 0
    return declared if seen <= declared else buffered(seen, policy)


def buffered(mib: int, policy: Policy) -> int:
    """A peak with the spike buffer, rounded up."""
    # In millionths, because 200 x 1.1 is more than 220 in floating point.
    return -(-mib * round(1_000_000 * (1 + policy.spike_buffer)) // 1_000_000)


def headroom(device: Device, leases: Iterable[Lease], policy: Policy) -> int | None:
    """The MiB available to one more sharer (may be negative); None: it is held whole, or out of service."""
    here = [lease for lease in leases if device.uuid in lease.gpus]
    if device.out or any(lease.vram_mib is None for lease in here):
        return None
    return device.total_mib - max(device.used_mib, reserved_mib(device, here, policy))


def is_idle(device: Device, leases: Iterable[Lease], policy: Policy) -> bool:
    """Whether nobody uses the GPU, so that it could be taken whole."""
    is_free = not any(device.uuid in lease.gpus for lease in leases) and not device.out
    return is_free and not is_used_by_others(device, policy)


def is_used_by_others(device: Device, policy: Policy) -> bool:
    """Whether foreign processes use too much of the GPU for it to count as idle."""
    return max(device.foreign_mib, unexplained_mib(device)) > policy.idle_threshold_mib


def unexplained_mib(device: Device) -> int:
    """The MiB in use by processes of no lease."""
    return device.used_mib - sum(device.used_by.values())
