"""Docker, and the lock by which scripts keep the GPUs to themselves."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from slicer.config import profiles
from slicer.doctor.facts.files import kernel_text, lstat
from slicer.errors import SlicerError
from slicer.ledger.plain_lock import PlainLock
from slicer.record import record


@record
class OthersFacts:
    """Programs that start jobs outside of slicer, or keep slicer's from starting."""

    has_docker: bool
    lock: str  # the lock file of scripts; "" for none
    lock_problem: str  # why the lock file of scripts cannot be used; "" where it can, or none is set
    lock_holder: int  # the process that excludes slicer's GPU jobs by it; 0: none
    lock_holder_name: str


def gather(environ: Mapping[str, str]) -> OthersFacts:
    """Looks for docker's files, and at the lock file that the configuration names."""
    lock = _lock(environ)
    holder = PlainLock(lock).holder() if lock else 0
    return OthersFacts(
        has_docker=os.path.exists("/run/docker.sock") or os.path.exists("/etc/docker/daemon.json"),
        lock=lock,
        lock_problem=_lock_problem(lock) if lock else "",
        lock_holder=holder,
        lock_holder_name=kernel_text(f"/proc/{holder}/comm") if holder else "",
    )


def _lock(environ: Mapping[str, str]) -> str:
    try:
        return profiles.load(environ, profiles.host(), remembers=False).compat_gpu_lock
    except SlicerError:
        return ""  # the look at the configuration reports it


def _lock_problem(path: str) -> str:
    """Why the file cannot be the lock. It is opened by nobody here: it may be a FIFO."""
    parent = lstat(os.path.dirname(path))
    info = lstat(path)
    if parent is None:
        return "its directory does not exist"
    if info is None:
        return "" if os.access(os.path.dirname(path), os.W_OK | os.X_OK) else "it cannot be made there"
    if stat.S_ISLNK(info.st_mode) and parent.st_mode & stat.S_IWOTH:
        return "is a symbolic link in a directory that everybody may write to"
    if not os.path.isfile(path):
        return "is not a plain file"
    return "" if os.access(path, os.R_OK) else "cannot be read"
