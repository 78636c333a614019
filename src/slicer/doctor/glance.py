"""What can be found out cheaply: a part of the examination, for ``slicer`` without arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slicer.doctor import looks
from slicer.doctor.checks import environment as check_environment
from slicer.doctor.checks import limits as check_limits
from slicer.doctor.checks import state as check_state
from slicer.doctor.checks import systemd as check_systemd
from slicer.doctor.facts import configuration, disks, kernel, session, state
from slicer.doctor.facts import environment as environment_facts
from slicer.doctor.facts import systemd as systemd_facts
from slicer.doctor.model import AREAS, Acting, Area, Report, Verdict, Who
from slicer.doctor.taken import Taken, who_is

_FOR_LIMITS = ("configuration", "systemd", "disks")


def glance(environ: Mapping[str, str], uid: int) -> Report:
    """The verdicts that need neither D-Bus, the driver, nor a look at what else runs here.

    Without children and a deadline, so let :func:`looks.take` call it.
    """
    who = who_is(uid, environ, is_sudoer=False)
    duties: dict[str, Callable[[], object]] = {
        "systemd": lambda: systemd_facts.gather(who.uid, who.manager, asks=False),
        "kernel": kernel.gather,
        "session": lambda: session.gather(who.uid),
        "disks": disks.gather,
        "configuration": lambda: configuration.gather(environ),
        "state": lambda: state.gather(environ, who.uid, asks_for_lock=False),
        "environment": lambda: environment_facts.gather(environ, "", searches=False),
    }
    return report(who, Taken({name: looks.look(duty) for name, duty in duties.items()}), {}, {})


def report(
    who: Who, taken: Taken, more: Mapping[Area, Callable[[], Verdict]],
    needs: Mapping[Area, tuple[str, ...]],
) -> Report:  # fmt: skip
    """The verdicts on what a glance looks at, and on the areas of ``more``.

    ``needs`` names the looks of an area, where these are not called as the area is.
    """
    systemd, session = taken["systemd"], taken["session"]
    acts: tuple[Acting, ...] = ()
    if not taken.unknown("limits", *_FOR_LIMITS):
        acts = check_limits.profiles(taken["configuration"], systemd, taken["disks"], who)
    made: dict[Area, Callable[[], Verdict]] = {
        "systemd": lambda: check_systemd.systemd(systemd, who),
        "kernel": lambda: check_systemd.kernel(taken["kernel"], who),
        "session": lambda: check_systemd.session(session, systemd, who),
        "limits": lambda: check_limits.limits(acts, systemd, taken["disks"], who),
        "state": lambda: check_state.state(taken["state"], who),
        "configuration": lambda: check_limits.configuration(taken["configuration"]),
        "environment": lambda: check_environment.environment(taken["environment"]),
        **more,
    }
    needed: dict[Area, tuple[str, ...]] = {"limits": _FOR_LIMITS, **needs}
    areas = (area for area in AREAS if area in made)
    verdicts = (taken.unknown(area, *needed.get(area, (area,))) or made[area]() for area in areas)
    return Report(who, tuple(verdicts), acts)
