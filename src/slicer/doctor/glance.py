"""What can be found out cheaply: a part of the examination, for ``slicer`` without arguments."""

from __future__ import annotations

from slicer.doctor import looks
from slicer.doctor.checks import environment as check_environment
from slicer.doctor.checks import limits as check_limits
from slicer.doctor.checks import state as check_state
from slicer.doctor.checks import systemd as check_systemd
from slicer.doctor.facts import configuration, disks, kernel, session, state
from slicer.doctor.facts import environment as environment_facts
from slicer.doctor.facts import systemd as systemd_facts
from slicer.doctor.model import Report
from slicer.doctor.taken import Taken, who_is

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.doctor.model import Area, Verdict


def glance(environ: Mapping[str, str], uid: int) -> Report:
    """The verdicts that need neither D-Bus, the driver, nor a look at what else runs here.

    Without children and a deadline, so let :func:`looks.take` call it.
    """
    who = who_is(uid, is_sudoer=False)
    duties: dict[str, Callable[[], object]] = {
        "systemd": lambda: systemd_facts.gather(who.uid, who.manager, asks=False),
        "kernel": lambda: kernel.gather(who.uid),
        "session": lambda: session.gather(who.uid),
        "disks": disks.gather,
        "configuration": lambda: configuration.gather(environ),
        "state": lambda: state.gather(environ, who.uid, asks_for_lock=False),
        "environment": lambda: environment_facts.gather(environ, "", searches=False),
    }
    taken = Taken({name: looks.look(duty) for name, duty in duties.items()})
    systemd, set_up, seen = taken["systemd"], taken["configuration"], taken["disks"]
    for_limits = ("configuration", "systemd", "disks")
    acts = () if taken.unknown("limits", *for_limits) else check_limits.profiles(set_up, systemd, seen, who)
    made: dict[Area, tuple[tuple[str, ...], Callable[[], Verdict]]] = {
        "systemd": (("systemd",), lambda: check_systemd.systemd(systemd, who)),
        "kernel": (("kernel",), lambda: check_systemd.kernel(taken["kernel"], who)),
        "session": (("session",), lambda: check_systemd.session(taken["session"], systemd, who)),
        "limits": (for_limits, lambda: check_limits.limits(acts, systemd, seen, who)),
        "state": (("state",), lambda: check_state.state(taken["state"], taken["session"], who)),
        "configuration": (("configuration",), lambda: check_limits.configuration(set_up)),
        "environment": (
            ("environment",), lambda: check_environment.environment(taken["environment"], who),
        ),
    }  # fmt: skip
    verdicts = (taken.unknown(area, *needs) or make() for area, (needs, make) in made.items())
    return Report(who, tuple(verdicts), acts)
