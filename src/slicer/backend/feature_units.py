"""What `slicer install` switches on: the broker, the board, the figures, and queues that go on after a boot.

For each: the files, their program, and the commands for systemd.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from slicer.backend.unit_files import SYSTEM_UNITS, program_in
from slicer.kernel import home, on_host

_ENABLED = "/etc/systemd/system"
# Source below src/slicer/, destination below the prefix, description.
Table = tuple[tuple[str, str, str], ...]
Commands = tuple[tuple[str, ...], ...]

FEATURES = ("web", "metrics")  # beside the broker
BROKER_SOCKET, BROKER_SERVICE = "slicer-broker.socket", "slicer-broker.service"
# The unit that is enabled, and what wants it. It starts the service of the same name.
_STARTERS = {
    "broker": (BROKER_SOCKET, "sockets.target"),
    "web": ("slicer-web.socket", "sockets.target"),
    "metrics": ("slicer-metrics.timer", "timers.target"),
}
_UNITS = {
    "broker": (
        (BROKER_SOCKET, "the broker's socket"),
        (BROKER_SERVICE, "the broker"),
        ("slicer-broker-devices.service", "NVIDIA's device nodes, for the broker"),
        ("slicer-job-ended@.target", "what wakes the broker at the end of a job"),
    ),
    "web": (
        ("slicer-web.socket", "the live board: slicer-web.socket"),
        ("slicer-web.service", "the live board: slicer-web.service"),
    ),
    "metrics": (
        ("slicer-metrics.timer", "figures for Prometheus: slicer-metrics.timer"),
        ("slicer-metrics.service", "figures for Prometheus: slicer-metrics.service"),
    ),
}
TEXTFILES = "/var/lib/prometheus/node-exporter"  # Debian's, as in the unit
# As in the package's files: the paths of the programs in Debian's package.
PROGRAM = "/usr/bin/slicer"
BROKER = "/usr/lib/slicer-systemd/slicer-broker"


def table(feature: str) -> Table:
    return tuple(_system(unit, what) for unit, what in _UNITS[feature])


def _system(unit: str, what: str, kind: str = "system") -> tuple[str, str, str]:
    return f"_units/{kind}/{unit}", f"lib/systemd/{kind}/{unit}", what


def is_there(feature: str) -> bool:
    """Whether it was installed or enabled, by slicer or by a package."""
    unit, target = _STARTERS[feature]
    paths = (f"{SYSTEM_UNITS}/{unit}", f"{_ENABLED}/{target}.wants/{unit}")
    return any(os.path.lexists(on_host(path)) for path in paths)


def enable(feature: str) -> Commands:
    """The commands once the files exist. A running service is of the older version."""
    start = ("systemctl", "enable", "--now", _STARTERS[feature][0])
    if feature == "broker":  # its leases and its queue outlive it
        return start, ("systemctl", "try-restart", BROKER_SERVICE)
    return ("systemctl", "stop", f"slicer-{feature}.service"), start


def disable(feature: str) -> Commands:
    """The commands before the files are removed. Old figures would look like new ones."""
    stop = ("systemctl", "disable", "--now", _STARTERS[feature][0])
    if feature == "broker":
        return (stop,)  # the service requires the socket, so it stops with it
    rest = [("rm", "-f", f"{TEXTFILES}/slicer.prom")] if feature == "metrics" else []
    return stop, ("systemctl", "stop", f"slicer-{feature}.service"), *rest


def broker_program() -> str:
    """The program in the broker's unit of `slicer install`; "" without such a unit."""
    return program_in(on_host(f"{SYSTEM_UNITS}/{BROKER_SERVICE}"), BROKER)


# -- queues after a boot: of the system for root, of each user's manager ------------------------------------

QUEUES = "slicer-queues.service"
_WHAT = "detached queues go on after a boot"


def queues_table(*, user: bool) -> Table:
    if user:
        return ((f"_units/user/{QUEUES}", f"systemd/user/{QUEUES}", f"your {_WHAT}"),)
    return _system(QUEUES, f"root's {_WHAT}"), _system(QUEUES, f"users' {_WHAT}", "user")


def enable_queues(*, user: bool) -> Commands:
    """The commands once the files exist. It acts from the next boot on."""
    return tuple(("systemctl", *flag, "enable", QUEUES) for flag in _flags(user=user))


def disable_queues(environ: Mapping[str, str], *, user: bool) -> Commands:
    """The commands before the files are removed, where it was enabled."""
    there = (flag for flag in _flags(user=user) if os.path.lexists(_link(flag, environ)))
    return tuple(("systemctl", *flag, "disable", QUEUES) for flag in there)


def resumes_queues(manager: str, environ: Mapping[str, str]) -> bool:
    """Whether it starts with the system, or with this user's manager."""
    flags = ((),) if manager == "system" else (("--user",), ("--global",))
    return any(os.path.lexists(_link(flag, environ)) for flag in flags)


def _flags(*, user: bool) -> Iterator[tuple[str, ...]]:
    yield from (("--user",),) if user else ((), ("--global",))


def _link(flag: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """What systemctl makes with this flag."""
    if not flag:
        return on_host(f"{_ENABLED}/multi-user.target.wants/{QUEUES}")
    config = environ.get("XDG_CONFIG_HOME") or f"{home(environ)}/.config"
    folder = config if flag == ("--user",) else on_host("/etc")
    return f"{folder}/systemd/user/default.target.wants/{QUEUES}"
