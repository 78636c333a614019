"""What is the same of a job in a scope, whoever had systemd start it."""

from __future__ import annotations

import os

from slicer.backend.acting import acting, filters_devices, io_is_weighed, oomd_runs
from slicer.kernel import cgroup, proc
from slicer.state.statefile import is_job_scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import BackendName, Manager, ScopeSpec


_USERS = "/user@"  # in the path of what a user's own manager runs


def is_of_another(there: str, own: str) -> bool:
    """Whether a process in the cgroup ``there`` is of another job, started in the job in ``own``. Pure.

    A user's manager names scopes as the user wants. So it tells nothing where jobs are the system's.
    """
    return any(map(is_job_scope, there.split("/"))) and (_USERS in own or _USERS not in there)


class ScopeBackend:
    """The part of :class:`slicer.backend.Backend` that looks at the scope's cgroup."""

    name: BackendName = "systemd"
    manager: Manager
    notice = ""
    why_no_cap: str | None = None

    def members(self, cgroup_name: str, besides: int) -> Callable[[], list[int]]:
        """Who is in the scope, and who left it and is still below the keeper.

        A user may have the user manager take a process over (`systemd-run --user --scope`). It can go on
        using what the lease is for, so it is the job's all the same.
        """
        directory, own = cgroup.path_of(cgroup_name), os.getpid()

        def living() -> list[int]:
            found = dict.fromkeys(cgroup.processes(directory))
            if proc.has_children():
                below = proc.descendants(own)
                found.update((pid, None) for pid in below if not is_of_another(cgroup.of(pid), cgroup_name))
            return [pid for pid in found if pid not in (own, besides)]

        return living

    def living(self, job: str, cgroup_name: str) -> list[int]:
        return list(cgroup.processes(cgroup.path_of(cgroup_name))) if cgroup_name else []

    def watchdog(self, spec: ScopeSpec) -> None:
        """Nothing: the kernel enforces."""

    def enforced(self, spec: ScopeSpec, cgroup_name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """By the controllers that the scope's cgroup has, and by what needs more than a controller."""
        names = tuple(dict.fromkeys((*(item.name for item in spec.properties), *self.added(spec))))
        directory = cgroup.path_of(cgroup_name)
        own = directory if cgroup_name.endswith(spec.unit) else ""  # else there is no scope yet
        found = acting(
            names, cgroup.controllers(directory), self.manager, io_is_weighed, oomd_runs,
            lambda: filters_devices(own),
        )  # fmt: skip
        return tuple(n for n in names if n in found), tuple(n for n in names if n not in found)

    def added(self, spec: ScopeSpec) -> tuple[str, ...]:
        """The directives that were set beside those of the spec."""
        return ()
