"""``slicer set``: changes the limits of a running job, or shows each limit with its source."""

from __future__ import annotations

import os

from slicer import faults
from slicer.backend.plain import affinity
from slicer.config import live
from slicer.config.profiles import host
from slicer.config.properties import NAMES, parse_property, row_of
from slicer.errors import BackendError, UsageError
from slicer.job.find import members, scope_control
from slicer.job.interventions import acting_here, normal
from slicer.job.pause import tell
from slicer.kernel.proc import read_text
from slicer.ledger import control_log
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from slicer.backend.systemd import SystemdBackend
    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease, Property

    # "start": set at the job's start (its profile, --set). "unit": a drop-in file of the administrator.
    Source = Literal["start", "slicer set", "outside", "unit"]

# Without a scope, only the CPUs on which the job's processes may run can be changed.
_PLAIN = ("CPUQuota", "AllowedCPUs")
_MAX_DROP_INS = 64


@record
class RunningProperty:
    name: str
    value: str  # as a user would write it; "" if unset
    source: Source
    acts: bool  # whether it has an effect here


def show(lease: Lease, ledger: Ledger) -> tuple[RunningProperty, ...]:
    """The properties of a job's scope that somebody has set. Raises SlicerError."""
    by_slicer = control_log.last_set(control_log.read(ledger.directory, lease.job))
    if not lease.cgroup:
        _refuse_without_processes(lease)
        return tuple(RunningProperty(name, text, "slicer set", acts=True) for name, text in by_slicer.items())
    with scope_control(lease) as control:
        return _settings(lease, control, by_slicer)


def _settings(
    lease: Lease, control: SystemdBackend, by_slicer: dict[str, str]
) -> tuple[RunningProperty, ...]:
    given = _given(lease, control)
    changed, of_unit = _drop_ins(lease, control)
    names = [name for name in NAMES if name in given or name in changed or name in of_unit]
    acting = acting_here(names, lease.cgroup, lease.manager)
    found = []
    for name in names:
        value = control.property_of(lease.unit, row_of(name).dbus_name)
        text = live.value_text(name, value) if value is not None else normal(name, given.get(name, ""))
        source: Source = "start" if name in given else "unit"
        if name in changed and text != normal(name, given.get(name, "")):
            source = "slicer set" if by_slicer.get(name) == text else "outside"
        elif name not in given and name not in of_unit:
            continue  # it was changed, and changed back
        found.append(RunningProperty(name, text, source, acts=name in acting))
    return tuple(found)


def _given(lease: Lease, control: SystemdBackend) -> dict[str, str]:
    """The properties at the scope's start, from systemd's unit file. Raises BackendError."""
    path = control.property_of(lease.unit, "FragmentPath")
    if not isinstance(path, str) or not path:
        raise BackendError(f"{lease.unit} has ended")
    try:
        return live.settings_of(read_text(path))
    except OSError as error:
        said = f"the job's properties at its start cannot be read: {error.strerror}"
        raise BackendError(said, where=path) from error


def _drop_ins(lease: Lease, control: SystemdBackend) -> tuple[set[str], set[str]]:
    """The properties that were changed at run time, and those in the administrator's drop-ins."""
    changed, of_unit = set(), set()
    paths = control.property_of(lease.unit, "DropInPaths") or ()
    for path in paths[:_MAX_DROP_INS]:
        name = live.changed_name(path)
        if name and os.path.dirname(path).endswith(f"/transient/{lease.unit}.d"):
            changed.add(name)
            continue
        try:
            of_unit |= set(live.settings_of(read_text(path)))
        except OSError:
            continue  # the administrator has just removed it
    return changed, of_unit


def change(lease: Lease, ledger: Ledger, assignments: tuple[str, ...]) -> tuple[RunningProperty, ...]:
    """Change properties, all or none; ``NAME=`` resets. Raises UsageError, BackendError, StateError."""
    if not lease.cgroup:
        return _change_plain(lease, ledger, assignments)
    with scope_control(lease) as control:
        asked = live.wanted(assignments, _given(lease, control), host())
        control.set_properties(lease.unit, asked)
        return _note(lease, ledger, asked)


def _note(lease: Lease, ledger: Ledger, asked: tuple[Property, ...]) -> tuple[RunningProperty, ...]:
    """Record and report the changes."""
    faults.point("set-done")
    values = {item.name: normal(item.name, item.text) for item in asked}
    for name, text in values.items():
        control_log.note(ledger, lease.job, "set", f"{name}={text}")
    said = ", ".join(f"{name}={text}" for name, text in values.items())
    tell(lease, "changed", f"{said} set", "slicer set", changed=said)
    acting = acting_here(list(values), lease.cgroup, lease.manager) if lease.cgroup else frozenset(values)
    return tuple(
        RunningProperty(name, text, "slicer set", acts=name in acting) for name, text in values.items()
    )


# -- without a scope ----------------------------------------------------------------------------------------


def _refuse_without_processes(lease: Lease) -> None:
    if lease.backend == "systemd":
        raise BackendError(f"job {lease.job} has no scope yet", hint="try again in a moment")


def _change_plain(lease: Lease, ledger: Ledger, assignments: tuple[str, ...]) -> tuple[RunningProperty, ...]:
    """Without systemd, change the CPUs of each process of the job; nothing else can be changed."""
    _refuse_without_processes(lease)
    asked = live.wanted(assignments, {}, host())
    for item in asked:
        if item.name not in _PLAIN:
            raise UsageError(
                f"{item.name} cannot be changed while the job runs without a scope",
                where="slicer set", hint=f"only {' and '.join(_PLAIN)} can, by CPU affinity",
            )  # fmt: skip
    before = control_log.last_set(control_log.read(ledger.directory, lease.job))
    both = {**before, **{item.name: item.text for item in asked}}
    limits = {name: parse_property(name, text, host(), "slicer set") for name, text in both.items() if text}
    cpus = affinity(limits, sorted(os.sched_getaffinity(0)), lease.keeper)
    done: set[int] = set()
    while todo := set(members(lease, ledger)) - done:  # processes forked meanwhile inherit it, or are next
        for pid in todo:
            try:
                os.sched_setaffinity(pid, cpus)
            except ProcessLookupError:
                pass
            except PermissionError as error:
                said = f"pid {pid} of job {lease.job} is another user's: not all processes were changed"
                raise BackendError(said) from error
        done |= todo
    return _note(lease, ledger, asked)
