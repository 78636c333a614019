"""Made-up leases, and processes and memory on two GPUs."""

from __future__ import annotations

from typing import Any

from slicer.gpu.attribution import Owners
from slicer.gpu.snapshot import GpuSnapshot, ProcessOnGpu
from slicer.model import GpuMemory, Lease
from tests.unit.made_up import lease

G0, G1 = "GPU-0", "GPU-1"
TOTAL = 80_000


def scope(job: str, *gpus: str, **fields: Any) -> Lease:
    """A lease under systemd."""
    return lease(
        job, gpus=gpus, cgroup=f"/gpu.slice/slicer-{job}.scope", unit=f"slicer-{job}.scope", **fields
    )


def loose(job: str, *gpus: str, **fields: Any) -> Lease:
    """A lease without a cgroup: of the plain backend, or of a program that took it itself."""
    return lease(job, gpus=gpus, cgroup="", unit="", backend="plain", **fields)


def seen(pid: int = 100, gpu: str = G0, used: int | None = 1000, **fields: Any) -> ProcessOnGpu:
    values = {
        "started": 5000,
        "name": "python",
        "cgroup": "/user.slice/user-1000.slice/session-1.scope",
        "jobs": (),
        "above": (),
        **fields,
    }
    return ProcessOnGpu(gpu_uuid=gpu, pid=pid, used_mib=used, **values)


def snapshot(*processes: ProcessOnGpu, used: dict[str, int] | None = None, gpus: int = 2) -> GpuSnapshot:
    """What ``processes`` add up to, unless ``used`` says otherwise."""
    memory = []
    for uuid in (G0, G1)[:gpus]:
        mib = sum(each.used_mib or 0 for each in processes if each.gpu_uuid == uuid)
        memory.append(GpuMemory(uuid, TOTAL, (used or {}).get(uuid, mib)))
    return GpuSnapshot(tuple(memory), processes)


def owner(process: ProcessOnGpu, *leases: Lease) -> str:
    found = Owners(leases).of(process)
    return found.job if found else ""


A = scope("aaa", G0)
B = scope("bbb", G0)
PLAIN = loose("ppp", G0, pid=50, keeper=51)
IN_A = "/gpu.slice/slicer-aaa.scope"
