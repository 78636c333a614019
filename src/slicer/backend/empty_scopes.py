"""Scopes of jobs that nobody is in, and that systemd still has as active: nothing else would end them.

A process that is killed while systemd moves it into its scope leaves that one empty, and the kernel's event
of it may come before systemd looks for it. The broker sweeps its users' scopes by itself.
"""

from __future__ import annotations

import os
import time

from slicer.errors import BackendError
from slicer.kernel import cgroup
from slicer.model import SLICES, job_of_unit
from slicer.state.statefile import is_job_scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Manager

_OLD_S = 10.0  # since it was made: by then its job is in it, or has been
_MOST = 64  # in a crowd of jobs, somebody looks when it is over


def stop_beside(scope: str, manager: Manager) -> None:
    """Stop those in the slices of a scope's manager. ``scope`` is its cgroup. Waits for nothing."""
    for unit in empty_beside(scope, time.time()):
        from slicer.backend.systemd import SystemdBackend

        try:
            SystemdBackend(manager).request_end(job_of_unit(unit), unit)
        except BackendError:
            return  # the next job looks again


def empty_beside(scope: str, now_s: float) -> tuple[str, ...]:
    """The units that are empty though they are old."""
    above = os.path.dirname(os.path.dirname(scope)).rstrip("/")
    # systemd puts a "_" before the name of a cgroup that is like a controller's: _cpu.slice.
    slices = [f"{above}/{mark}{name}.slice" for name in SLICES for mark in ("", "_")]
    return tuple(unit for slice_ in slices for unit in _empty_in(slice_, now_s))


def _empty_in(slice_: str, now_s: float) -> list[str]:
    try:
        names = os.listdir(cgroup.path_of(slice_))
    except FileNotFoundError:
        return []
    units = sorted(filter(is_job_scope, names))
    return [unit for unit in units if len(units) <= _MOST and _is_left(f"{slice_}/{unit}", now_s)]


def _is_left(scope: str, now_s: float) -> bool:
    path = cgroup.path_of(scope)
    try:
        # The kernel dates a cgroup from when it was first looked at: systemd did when it made it.
        is_old = now_s - os.stat(path).st_ctime >= _OLD_S
        return is_old and not cgroup.populated(path) and os.path.exists(path)
    except OSError:
        return False  # gone, or nobody can tell now
