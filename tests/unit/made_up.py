"""Made-up records: a test says only the fields that it is about."""

from __future__ import annotations

from typing import Any

from slicer.config.serve import Server
from slicer.model import CPU, Lease, Outcome, Profile, Request, Ticket, Usage
from slicer.record import fields_for, replace

_PROFILE = Profile(
    name="gpu", description="", slice="gpu", gpus=0, gpu_choice=(), vram_mib=None, margin_mib=0, slots={},
    priority=0, max_wait_s=None, then=None, threads=4, timeout_s=None, linger=False,
    env={}, properties={}, sources={},
)  # fmt: skip
_LEASE = Lease(
    job="000000000000", name="train", command="python train.py", pid=4211, pid_start=77, keeper=4212,
    boot_id="b", uid=1000, backend="systemd", manager="system", unit="slicer-000000000000.scope",
    cgroup="/gpu.slice/slicer-000000000000.scope", gpus=(), vram_mib=None, vram_peak_mib=(), slots={},
    priority=0, forced=0, since_s=100.0, expect_s=None,
)  # fmt: skip
_TICKET = Ticket(
    job="111111111111", name="next", command="python next.py", pid=4300, pid_start=78, boot_id="b", uid=1000,
    inside=(), priority=0, arrived_s=200.0, gpus=0, gpu_choice=(), vram_mib=None, margin_mib=0, slots={},
    slot_limits={}, expect_s=None, est_s=None,
)  # fmt: skip
_OUTCOME = Outcome(
    job="000000000000", name="train", command=("python", "train.py"), profile="gpu", backend="systemd",
    manager="system", unit="slicer-000000000000.scope", slice="gpu.slice", gpus=(), vram_mib=None,
    vram_peak_mib=(), cpu_slots=0, slots={}, forced=0, uid=1000, reason="exited", exit_code=0, signal=None,
    started_at=1_700_000_000.0, waited_s=0.5, wall_s=12.0, usage=Usage(), leftovers=0, enforced=(),
    not_enforced=(),
)  # fmt: skip
_SERVER = Server(
    name="ollama", description="", kind="ollama", listen=("127.0.0.1:11434",), public=False, hosts=(),
    upstream="", command=(), env={}, profile="gpu", gpus=None, vram_mib=None, models=(), path="",
    default=False, ready_path="", ready_timeout_s=120.0, idle_s=300.0, min_hold_s=30.0, max_wait_s=600.0,
    give_way=True, release_timeout_s=30.0, drain_s=30.0, on_offload="warn", load_first=True, routes_gpu=(),
    routes_free=(), routes_allow=(), ignore_websockets=False, sources={},
)  # fmt: skip


def _with_cpu_slots(fields: dict[str, Any]) -> dict[str, Any]:
    """``cpu_slots=2`` stands for ``slots={"cpu": 2}``, of ``cpu_limit`` (4) that there are."""
    limit = fields.pop("cpu_limit", 4)
    count = fields.pop("cpu_slots", 0)
    return {**fields, "slots": {CPU: count}, "slot_limits": {CPU: limit}} if count else fields


def profile(**fields: Any) -> Profile:
    """A profile; what is not said is as in any."""
    fields = _with_cpu_slots(fields)
    fields.pop("slot_limits", None)
    return replace(_PROFILE, **fields)


def lease(job: str = "000000000000", **fields: Any) -> Lease:
    """A lease of that job; what is not said is as in any."""
    fields = _with_cpu_slots(fields)
    fields.pop("slot_limits", None)
    return replace(_LEASE, job=job, **fields)


def ticket(job: str = "111111111111", **fields: Any) -> Ticket:
    """A ticket of that job."""
    fields = _with_cpu_slots(fields)
    if "slots" in fields:
        fields.setdefault("slot_limits", dict.fromkeys(fields["slots"], 4))
    return replace(_TICKET, job=job, **fields)


def request(job: str = "111111111111", **fields: Any) -> Request:
    """A request of that job."""
    return Request(**fields_for(Request, ticket(job, **fields)))


def server(name: str = "ollama", **fields: Any) -> Server:
    """A server of ``slicer serve``."""
    return replace(_SERVER, name=name, **fields)


def outcome(**fields: Any) -> Outcome:
    """An outcome."""
    return replace(_OUTCOME, **fields)
