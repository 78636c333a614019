"""Machines without systemd (containers, WSL): limits that one process can put on another.

CPU affinity stands in for the quota, niceness for the weight, a guard in the keeper for MemoryMax. This is
best effort: a job's children inherit it, but nothing stops them from changing it.
"""

from __future__ import annotations

import math
import os

from slicer.backend import BY_KEEPER, Backend
from slicer.errors import BackendError
from slicer.kernel import proc
from slicer.kernel.signals import signal
from slicer.model import manager_of
from slicer.quantity import INFINITY, mask_to_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import BackendName, Manager, Property, Reason, ScopeSpec

_DEFAULT_WEIGHT = 100
_KILL_DEADLINE_S = 10.0

# The directives that are effective here, and how. All others are reported as not enforced.
BEST_EFFORT = {
    "CPUQuota": "by CPU affinity",
    "AllowedCPUs": "by CPU affinity",
    "CPUWeight": "by niceness",
    "MemoryMax": "by a guard that checks 4 times a second",
    **dict.fromkeys(BY_KEEPER, "by the keeper"),
}
LIMITS = "limits are best effort; `slicer run --dry-run` lists them"


class PlainBackend(Backend):
    """No scopes: the job is the keeper's descendants."""

    name: BackendName = "plain"
    notice = f"no systemd here: {LIMITS}"

    def __init__(self, uid: int) -> None:
        self.manager: Manager = manager_of(uid)

    def after_fork(self) -> None:
        """Adopt the processes that the command leaves behind, so that they still belong to the job."""
        proc.adopt_orphans()

    def start(self, spec: ScopeSpec, pid: int, meanwhile: Callable[[], None]) -> str:
        """Set affinity and niceness, which the command inherits."""
        given = {item.name: item for item in spec.properties}
        try:
            cpus = affinity(given, sorted(os.sched_getaffinity(0)), pid)
            if cpus:
                os.sched_setaffinity(pid, cpus)
            weight = given.get("CPUWeight")
            if weight is not None and isinstance(weight.value, int):
                wanted = os.getpriority(os.PRIO_PROCESS, pid) + niceness(weight.value)
                if niceness(weight.value) > 0 or proc.may_be_faster():
                    os.setpriority(os.PRIO_PROCESS, pid, max(-20, min(19, wanted)))
        except OSError as error:
            raise BackendError(f"cannot limit the job: {error.strerror}") from error
        return ""

    def enforced(self, spec: ScopeSpec, cgroup: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The directives that are effective, each with its means, and those that are not."""
        given = {item.name: item.value for item in spec.properties}
        weight = given.get("CPUWeight")
        can = set(BEST_EFFORT)
        if isinstance(weight, int) and niceness(weight) < 0 and not proc.may_be_faster():
            can.remove("CPUWeight")
        done = tuple(f"{name} ({BEST_EFFORT[name]})" for name in given if name in can)
        return done, tuple(name for name in given if name not in can)

    def members(self, cgroup: str, besides: int) -> Callable[[], list[int]]:
        """The keeper's descendants, adopted orphans included."""

        def living() -> list[int]:
            if not proc.has_children():
                return []  # the usual case
            own = os.getpid()
            # If none was seen, check again: an orphan has no visible parent for a moment, until it becomes
            # ours.
            found = proc.descendants(own) or proc.descendants(own)
            return [pid for pid in found if pid != besides]

        return living

    def watchdog(self, spec: ScopeSpec) -> MemoryGuard | None:
        limit = next((item.value for item in spec.properties if item.name == "MemoryMax"), None)
        return MemoryGuard(limit) if isinstance(limit, int) and limit < INFINITY else None

    def preload(self) -> None:
        """What measures a job with a limit."""
        import psutil

        del psutil

    def living(self, job: str, cgroup: str) -> list[int]:
        """The processes with the job's id in their environment."""
        return [pid for pid in proc.in_lease(job) if pid != os.getpid()]

    def end(self, job: str, unit: str, stop_timeout_s: float) -> None:
        """SIGTERM, and SIGKILL at the end of the time."""
        self._signal(self.living(job, ""), signal.SIGTERM)
        if not proc.wait_for_end(lambda: self.living(job, ""), stop_timeout_s):
            self._signal(self.living(job, ""), signal.SIGKILL)
            proc.wait_for_end(lambda: self.living(job, ""), _KILL_DEADLINE_S)

    def request_end(self, job: str, unit: str) -> None:
        """SIGTERM. A process that ignores it stays."""
        self._signal(self.living(job, ""), signal.SIGTERM)

    def _signal(self, pids: list[int], signo: int) -> None:
        for pid in pids:
            proc.send(pid, signo)  # the pid may be another user's by now


def affinity(given: dict[str, Property], available: list[int], seed: int) -> set[int]:
    """The CPUs for a job: as many as its quota fills. ``seed`` determines the first one in the list."""
    allowed = given.get("AllowedCPUs")
    if allowed is not None and isinstance(allowed.value, bytes):
        available = [cpu for cpu in mask_to_cpus(allowed.value) if cpu in available] or available
    quota = given.get("CPUQuota")
    if quota is not None and isinstance(quota.value, int):
        count = max(1, min(len(available), math.ceil(quota.value / 1e6)))
        first = seed % len(available)
        available = (available + available)[first : first + count]
    return set(available)


def niceness(weight: int) -> int:
    """The nice increment nearest to a CPU weight (100 is 0), by the kernel's factor of 1.25 a step."""
    return round(math.log(_DEFAULT_WEIGHT / max(1, weight)) / math.log(1.25))


class MemoryGuard:
    """Ends a job whose processes together use more than the limit. ``peak_bytes`` is the highest use."""

    interval_s = 0.25

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.peak_bytes = 0

    def check(self) -> Reason | None:
        """Add up the private memory of each process, and the largest shared memory of any."""
        import psutil  # only for jobs with a limit

        private, shared = 0, 0
        for pid in proc.descendants(os.getpid()):
            try:
                memory = psutil.Process(pid).memory_info()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it has ended, or is hidden
            private += max(0, memory.rss - memory.shared)
            shared = max(shared, memory.shared)
        self.peak_bytes = max(self.peak_bytes, private + shared)
        return "oom-kill" if private + shared > self._limit_bytes else None
