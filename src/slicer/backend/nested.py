"""A job inside another job that already holds what it needs. The outer scope's limits apply to it, too."""

from __future__ import annotations

from slicer.backend import BY_KEEPER, Backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import BackendName, Lease, ScopeSpec


class NestedBackend(Backend):
    """No scope of its own. ``outer`` is the lease of the innermost outer job."""

    name: BackendName = "inner"

    def __init__(self, outer: Lease) -> None:
        self.manager = outer.manager
        self._cgroup = outer.cgroup

    def start(self, spec: ScopeSpec, pid: int, meanwhile: Callable[[], None]) -> str:
        """The process is already in the right place."""
        return self._cgroup

    def enforced(self, spec: ScopeSpec, cgroup: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the job's own limits only those are effective that the keeper enforces."""
        names = tuple(item.name for item in spec.properties)
        return tuple(n for n in names if n in BY_KEEPER), tuple(n for n in names if n not in BY_KEEPER)

    def members(self, cgroup: str, besides: int) -> Callable[[], list[int]]:
        """Processes that outlive the command belong to the outer job."""
        return list

    def living(self, job: str, cgroup: str) -> list[int]:
        """They belong to the outer job."""
        return []
