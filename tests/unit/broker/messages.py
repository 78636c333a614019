"""One good message of each kind, for tests."""

from __future__ import annotations

import binascii
from typing import Any

from slicer.broker.protocol import messages as m
from slicer.broker.protocol.wire import GetInfo, GetInterfaceDescription
from slicer.model import Busy, Lease, OutOfService, Ticket
from slicer.outcome.series import GpuSeries, Series, encode

JOB = "0123456789ab"
OTHER = "ba9876543210"
UNIT = f"slicer-{JOB}.scope"
BOOT = "0b6f6b0c-1111-2222-3333-444455556666"
GPU = "GPU-11111111-2222-3333-4444-555555555555"

LEASE = Lease(
    job=JOB, name="train", command="python train.py --name 'öl'", pid=4242, pid_start=99, keeper=4243,
    boot_id=BOOT, uid=1001, backend="systemd", manager="system", unit=UNIT,
    cgroup=f"/gpu.slice/gpu-1001.slice/{UNIT}", gpus=(GPU,), vram_mib=None, vram_peak_mib=(),
    slots={"cpu": 2}, priority=-3, forced=0, since_s=12.25, expect_s=None, profile="gpu", gpu_indices=(1,),
)  # fmt: skip
TICKET = Ticket(
    job=OTHER, name="eval", command="", pid=77, pid_start=1, boot_id=BOOT, uid=1002, inside=(JOB,),
    priority=100, arrived_s=1.5, gpus=1, gpu_choice=(GPU,), vram_mib=8192, margin_mib=512,
    slots={"license-matlab": 1}, slot_limits={"license-matlab": 2}, expect_s=60.0, est_s=90.0,
    est_from="runs",
)  # fmt: skip
SERIES = binascii.b2a_base64(
    encode(
        Series(
            1.7e9, 2.0, (1.5,), (100.0,), (0.0,), (None,), (0.5,), (0.0,), (None,),
            (GpuSeries((9.0,), (30.0,)),),
        )
    ),
    newline=False,
).decode()
BUSY = Busy("gpu", (LEASE,), 2, (GPU,), "", 0, "")

CALLS: tuple[Any, ...] = (
    m.Acquire(
        job=JOB, name="train", command="python train.py", profile="gpu", binding="scope", gpus=1,
        gpu_choice=("0", "GPU-1111"), vram_mib=None, margin_mib=0, slots={"cpu": 1}, slot_limits={},
        priority=-100, expect_s=1.0, ahead_of="", wait=True, max_wait_s=None, runs_anyway=False,
    ),
    m.Start(
        JOB, "gpu", "train", (("CPUQuota", "200%"), ("MemoryMax", "4G")), False, 4711, 12345, "on",
        ("/dev/nvidia-modeset",),
    ),
    m.Release(JOB),
    m.Finished(JOB, "oom-kill", 137, 1.5, 0.0, None, 1 << 33, (8000,)),
    m.Preview(2, (), 4096, 512, {}, 0, {}),
    m.Status(),
    m.Stop(JOB), m.Freeze(JOB), m.Thaw(JOB),
    m.Set(JOB, (("CPUWeight", "50"),)),
    m.Usage(1.7e9, "group"),
    m.Look(),
    m.Sampled(JOB, SERIES),
    m.Reserve(2, ("0", GPU), 1.7e9, 1.8e9, 1001), m.Unreserve(JOB),
    m.SetService((GPU, "1"), True, "fell off the bus"), m.SetService((GPU,), False),
    m.Detach(JOB, "train", 4711, 12345),
    GetInfo(), GetInterfaceDescription("io.slicer.Broker"),
)  # fmt: skip
REPLIES: tuple[tuple[type, Any], ...] = (
    (m.Acquire, m.Waiting(JOB, BUSY, None, "alice may hold 2 GPUs")),
    (m.Acquire, m.Granted(LEASE, 0.25)),
    (m.Start, m.StartedScope(UNIT, LEASE.cgroup, ("CPUQuota", "DevicePolicy"), True, "")),
    (m.Release, m.Done()),
    (m.Preview, m.Previewed((GPU,), None, "")),
    (m.Preview, m.Previewed((), BUSY, "why")),
    (m.Look, m.Seen(
        (m.GpuNow(0, GPU, "H100", 81559, 81000, 512, None),), (m.UseNow(GPU, 4711, JOB, LEASE.cgroup, 500),),
    )),
    (m.Look, m.Seen(
        (m.GpuNow(0, GPU, "H100", 81559, 81000, 512, 93, 64, 412, 700),),
        (m.UseNow(GPU, 0, "", "", 500, 1001),),
    )),
    (m.Usage, m.Used((m.UsageRow("1001", 7, 1, 3600.5, 1e12, 12.0, 0.0),))),
    (
        m.Status,
        m.Standing(
            (LEASE,), (TICKET,), {OTHER: "a share"},
            (m.UserStanding(1001, 2, 4, 16384, None, 0, None, 3, 0.4, 0.25),),
            (m.GroupStanding(200, "lab", 2, 4, 16384, None, 0, None),), {"cpu": 4},
            out_of_service=(OutOfService(GPU, "fell off the bus", 1.7e9),),
        ),
    ),
)  # fmt: skip
