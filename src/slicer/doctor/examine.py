"""The whole examination: all looks side by side, and the checks of their facts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping

from slicer.doctor import looks
from slicer.doctor.checks import gpus as check_gpus
from slicer.doctor.checks import state as check_state
from slicer.doctor.checks import units as check_units
from slicer.doctor.facts import broker, configuration, gpus, host, installed
from slicer.doctor.findings import Area, AreaVerdict, DoctorReport, Finding, Who
from slicer.doctor.glance import LookFacts, duties, report, who_is
from slicer.doctor.kinds import finding
from slicer.doctor.looks import LookResult

DEADLINE_S = 8.0  # a driver without persistence mode takes seconds to answer at first


def examine(environ: Mapping[str, str], uid: int) -> DoctorReport:
    """Examine everything. Takes at most :data:`DEADLINE_S` seconds and changes nothing."""
    is_sudoer, is_nixos = shutil.which("sudo") is not None, os.path.exists("/etc/NIXOS")
    who = who_is(uid, environ, is_sudoer=is_sudoer, is_nixos=is_nixos)
    return _report(who, looks.take(_duties(environ, who), DEADLINE_S))


def _duties(environ: Mapping[str, str], who: Who) -> dict[str, Callable[[], object]]:
    return {
        "driver": lambda: gpus.gather_driver(who.uid),  # it takes longest
        **duties(environ, who),
        "devices": gpus.gather_devices,
        "fence": lambda: gpus.gather_fence(who.uid),
        "sharing": lambda: gpus.gather_sharing(environ),
        "broker": lambda: broker.gather(environ),
        "journal": lambda: host.gather_journal(who.uid),
        "units": lambda: installed.gather_units(environ),
        "wraps": lambda: installed.gather_wraps(environ),
        "others": lambda: configuration.gather_others(environ),
    }


def _report(who: Who, looked: Mapping[str, LookResult]) -> DoctorReport:
    taken = LookFacts(looked)
    manager = taken["systemd"]
    more: dict[Area, Callable[[], AreaVerdict]] = {
        "gpus": lambda: _gpus(taken, looked["driver"], who),
        "broker": lambda: check_state.broker(taken["broker"], who),
        "journal": lambda: check_units.journal(taken["journal"], manager, who),
        "units": lambda: check_units.units(taken["units"], manager, taken["session"], who),
        "wraps": lambda: check_units.wraps(taken["wraps"]),
        "others": lambda: check_state.others(taken["others"]),
    }
    return report(who, taken, more)


def _gpus(taken: LookFacts, look: LookResult, who: Who) -> AreaVerdict:
    """A silent driver is a finding of its own, not only a failed look."""
    manager = taken["systemd"]
    if look.facts is None and look.failed:
        return AreaVerdict("gpus", "not known", (), (finding("look-failed", f"driver: {look.failed}"),))
    shown, found = _sharing(taken, look, who)
    fence = taken["fence"]
    if fence is not None and manager is not None:
        found = (*found, *check_gpus.fence(fence, taken["devices"], manager, taken["broker"], who))
    container = manager.container if manager else ""
    served = taken["configuration"].served if taken["configuration"] is not None else ()
    return check_gpus.gpus(taken["devices"], look.facts, container, who, (shown, found), served)


def _sharing(
    taken: LookFacts, look: LookResult, who: Who
) -> tuple[tuple[tuple[str, str], ...], tuple[Finding, ...]]:
    facts, configuration = taken["sharing"], taken["configuration"]
    if facts is None:
        unknown = taken.unknown("gpus", "sharing")
        return (), unknown.findings if unknown else ()
    profiles = configuration.profiles if configuration is not None else ()
    shown = (("GPU memory limit by cgroup", check_gpus.driver_limit(facts, look.facts, who)),)
    return shown, tuple(check_gpus.sharing(facts, profiles, look.facts, who))
