"""What this process already holds through the jobs that it runs inside of. Pure."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.model import Lease


@record
class OuterJobs:
    """The leases of the jobs around us, outermost first, and whether a foreign wrapper holds the GPU lock
    (GPU_LOCK_HELD).
    """

    leases: tuple[Lease, ...]
    foreign_gpu: bool

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(gpu for lease in self.leases for gpu in lease.gpus))

    def gpus_for(self, vram_mib: int | None) -> tuple[str, ...]:
        """The GPUs held that serve a job which wants so much of each (None: the whole of them)."""
        covering = [
            lease
            for lease in self.leases
            if lease.vram_mib is None or (vram_mib is not None and vram_mib <= lease.vram_mib)
        ]
        return tuple(dict.fromkeys(gpu for lease in covering for gpu in lease.gpus))

    @property
    def cpu_slots(self) -> int:
        return sum(lease.cpu_slots for lease in self.leases)


def marked(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The jobs that the environment says we are inside of, outermost first."""
    return tuple(job for job in environ.get("SLICER_LEASE", "").split(",") if job)


def may_be_nested(environ: Mapping[str, str], own_cgroup: str) -> bool:
    """Whether it is worth reading the ledger for jobs around us."""
    return bool(marked(environ)) or "/slicer-" in own_cgroup


def around(
    environ: Mapping[str, str], own_cgroup: str, ancestors: frozenset[int], leases: tuple[Lease, ...]
) -> OuterJobs:
    """The live leases of the jobs around us: by the marker, by the cgroup (the environment may have been
    scrubbed), and without scopes by the keeper among our ancestors.
    """
    jobs = marked(environ)
    inside = [
        lease
        for lease in leases
        if lease.job in jobs
        or (lease.cgroup and f"{own_cgroup}/".startswith(f"{lease.cgroup}/"))
        or (lease.keeper and lease.keeper in ancestors)
    ]
    found = tuple(sorted(inside, key=lambda lease: lease.since_s))
    claims = environ.get("GPU_LOCK_HELD", "0") not in ("", "0") and not environ.get("SLICER_SIM")
    foreign = claims and not any(lease.gpus for lease in found)
    return OuterJobs(found, foreign)


def missing(
    gpus: int, vram_mib: int | None, cpu_slots: int, held: OuterJobs, skip_gpu_lock: bool
) -> tuple[int, int]:
    """The GPUs and CPU slots that are needed beyond what is held; ``vram_mib`` as in a profile."""
    covered = skip_gpu_lock or held.foreign_gpu
    more_gpus = 0 if covered else max(0, gpus - len(held.gpus_for(vram_mib)))
    return more_gpus, max(0, cpu_slots - held.cpu_slots)


def skips_gpu_lock(environ: Mapping[str, str]) -> bool:
    """The escape hatch for jobs that do not touch the GPU: SLICER_SKIP_GPU_LOCK or PSRUN_SKIP_GPU_LOCK."""
    return any(
        environ.get(name, "0") not in ("", "0") for name in ("SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK")
    )
