"""A made-up machine for tests of the configuration, and made-up leases and requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slicer.config.profiles import Config, Overrides, load
from slicer.model import Host, Lease, Outcome, Profile, Request, Ticket, Usage
from slicer.record import replace

GIB = 2**30
HOST = Host(tuple(range(12)), 64 * GIB)


class Machine:
    """The places that configuration comes from, below a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.etc = root / "etc" / "slicer"
        self.home = root / "home"
        (self.etc / "conf.d").mkdir(parents=True)
        self.user = self.home / ".config" / "slicer" / "config.toml"
        self.user.parent.mkdir(parents=True)
        self.environ = {"HOME": str(self.home)}
        self.host = HOST

    def system(self, text: str) -> Path:
        return self.write(self.etc / "config.toml", text)

    def write(self, path: Path, text: str) -> Path:
        path.write_text(text, encoding="utf-8")
        return path

    def load(self) -> Config:
        return load(self.environ, self.host, system_dir=str(self.etc))

    def profile(self, name: str | None = None, **overrides: object) -> Profile:
        return self.load().profile(name, Overrides(**overrides))  # type: ignore[arg-type]


def values(profile: Profile) -> dict[str, object]:
    return {name: made.value for name, made in profile.properties.items()}


_PROFILE = Profile(
    name="gpu", description="", slice="gpu", gpus=0, gpu_choice=(), vram_mib=None, margin_mib=0, cpu_slots=0,
    priority=0, max_wait_s=None, then=None, threads=4, timeout_s=None, linger=False, env={}, properties={},
    sources={},
)  # fmt: skip
_LEASE = Lease(
    job="000000000000", name="train", command="python train.py", pid=4211, pid_start=77, keeper=4212,
    boot_id="b", uid=1000, backend="systemd", manager="system", unit="slicer-000000000000.scope",
    cgroup="/gpu.slice/slicer-000000000000.scope", gpus=(), vram_mib=None, vram_peak_mib=(), cpu_slots=0,
    priority=0, forced=0, since_s=100.0, expect_s=None,
)  # fmt: skip
_TICKET = Ticket(
    job="111111111111", name="next", command="python next.py", pid=4300, pid_start=78, boot_id="b", uid=1000,
    inside=(), priority=0, arrived_s=200.0, gpus=0, gpu_choice=(), vram_mib=None, margin_mib=0, cpu_slots=0,
    cpu_limit=4, expect_s=None,
)  # fmt: skip
_OUTCOME = Outcome(
    job="000000000000", name="train", command=("python", "train.py"), profile="gpu", backend="systemd",
    manager="system", unit="slicer-000000000000.scope", slice="gpu.slice", gpus=(), vram_mib=None,
    vram_peak_mib=(), cpu_slots=0, forced=0, uid=1000, reason="exited", exit_code=0, signal=None,
    started_at=1_700_000_000.0, waited_s=0.5, wall_s=12.0, usage=Usage(), leftovers=0, enforced=(),
    not_enforced=(),
)  # fmt: skip


def profile(**fields: Any) -> Profile:
    """A profile; what is not said is as in any."""
    return replace(_PROFILE, **fields)


def lease(job: str = "000000000000", **fields: Any) -> Lease:
    """A lease of that job; what is not said is as in any."""
    return replace(_LEASE, job=job, **fields)


def ticket(job: str = "111111111111", **fields: Any) -> Ticket:
    """A ticket of that job."""
    return replace(_TICKET, job=job, **fields)


def request(job: str = "111111111111", **fields: Any) -> Request:
    """A request of that job."""
    made = ticket(job, **fields)
    return Request(*(getattr(made, name) for name in Request.__annotations__))


def outcome(**fields: Any) -> Outcome:
    """An outcome."""
    return replace(_OUTCOME, **fields)
