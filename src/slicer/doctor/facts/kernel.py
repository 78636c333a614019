"""What the kernel offers of what slicer uses, and the resource limits of this process."""

from __future__ import annotations

import os
import resource

from slicer.doctor.facts.files import kernel_text, names_in
from slicer.doctor.facts.mounts import mounts
from slicer.errors import StateError
from slicer.kernel import cgroup
from slicer.record import record

_UNLIMITED = -1
_MOST_CGROUPS = 200


@record
class KernelFacts:
    """A feature is None where it cannot be seen from here."""

    release: str
    memory_peak: bool | None
    cgroup_kill: bool | None
    psi: bool
    dmem: bool
    pidfd: bool
    pidfd_error: str
    hidepid: str  # the option's value; "" where /proc shows all processes
    open_files: int  # RLIMIT_NOFILE, soft; -1: no limit
    open_files_hard: int
    processes: int  # RLIMIT_NPROC, soft; -1: no limit
    own_processes: int
    tasks_max: int | None  # of this user's slice; None: no limit, or not to be seen
    tasks: int  # in it now
    inotify_error: str  # why no instance can be had; "" where one can
    inotify_instances: str  # fs.inotify.max_user_instances


def gather(uid: int) -> KernelFacts:
    """Looks into /proc and the cgroup file system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    slice_of_user = cgroup.path_of(f"/user.slice/user-{uid}.slice")
    tasks_max = kernel_text(f"{slice_of_user}/pids.max")
    tasks = kernel_text(f"{slice_of_user}/pids.current")
    pidfd_error = _pidfd_error()
    return KernelFacts(
        release=os.uname().release,
        memory_peak=_has("memory.current", "memory.peak"),
        cgroup_kill=_has("cgroup.procs", "cgroup.kill"),
        psi=os.path.exists("/proc/pressure/cpu"),
        dmem="dmem" in cgroup.controllers(cgroup.path_of("")),
        pidfd=not pidfd_error,
        pidfd_error=pidfd_error,
        hidepid=_hidepid(),
        open_files=_UNLIMITED if soft == resource.RLIM_INFINITY else soft,
        open_files_hard=_UNLIMITED if hard == resource.RLIM_INFINITY else hard,
        processes=_soft_processes(),
        own_processes=_own_processes(uid),
        tasks_max=int(tasks_max) if tasks_max.isdigit() else None,
        tasks=int(tasks) if tasks.isdigit() else 0,
        inotify_error=_inotify_error(),
        inotify_instances=kernel_text("/proc/sys/fs/inotify/max_user_instances"),
    )


def _has(beside: str, name: str) -> bool | None:
    """Whether the cgroups that have the one file have the other; None: there is none to look at.

    The root cgroup has neither, so it is the ones below it that tell.
    """
    top = cgroup.root()
    if top is None:
        return None
    below = (f"{top}/{each}" for each in names_in(top)[:_MOST_CGROUPS])
    own = cgroup.path_of(cgroup.of("self")).rstrip("/")
    looked = next(
        (path for path in (own, *below) if path != top and os.path.exists(f"{path}/{beside}")), None
    )
    return None if looked is None else os.path.exists(f"{looked}/{name}")


def _pidfd_error() -> str:
    """Why the kernel (or a container's seccomp filter) gives no pidfd; "" where it does."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _hidepid() -> str:
    options = [option for mount in mounts() if mount.point == "/proc" for option in mount.options]
    value = next((option[8:] for option in options if option.startswith("hidepid=")), "")
    return "" if value in ("0", "off") else value


def _soft_processes() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _own_processes(uid: int) -> int:
    """The user's threads: what RLIMIT_NPROC counts."""
    count = 0
    for name in names_in("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue  # it has ended
    return count


def _inotify_error() -> str:
    from slicer.kernel.inotify import Inotify

    try:
        Inotify("inotify").close()
    except StateError as error:
        return error.message
    return ""
