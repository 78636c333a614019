"""The whole examination: the looks, side by side, and what the checks make of them."""

from __future__ import annotations

import shutil
import sys

from slicer.doctor import looks
from slicer.doctor.checks import environment as check_environment
from slicer.doctor.checks import gpus as check_gpus
from slicer.doctor.checks import journal as check_journal
from slicer.doctor.checks import limits as check_limits
from slicer.doctor.checks import state as check_state
from slicer.doctor.checks import systemd as check_systemd
from slicer.doctor.kinds import finding
from slicer.doctor.model import AREAS, Report, Verdict, Who
from slicer.kernel.users import user_name
from slicer.model import manager_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from slicer.doctor.looks import Look
    from slicer.doctor.model import Acting, Area, Finding

DEADLINE_S = 8.0  # the driver of eight GPUs without persistence mode takes five seconds to answer
QUICK_DEADLINE_S = 3.0


def examine(environ: Mapping[str, str], uid: int) -> Report:
    """Look at everything. Takes :data:`DEADLINE_S` seconds at most, and changes nothing."""
    who = _who(uid)
    taken = looks.take(_duties(environ, who), DEADLINE_S)
    return _report(who, taken)


def glance(
    environ: Mapping[str, str], uid: int, beside: Callable[[], object]
) -> tuple[Report, Look]:
    """As :func:`examine`, but without D-Bus and the driver, and within :data:`QUICK_DEADLINE_S` seconds.

    ``beside`` is one more look, of the caller's own.
    """
    who = _who(uid)
    duties = {"beside": beside, **_duties(environ, who, quickly=True)}
    taken = looks.take(duties, QUICK_DEADLINE_S)
    return _report(who, taken, quickly=True), taken["beside"]


def _who(uid: int) -> Who:
    return Who(uid, user_name(uid), manager_of(uid), shutil.which("sudo") is not None)


def _duties(
    environ: Mapping[str, str], who: Who, *, quickly: bool = False
) -> dict[str, Callable[[], object]]:
    """The looks by their names. What they import is loaded here once, and not in each child."""
    from slicer.doctor.facts import configuration, disks, gpus, journal, kernel, others, session, state, units
    from slicer.doctor.facts import environment as environment_facts
    from slicer.doctor.facts import systemd as systemd_facts

    simulated = environ.get("SLICER_SIM", "")
    found: dict[str, Callable[[], object]] = {
        "systemd": lambda: systemd_facts.gather(who.uid, who.manager, asks=not quickly),
        "kernel": lambda: kernel.gather(who.uid),
        "session": lambda: session.gather(who.uid),
        "disks": disks.gather,
        "configuration": lambda: configuration.gather(environ),
        "state": lambda: state.gather(environ, who.uid),
        "journal": lambda: journal.gather(who.uid),
        "units": units.gather,
        "environment": lambda: environment_facts.gather(environ, sys.argv[0]),
        "others": lambda: others.gather(environ, who.uid),
        "devices": lambda: gpus.gather_devices(simulated),
    }
    if not quickly:
        found["driver"] = lambda: gpus.gather_driver(who.uid)
    return found


class _Taken:
    """The looks' facts by their names, and findings for those that came to nothing."""

    def __init__(self, taken: Mapping[str, Look]) -> None:
        self._taken = taken

    def __getitem__(self, name: str) -> Any:
        return self._taken[name].facts if name in self._taken else None

    def unknown(self, area: Area, *names: str) -> Verdict | None:
        """What to say of an area without the facts of these looks; None where all are there."""
        failed = [name for name in names if self[name] is None and name in self._taken]
        if not failed:
            return None
        found: list[Finding] = []
        for name in failed:
            why = self._taken[name].failed
            if name == "systemd" and not why:
                found.append(finding("systemd-hangs", "no answer over D-Bus in time", "systemctl list-jobs"))
            elif name == area or name not in AREAS:  # else the look's own area says it
                kind, what = ("look-failed", f"{name}: {why}") if why else ("look-hangs", f"the look at: {name}")
                found.append(finding(kind, what))
        return Verdict(area, "not known", (), tuple(found))


def _report(who: Who, looked: Mapping[str, Look], *, quickly: bool = False) -> Report:
    taken = _Taken(looked)
    systemd, session = taken["systemd"], taken["session"]
    acts: tuple[Acting, ...] = ()
    if not taken.unknown("limits", "configuration", "systemd", "disks"):
        acts = check_limits.profiles(taken["configuration"], systemd, taken["disks"], who)
    made: dict[Area, Callable[[], Verdict]] = {
        "systemd": lambda: check_systemd.systemd(systemd, who),
        "kernel": lambda: check_systemd.kernel(taken["kernel"], who),
        "session": lambda: check_systemd.session(session, systemd, who),
        "limits": lambda: check_limits.limits(acts, systemd, taken["disks"], who),
        "gpus": lambda: _gpus(taken, looked, who, quickly=quickly),
        "state": lambda: check_state.state(taken["state"], session, who),
        "journal": lambda: check_journal.journal(taken["journal"], taken["units"], systemd, who),
        "units": lambda: check_journal.units(taken["units"], systemd, who),
        "configuration": lambda: check_limits.configuration(taken["configuration"]),
        "environment": lambda: check_environment.environment(taken["environment"], who),
        "others": lambda: check_environment.others(taken["others"], who),
    }
    needs: dict[Area, tuple[str, ...]] = {"limits": ("configuration", "systemd", "disks"), "gpus": ("devices",)}
    verdicts = tuple(
        taken.unknown(area, *needs.get(area, (area,))) or make() for area, make in made.items()
    )
    return Report(who, verdicts, acts)


def _gpus(taken: _Taken, looked: Mapping[str, Look], who: Who, *, quickly: bool) -> Verdict:
    devices, systemd = taken["devices"], taken["systemd"]
    if quickly:
        return Verdict("gpus", "", (), ())
    look = looked["driver"]
    if look.facts is None and look.failed:
        return Verdict("gpus", "not known", (), (finding("look-failed", f"driver: {look.failed}"),))
    return check_gpus.gpus(devices, look.facts, systemd.container if systemd else "", who)
