"""The limit of GPU memory that the driver itself keeps for a cgroup: NVIDIA's from 615 on (CUDA 13.4).

It holds for all that a process can do, so it is preferred where it can be had. The library counts besides,
because the driver's limit knows nothing of managed memory. It goes with the scope's cgroup.
"""

from __future__ import annotations

import os

from slicer.errors import GpuError
from slicer.kernel import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from slicer.gpu.nvml import Nvml

_WHERE = "/sys/fs/cgroup"  # the driver looks for cgroups there and nowhere else


def obstacle(*, uid: int, has_scope: bool, root: str | None) -> str:
    """Why the driver cannot limit a job; "": it may. ``root``: of the cgroup v2 hierarchy. Pure."""
    if uid:
        return "only root may"
    if not has_scope:
        return "the job has no scope of its own"
    if root != _WHERE:
        return f"no cgroup v2 hierarchy is mounted at {_WHERE}"
    return ""


def why_not_here(*, has_scope: bool, uid: int | None = None) -> str:
    """Why this machine's driver keeps no limit for a job; "": it may.

    ``uid`` is whose process asks the driver for it, which the broker does as root; None: this one.
    """
    return _ask(lambda driver: driver.why_no_limits(), has_scope=has_scope, uid=uid)


def keep(cgroup_name: str, unit: str, gpus: Collection[str], limit_bytes: int) -> str:
    """Have the driver hold a job's scope to so many bytes of each of these GPUs (UUIDs).

    Returns why it does not. What some of the GPUs took on stays. ``cgroup_name``: as /proc/PID/cgroup has it;
    one that is not of ``unit`` is an outer job's.
    """

    def limit(driver: Nvml) -> str:
        found = driver.limit(dict.fromkeys(gpus, limit_bytes), cgroup.path_of(cgroup_name))
        return next((why for why in found.values() if why), "")

    return _ask(limit, has_scope=bool(unit) and os.path.basename(cgroup_name) == unit)


def _ask(question: Callable[[Nvml], str], *, has_scope: bool, uid: int | None = None) -> str:
    """What the driver answers; before that, why it need not be asked, or cannot be."""
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
