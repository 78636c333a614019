"""The resources of outer jobs, inside which this process runs. Pure."""

from __future__ import annotations

from slicer.model import LEASE_VARIABLE, Demand, Lease, is_in_job
from slicer.record import fields_for, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping



@record
class OuterJobs:
    """The leases of the outer jobs, outermost first.

    ``foreign_gpu``: a wrapper other than slicer holds the GPU lock for us (GPU_LOCK_HELD).
    """

    leases: tuple[Lease, ...]
    foreign_gpu: bool

    @property
    def gpus(self) -> tuple[str, ...]:
        return _gpus_of(self.leases)

    def gpus_for(self, vram_mib: int | None) -> tuple[str, ...]:
        """The held GPUs that serve a job which wants ``vram_mib`` of each (None: whole GPUs)."""
        return _gpus_of(
            lease
            for lease in self.leases
            if lease.vram_mib is None or (vram_mib is not None and vram_mib <= lease.vram_mib)
        )

    @property
    def slots(self) -> dict[str, int]:
        if not self.leases:
            return {}
        from slicer.placement.capacity import held_slots

        return held_slots(self.leases)


def _gpus_of(leases: Iterable[Lease]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(gpu for lease in leases for gpu in lease.gpus))


def may_be_nested(environ: Mapping[str, str], own_cgroup: str) -> bool:
    """Whether there may be outer jobs, so that reading the ledger is worthwhile."""
    return bool(_marked(environ)) or "/slicer-" in own_cgroup


def outer_jobs(
    environ: Mapping[str, str], own_cgroup: str, ancestors: frozenset[int], leases: tuple[Lease, ...],
    known: Collection[str] = (),
) -> OuterJobs:  # fmt: skip
    """The outer jobs among the live ``leases``.

    They are found by their ids in the environment, or by the cgroup if the environment was cleared. Without
    scopes they are found by a keeper among our ancestors. GPU_LOCK_HELD claims nothing where slicer may have
    set it: for a job with GPUs, or one that is over. ``known``: the ids of leases that this program holds.
    """
    jobs = _marked(environ)
    inside = [
        lease
        for lease in leases
        if lease.job in jobs
        or is_in_job(own_cgroup, lease)
        or (lease.keeper and lease.keeper in ancestors)
        or lease.job in known
    ]
    found = tuple(sorted(inside, key=lambda lease: lease.since_s))
    is_foreign = set(jobs) <= {lease.job for lease in found if not lease.gpus}
    claims = is_foreign and _is_set(environ, "GPU_LOCK_HELD") and not environ.get("SLICER_SIM")
    return OuterJobs(found, claims and not any(lease.gpus for lease in found))


def _marked(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of the outer jobs in the environment, outermost first."""
    return tuple(job for job in environ.get(LEASE_VARIABLE, "").split(",") if job)


def missing(wanted: Demand, held: OuterJobs, skip_gpu_lock: bool) -> Demand:
    """The demand beyond the held resources."""
    is_covered = skip_gpu_lock or held.foreign_gpu
    gpus = 0 if is_covered else max(0, wanted.gpus - len(held.gpus_for(wanted.vram_mib)))
    there = held.slots
    more = {name: count - there.get(name, 0) for name, count in wanted.slots.items()}
    slots = {name: count for name, count in more.items() if count > 0}
    return Demand(**{**fields_for(Demand, wanted), "gpus": gpus, "slots": slots})


def skips_gpu_lock(environ: Mapping[str, str]) -> bool:
    """Whether the user declares that the job does not use the GPU."""
    return _is_set(environ, "SLICER_SKIP_GPU_LOCK") or _is_set(environ, "PSRUN_SKIP_GPU_LOCK")


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "0") not in ("", "0")
