"""Stops empty scopes of jobs that systemd still calls active, because nothing else would end them.

If a process is killed while systemd moves it into its scope, the scope stays empty, and the kernel's event of
that may come before systemd looks for it. The broker sweeps its users' scopes itself.
"""

from __future__ import annotations

import os
import time

from slicer.errors import BackendError
from slicer.kernel import cgroup
from slicer.model import SLICES, job_of_unit
from slicer.state.statefile import is_job_unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Manager

_OLD_S = 10.0  # since its creation: by then its job is in it, or has been
_MOST = 64  # with more jobs than this, a later job checks


def stop_beside(scope: str, manager: Manager) -> None:
    """Stop those in the slices of a scope's manager. ``scope`` is its cgroup. Waits for nothing."""
    for unit in empty_beside(scope, time.time()):
        from slicer.backend.systemd import SystemdBackend

        try:
            SystemdBackend(manager).request_end(job_of_unit(unit), unit)
        except BackendError:
            return  # the next job checks again


def empty_beside(scope: str, now_s: float) -> tuple[str, ...]:
    """The units that are empty although they are old."""
    above = os.path.dirname(os.path.dirname(scope)).rstrip("/")
    # systemd puts a "_" before a cgroup's name that resembles a controller's: _cpu.slice.
    slices = [f"{above}/{mark}{name}.slice" for name in SLICES for mark in ("", "_")]
    return tuple(unit for slice_ in slices for unit in _empty_in(slice_, now_s))


def _empty_in(slice_: str, now_s: float) -> list[str]:
    try:
        names = os.listdir(cgroup.path_of(slice_))
    except FileNotFoundError:
        return []
    units = sorted(filter(is_job_unit, names))
    return [unit for unit in units if len(units) <= _MOST and _is_left(f"{slice_}/{unit}", now_s)]


def _is_left(scope: str, now_s: float) -> bool:
    path = cgroup.path_of(scope)
    try:
        # The kernel dates a cgroup from its first lookup, which systemd did when it created it.
        is_old = now_s - os.stat(path).st_ctime >= _OLD_S
        return is_old and not cgroup.populated(path) and os.path.exists(path)
    except OSError:
        return False  # removed, or unreadable now
