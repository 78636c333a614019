"""What heeds IOWeight here: the disks' schedulers, or io.cost; and whether systemd-oomd runs."""

from __future__ import annotations

from slicer.backend import acting
from slicer.doctor.facts.files import kernel_text, names_in
from slicer.record import record


@record
class Disk:
    """A block device with a queue of its own."""

    name: str
    number: str  # major:minor, as io.cost.qos wants it
    scheduler: str  # the active one
    offered: tuple[str, ...]


@record
class DiskFacts:
    """``weighs``: some disk heeds weights."""

    disks: tuple[Disk, ...]
    weighs: bool
    has_io_cost: bool  # the kernel offers io.cost at the root of the hierarchy
    oomd_runs: bool


def gather() -> DiskFacts:
    """Reads /sys."""
    from slicer.kernel import cgroup

    found = (_disk(name) for name in names_in("/sys/block"))
    return DiskFacts(
        disks=tuple(disk for disk in found if disk is not None),
        weighs=acting.io_is_weighed(),
        has_io_cost="io.cost.qos" in names_in(cgroup.path_of("")),
        oomd_runs=acting.oomd_runs(),
    )


def _disk(name: str) -> Disk | None:
    words = kernel_text(f"/sys/block/{name}/queue/scheduler").split()
    if name.startswith(("loop", "ram", "zram")) or not words:
        return None
    active = next((word.strip("[]") for word in words if word.startswith("[")), "none")
    offered = tuple(word.strip("[]") for word in words)
    return Disk(name, kernel_text(f"/sys/block/{name}/dev"), active, offered)
