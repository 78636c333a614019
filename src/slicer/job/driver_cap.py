"""The limit of GPU memory that the driver itself keeps for a cgroup: NVIDIA's from 615 on (CUDA 13.4).

It holds for all that a process can do, so it is preferred where it can be had. The library counts besides: the
driver's limit knows nothing of managed memory. It goes with the scope's cgroup, so nobody takes it back.
"""

from __future__ import annotations

from slicer.errors import GpuError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from slicer.model import BackendName

_WHERE = "/sys/fs/cgroup"  # the driver looks for cgroups there and nowhere else


def obstacle(*, uid: int, backend: BackendName, is_simulated: bool, root: str | None) -> str:
    """Why the driver cannot be asked to limit a job; "": it can. ``root``: of the cgroup v2 hierarchy. Pure."""
    if is_simulated:
        return "the GPUs are simulated"
    if uid:
        return "only root may"
    if backend != "systemd":
        return "the job has no scope of its own"
    if root != _WHERE:
        return f"no cgroup v2 hierarchy is mounted at {_WHERE}"
    return ""


def keep(cgroup_name: str, gpus: Collection[str], limit_bytes: int) -> str:
    """Have the driver hold a scope to so many bytes of each of these GPUs (UUIDs). Returns why it does not.

    ``cgroup_name``: as /proc/PID/cgroup has it. What some of the GPUs took on stays.
    """
    from slicer.gpu.nvml import Nvml
    from slicer.kernel import cgroup

    try:
        driver = Nvml()
        try:
            found = driver.limit(dict.fromkeys(gpus, limit_bytes), cgroup.path_of(cgroup_name))
        finally:
            driver.close()
    except GpuError as error:
        return error.message
    return next((why for why in found.values() if why), "")
