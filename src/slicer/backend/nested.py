"""A job inside another job that already holds what it needs. The outer scope's limits apply to it, too."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import BackendName, Lease, Manager, ScopeSpec


class NestedBackend:
    """No scope of its own. ``outer`` is the lease of the innermost outer job."""

    name: BackendName = "inner"
    notice = ""
    why_no_cap: str | None = None

    def __init__(self, manager: Manager, outer: Lease) -> None:
        self.manager: Manager = manager
        self._cgroup = outer.cgroup

    def connect(self) -> None:
        """Nothing to connect to."""

    def after_fork(self) -> None:
        """Nothing to release."""

    def start(self, spec: ScopeSpec, pid: int, meanwhile: Callable[[], None]) -> str:
        """The process is already in the right place."""
        return self._cgroup

    def enforced(self, spec: ScopeSpec, cgroup: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the job's own limits only the time limit is effective, which the keeper enforces."""
        names = tuple(item.name for item in spec.properties)
        kept = ("RuntimeMaxSec", "TimeoutStopSec")
        return tuple(n for n in names if n in kept), tuple(n for n in names if n not in kept)

    def members(self, cgroup: str, besides: int) -> Callable[[], list[int]]:
        """Processes that outlive the command belong to the outer job."""
        return list

    def watchdog(self, spec: ScopeSpec) -> None:
        """Nothing to watch."""

    def living(self, job: str, cgroup: str) -> list[int]:
        """They belong to the outer job."""
        return []

    def end(self, job: str, unit: str, stop_timeout_s: float) -> None:
        """Nothing of its own to end."""

    def close(self) -> None:
        """Nothing to release."""
