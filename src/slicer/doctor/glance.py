"""The cheap part of the examination, for ``slicer`` without arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slicer.backend import broker_socket
from slicer.doctor import looks
from slicer.doctor.checks import host as check_systemd
from slicer.doctor.checks import limits as check_limits
from slicer.doctor.checks import state as check_state
from slicer.doctor.facts import configuration, host, state, systemd
from slicer.doctor.findings import AREAS, ActiveLimits, Area, AreaVerdict, DoctorReport, Finding, Who
from slicer.doctor.kinds import finding
from slicer.doctor.looks import LookResult
from slicer.kernel.users import user_name
from slicer.model import manager_of

_FOR_LIMITS = ("configuration", "systemd", "disks")
# The looks that an area needs, if they are not named like it.
_NEEDS: dict[Area, tuple[str, ...]] = {"limits": _FOR_LIMITS, "gpus": ("devices",)}


def who_is(uid: int, environ: Mapping[str, str], *, is_sudoer: bool, is_nixos: bool = False) -> Who:
    """Describe the user. With the broker, the system manager starts everybody's jobs."""
    manager = "system" if broker_socket(environ) else manager_of(uid)
    return Who(uid, user_name(uid), manager, is_sudoer, is_nixos)


class LookFacts:
    """The looks' facts by name, and findings for looks that failed."""

    def __init__(self, taken: Mapping[str, LookResult]) -> None:
        self._taken = taken

    def __getitem__(self, name: str) -> Any:
        return self._taken[name].facts if name in self._taken else None

    def unknown(self, area: Area, *names: str) -> AreaVerdict | None:
        """The verdict on an area for which facts are missing; None if all of them are there."""
        failed = [name for name in names if self[name] is None and name in self._taken]
        if not failed:
            return None
        found: list[Finding] = []
        for name in failed:
            why = self._taken[name].failed
            if name == "systemd" and not why:
                found.append(finding("systemd-hangs", "no answer over D-Bus in time", "systemctl list-jobs"))
            elif name == area or name not in AREAS:  # otherwise the look's own area reports it
                failure = finding("look-failed", f"{name}: {why}")
                found.append(failure if why else finding("look-hangs", f"the check of: {name}"))
        return AreaVerdict(area, "not known", (), tuple(found))


def glance(environ: Mapping[str, str], uid: int) -> DoctorReport:
    """The verdicts that need neither D-Bus, nor the driver, nor a search for other programs.

    It runs without child processes and without a deadline, so let :func:`looks.take` call it.
    """
    who = who_is(uid, environ, is_sudoer=False)
    taken = {name: looks.look(duty) for name, duty in duties(environ, who, is_brief=True).items()}
    return report(who, LookFacts(taken), {})


def duties(
    environ: Mapping[str, str], who: Who, *, is_brief: bool = False
) -> dict[str, Callable[[], object]]:
    return {
        "systemd": lambda: systemd.gather(who.uid, who.manager, asks=not is_brief),
        "kernel": host.gather_kernel,
        "session": lambda: host.gather_session(who.uid),
        "disks": host.gather_disks,
        "configuration": lambda: configuration.gather_configuration(environ),
        "state": lambda: state.gather(environ, who.uid, asks_for_lock=not is_brief),
        "environment": lambda: configuration.gather_environment(environ, searches=not is_brief),
    }


def report(who: Who, taken: LookFacts, more: Mapping[Area, Callable[[], AreaVerdict]]) -> DoctorReport:
    """The verdicts on the areas of a glance, and on those of ``more``."""
    manager = taken["systemd"]
    acts: tuple[ActiveLimits, ...] = ()
    if not taken.unknown("limits", *_FOR_LIMITS):
        acts = check_limits.profiles(taken["configuration"], manager, taken["disks"], who)
    made: dict[Area, Callable[[], AreaVerdict]] = {
        "systemd": lambda: check_systemd.systemd(manager, who),
        "kernel": lambda: check_systemd.kernel(taken["kernel"], who),
        "session": lambda: check_systemd.session(taken["session"], manager, who),
        "limits": lambda: check_limits.limits(acts, manager, taken["disks"], who),
        "state": lambda: check_state.state(taken["state"], who),
        "configuration": lambda: check_limits.configuration(taken["configuration"]),
        "environment": lambda: check_state.environment(taken["environment"]),
        **more,
    }
    areas = (area for area in AREAS if area in made)
    verdicts = (taken.unknown(area, *_NEEDS.get(area, (area,))) or made[area]() for area in areas)
    return DoctorReport(who, tuple(verdicts), acts)
