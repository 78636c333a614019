"""Interventions in a running job, for its outcome: pauses, changes, requests to end.

The sources are the job's control log, to which slicer's commands write, and systemd's files of the unit.
They are read once, at the end, and only if there is something to read.
"""

from __future__ import annotations

from slicer.backend import changes_of
from slicer.backend.scopes import acting_in
from slicer.config import live
from slicer.config.profiles import host
from slicer.config.properties import find, parse_property
from slicer.errors import SlicerError, StateError
from slicer.job.report import Interventions
from slicer.kernel import cgroup
from slicer.kernel.proc import names_in, now_s, read_text
from slicer.ledger import control_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.job.job import Job, Started
    from slicer.job.report import KeeperReport
    from slicer.ledger.held_lease import HeldLease
    from slicer.model import Manager


def interventions(
    job: Job, started: Started, held: HeldLease, report: KeeperReport, *, was_watched: bool
) -> Interventions:
    """The interventions in a job. Raises nothing: unreadable parts are left out."""
    try:
        acts = control_log.read(held.directory, job.id)
    except StateError:
        acts = ()
    by_slicer = control_log.last_set(acts)
    final = final_values(held.lease.unit, job.spec.manager) if held.lease.unit else by_slicer
    given = {item.name: normal(item.name, item.text) for item in job.spec.properties}
    final = {name: text for name, text in final.items() if not _same(text, given.get(name, normal(name, "")))}
    names = [name for name in final if name not in given]
    acting = acting_here(names, started.cgroup, job.spec.manager) if started.cgroup else frozenset(names)
    told = control_log.who_told_to_end(acts) if report.reason in ("stopped", "signal") else ""
    return Interventions(
        paused_s=_paused_s(acts, started, was_watched=was_watched),
        ended_by=told or report.ended_by,
        changed=tuple(f"{name}={text}" for name, text in final.items() if by_slicer.get(name) == text),
        changed_outside=tuple(
            f"{name}={text}" for name, text in final.items() if by_slicer.get(name) != text
        ),
        enforced=tuple(name for name in names if name in acting),
        not_enforced=tuple(name for name in names if name not in acting),
    )  # fmt: skip


def _paused_s(
    acts: tuple[control_log.ControlAct, ...], started: Started, *, was_watched: bool
) -> float | None:
    frozen_s = cgroup.frozen_s(cgroup.path_of(started.cgroup)) if started.cgroup else None
    if frozen_s is not None:
        return frozen_s
    noted_s = control_log.paused_s(acts, now_s())
    return noted_s if was_watched or noted_s or not started.cgroup else None


def final_values(unit: str, manager: Manager) -> dict[str, str]:
    """The properties that were changed since the unit's start, from systemd's files; "" if unset."""
    directory = changes_of(unit, manager)
    found = {}
    for file in names_in(directory):
        name = live.changed_name(file)
        if name:
            try:
                text = live.settings_of(read_text(f"{directory}/{file}")).get(name, "")
            except OSError:
                continue
            found[name] = normal(name, text)
    return found


def normal(name: str, text: str) -> str:
    """A value in the normal form, in which values are compared and shown."""
    if not text:
        return live.value_text(name, live.unset_value(name))
    try:
        made = parse_property(name, text, host(), name)
    except SlicerError:
        return text
    return made.text if made.dbus_name.endswith("Scale") else live.value_text(name, made.value)


def _same(one: str, other: str) -> bool:
    """Whether two normal forms are equal. systemd keeps lists in its own order."""
    return one == other or sorted(one.split(", ")) == sorted(other.split(", "))


def acting_here(names: list[str], cgroup_name: str, manager: Manager) -> frozenset[str]:
    """The properties that have an effect in that cgroup."""
    known, directory = tuple(name for name in names if find(name)), cgroup.path_of(cgroup_name)
    return acting_in(known, directory, manager, directory)
