"""Made-up jobs, GPUs and statuses."""

from __future__ import annotations

from typing import Any

from slicer.cli.status_text import lines
from slicer.gpu import attribution
from slicer.gpu.snapshot import GpuSnapshot, ProcessOnGpu
from slicer.ledger.status import LedgerStatus, states, waits
from slicer.model import Gpu, GpuLoad, GpuMemory, Lease, Ticket
from slicer.placement.settings import Policy
from slicer.record import replace
from tests.unit import made_up

NOW_S = 1000.0
POLICY = Policy(reserve_after_s=300.0)
H100 = "NVIDIA H100 80GB HBM3"
A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"
GPUS = (
    Gpu(0, A, H100, 81559, 0),
    Gpu(1, B, H100, 81559, 1),
    Gpu(2, C, H100, 81559, 2),
)
TRAIN = made_up.lease(
    "3f2a9c01b7de", name="train", command="python train.py --epochs 90", pid=4211, keeper=4212, uid=0,
    unit="slicer-3f2a9c01b7de.scope", cgroup="/gpu.slice/slicer-3f2a9c01b7de.scope", gpus=(A, C),
    vram_peak_mib=(78000, 0), slots={"cpu": 1}, since_s=280.0, expect_s=900.0,
)  # fmt: skip
BACKUP = replace(
    TRAIN, job="9b1c22d0aa31", name="", command="tar cJf backup.txz /srv", pid=88123, uid=54321,
    manager="user", unit="slicer-9b1c22d0aa31.scope", cgroup="/user.slice/slicer-9b1c22d0aa31.scope", gpus=(),
    vram_peak_mib=(), slots={"cpu": 2}, since_s=990.0, expect_s=5.0,
)  # fmt: skip
LIGHT = replace(
    BACKUP, job="c0ffee112233", backend="plain", unit="", cgroup="", slots={}, since_s=999.7,
    expect_s=None, uid=0,
)  # fmt: skip
SERVE = made_up.lease(
    "5e72e0aa00bb", name="serve", pid=500, keeper=501, uid=0, cgroup="/gpu.slice/s.scope",
    unit="slicer-5e72e0aa00bb.scope", gpus=(B,), vram_mib=30 * 1024, vram_peak_mib=(31 * 1024,),
    since_s=940.0,
)  # fmt: skip
EVAL = made_up.ticket(
    "77aa00bb11cc", name="eval", command="python eval.py", uid=0, arrived_s=757.0, gpus=2, cpu_slots=1,
    expect_s=60.0,
)  # fmt: skip


def process(
    uuid: str, pid: int, used_mib: int | None, cgroup: str = "/other.scope", name: str = "python"
) -> ProcessOnGpu:
    return ProcessOnGpu(uuid, pid, used_mib, started=1, name=name, cgroup=cgroup, jobs=(), above=())


def snapshot(*processes: ProcessOnGpu, gpus: tuple[Gpu, ...] = GPUS, **extra_mib: int) -> GpuSnapshot:
    """The GPUs with these processes, and memory that none of them owns (by UUID without its prefix)."""

    def used(gpu: Gpu) -> int:
        own = sum(one.used_mib or 0 for one in processes if one.gpu_uuid == gpu.uuid)
        return own + extra_mib.get(gpu.uuid.removeprefix("GPU-"), 0)

    return GpuSnapshot(tuple(GpuMemory(gpu.uuid, gpu.memory_mib, used(gpu)) for gpu in gpus), processes)


def made(
    leases: tuple[Lease, ...] = (), tickets: tuple[Ticket, ...] = (), seen: GpuSnapshot | None = None,
    gpus: tuple[Gpu, ...] = GPUS, policy: Policy = POLICY, load: dict[str, GpuLoad] | None = None,
    **other: Any,
) -> LedgerStatus:  # fmt: skip
    """A status worked out as the real one is. ``seen`` None: the driver does not answer."""
    devices = attribution.devices(seen, leases, {}) if seen else None
    values: dict[str, Any] = {
        "directory": "/run/slicer", "no_gpus": "", "slot_limits": {"cpu": 4}, "plain_lock": None,
        "now_s": NOW_S,
    }  # fmt: skip
    return LedgerStatus(
        leases=leases,
        tickets=tickets,
        waits=waits(tickets, devices, leases, policy, NOW_S),
        gpus=states(gpus, devices, seen, leases, policy, {}, load or {}),
        **{**values, **other},
    )


IN_TRAIN = TRAIN.cgroup + "/inner"
FULL = made(
    (TRAIN, BACKUP, LIGHT),
    (EVAL,),
    snapshot(process(A, 4213, 77000, IN_TRAIN), process(C, 4213, 400, IN_TRAIN), process(B, 99, 2048)),
)
IDLE = made(gpus=(), directory="/tmp/state", slot_limits={"cpu": 3}, no_gpus="there is no NVIDIA driver")


def text(status: LedgerStatus) -> str:
    return "".join(f"{line.text}\n" for line in lines(status))


def row_of(shown: str, word: str) -> str:
    return next(row for row in shown.splitlines() if word in row)
