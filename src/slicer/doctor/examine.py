"""The whole examination: the looks, side by side, and what the checks make of them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping

from slicer.doctor import looks
from slicer.doctor.checks import broker as check_broker
from slicer.doctor.checks import environment as check_environment
from slicer.doctor.checks import fence as check_fence
from slicer.doctor.checks import gpus as check_gpus
from slicer.doctor.checks import journal as check_journal
from slicer.doctor.checks import sharing as check_sharing
from slicer.doctor.checks import wraps as check_wraps
from slicer.doctor.facts import broker as broker_facts
from slicer.doctor.facts import configuration, disks, gpus, journal, kernel, others, session, state, units
from slicer.doctor.facts import environment as environment_facts
from slicer.doctor.facts import fence as fence_facts
from slicer.doctor.facts import sharing as sharing_facts
from slicer.doctor.facts import systemd as systemd_facts
from slicer.doctor.facts import wraps as wrap_facts
from slicer.doctor.glance import report
from slicer.doctor.kinds import finding
from slicer.doctor.looks import Look
from slicer.doctor.model import Area, Finding, Report, Verdict, Who
from slicer.doctor.taken import Taken, who_is

DEADLINE_S = 8.0  # a driver that is not kept initialised takes seconds for its first answer


def examine(environ: Mapping[str, str], uid: int) -> Report:
    """Look at everything. Takes :data:`DEADLINE_S` seconds at most, and changes nothing."""
    is_sudoer, is_nixos = shutil.which("sudo") is not None, os.path.exists("/etc/NIXOS")
    who = who_is(uid, environ, is_sudoer=is_sudoer, is_nixos=is_nixos)
    return _report(who, looks.take(_duties(environ, who), DEADLINE_S))


def _duties(environ: Mapping[str, str], who: Who) -> dict[str, Callable[[], object]]:
    """The looks by their names."""
    return {
        "driver": lambda: gpus.gather_driver(who.uid),  # it takes longest
        "systemd": lambda: systemd_facts.gather(who.uid, who.manager),
        "kernel": kernel.gather,
        "session": lambda: session.gather(who.uid),
        "disks": disks.gather,
        "configuration": lambda: configuration.gather(environ),
        "devices": gpus.gather_devices,
        "fence": lambda: fence_facts.gather(who.uid),
        "sharing": lambda: sharing_facts.gather(environ),
        "state": lambda: state.gather(environ, who.uid),
        "broker": lambda: broker_facts.gather(environ),
        "journal": lambda: journal.gather(who.uid),
        "units": lambda: units.gather(environ),
        "environment": lambda: environment_facts.gather(environ, sys.argv[0]),
        "wraps": lambda: wrap_facts.gather(environ),
        "others": lambda: others.gather(environ),
    }


def _report(who: Who, looked: Mapping[str, Look]) -> Report:
    taken = Taken(looked)
    systemd = taken["systemd"]
    more: dict[Area, Callable[[], Verdict]] = {
        "gpus": lambda: _gpus(taken, looked["driver"], who),
        "broker": lambda: check_broker.broker(taken["broker"], who),
        "journal": lambda: check_journal.journal(taken["journal"], systemd, who),
        "units": lambda: check_journal.units(taken["units"], systemd, who),
        "wraps": lambda: check_wraps.wraps(taken["wraps"]),
        "others": lambda: check_environment.others(taken["others"]),
    }
    return report(who, taken, more, {"gpus": ("devices",)})


def _gpus(taken: Taken, look: Look, who: Who) -> Verdict:
    """The driver's silence is a finding, and not only a look that came to nothing."""
    systemd = taken["systemd"]
    if look.facts is None and look.failed:
        return Verdict("gpus", "not known", (), (finding("look-failed", f"driver: {look.failed}"),))
    shown, found = _sharing(taken, look, who)
    fence = taken["fence"]
    if fence is not None and systemd is not None:
        shown = (*shown, *check_fence.described(fence, systemd))
        found = (*found, *check_fence.fence(fence, taken["devices"], systemd, taken["broker"], who))
    container = systemd.container if systemd else ""
    served = taken["configuration"].served if taken["configuration"] is not None else ()
    return check_gpus.gpus(taken["devices"], look.facts, container, who, (shown, found), served)


def _sharing(taken: Taken, look: Look, who: Who) -> tuple[tuple[tuple[str, str], ...], tuple[Finding, ...]]:
    facts, configuration = taken["sharing"], taken["configuration"]
    if facts is None:
        unknown = taken.unknown("gpus", "sharing")
        return (), unknown.findings if unknown else ()
    profiles = configuration.profiles if configuration is not None else ()
    found = check_sharing.sharing(facts, profiles, look.facts, who)
    return check_sharing.described(facts, look.facts, who), tuple(found)
