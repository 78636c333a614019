"""What the kernel offers of what slicer uses."""

from __future__ import annotations

import os

from slicer.doctor.facts.files import kernel_text, names_in
from slicer.errors import StateError
from slicer.kernel import cgroup
from slicer.record import record

_MOST_CGROUPS = 200


@record
class KernelFacts:
    """A feature is None where it cannot be seen from here."""

    release: str
    memory_peak: bool | None
    cgroup_kill: bool | None
    psi: bool
    dmem: bool
    pidfd_error: str  # why it gives no pidfd; "" where it does
    inotify_error: str  # why no instance can be had; "" where one can
    inotify_instances: str  # fs.inotify.max_user_instances


def gather() -> KernelFacts:
    """Looks into /proc and the cgroup file system."""
    return KernelFacts(
        release=os.uname().release,
        memory_peak=_has("memory.current", "memory.peak"),
        cgroup_kill=_has("cgroup.procs", "cgroup.kill"),
        psi=os.path.exists("/proc/pressure/cpu"),
        dmem="dmem" in cgroup.controllers(cgroup.path_of("")),
        pidfd_error=_pidfd_error(),
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


def _inotify_error() -> str:
    from slicer.kernel.inotify import Inotify

    try:
        Inotify("inotify").close()
    except StateError as error:
        return error.message
    return ""
