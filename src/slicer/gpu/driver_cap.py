"""The GPU memory limit that the driver itself enforces for a cgroup: NVIDIA's from 615 on (CUDA 13.4).

It covers everything that a process can do, so slicer prefers it if it is available. The library counts all
the same, because the driver's limit ignores managed memory. The limit ends with the scope's cgroup.
"""

from __future__ import annotations

import os

from slicer.errors import GpuError
from slicer.kernel import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from slicer.gpu.nvml import Nvml

_WHERE = "/sys/fs/cgroup"  # the driver looks for cgroups only there


def obstacle(*, uid: int, has_scope: bool, root: str | None) -> str:
    """Why the driver cannot limit a job; "" if it can. ``root``: of the cgroup v2 hierarchy. Pure."""
    if uid:
        return "only root may"
    if not has_scope:
        return "the job has no scope of its own"
    if root != _WHERE:
        return f"no cgroup v2 hierarchy is mounted at {_WHERE}"
    return ""


def why_not_here(*, has_scope: bool, uid: int | None = None) -> str:
    """Why this machine's driver cannot limit a job; "" if it can.

    ``uid`` is the user who asks the driver, which the broker does as root; None: this process's.
    """
    return _ask(lambda driver: driver.why_no_limits(), has_scope=has_scope, uid=uid)


def keep(cgroup_name: str, unit: str, gpus: Collection[str], limit_bytes: int) -> str:
    """Make the driver limit a job's scope to this many bytes on each of these GPUs (UUIDs).

    Returns why that failed, or "". GPUs that accepted the limit keep it. ``cgroup_name``: as in
    /proc/PID/cgroup; if it does not belong to ``unit``, it is an outer job's.
    """

    def limit(driver: Nvml) -> str:
        found = driver.limit(dict.fromkeys(gpus, limit_bytes), cgroup.path_of(cgroup_name))
        return next((why for why in found.values() if why), "")

    return _ask(limit, has_scope=bool(unit) and os.path.basename(cgroup_name) == unit)


def _ask(question: Callable[[Nvml], str], *, has_scope: bool, uid: int | None = None) -> str:
    """The driver's answer; or why there is no need or no way to ask."""
    why = obstacle(uid=os.geteuid() if uid is None else uid, has_scope=has_scope, root=cgroup.root())
    if why:
        return why
    from slicer.gpu.nvml import Nvml

    try:
        driver = Nvml()
        try:
            return question(driver)
        finally:
            driver.close()
    except GpuError as error:
        return error.message
