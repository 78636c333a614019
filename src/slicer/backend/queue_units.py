"""The units with which detached queues go on after a boot: of the system for root, of each user's manager."""

from __future__ import annotations

import os

from slicer.kernel import home, on_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.model import Manager

UNIT = "slicer-queues.service"
_WHAT = "detached queues go on after a boot"


def table(*, user: bool) -> tuple[tuple[str, str, str], ...]:
    """Source below src/slicer/, destination below the prefix, description."""
    if user:
        return ((f"_units/user/{UNIT}", f"systemd/user/{UNIT}", f"your {_WHAT}"),)
    whose = (("system", "root's"), ("user", "users'"))
    return tuple(
        (f"_units/{kind}/{UNIT}", f"lib/systemd/{kind}/{UNIT}", f"{who} {_WHAT}") for kind, who in whose
    )


def enable(*, user: bool) -> tuple[tuple[str, ...], ...]:
    """The commands once the files exist. It acts from the next boot on."""
    return tuple(_systemctl(flag, "enable") for flag in _flags(user=user))


def disable(environ: Mapping[str, str], *, user: bool) -> tuple[tuple[str, ...], ...]:
    """The commands before the files are removed, where it was enabled."""
    flags = (flag for flag in _flags(user=user) if os.path.lexists(_link(flag, environ)))
    return tuple(_systemctl(flag, "disable") for flag in flags)


def _systemctl(flag: str, verb: str) -> tuple[str, ...]:
    return ("systemctl", *filter(None, (flag,)), verb, UNIT)


def is_enabled(manager: Manager, environ: Mapping[str, str]) -> bool:
    """Whether it starts with the system, or with this user's manager."""
    flags = ("",) if manager == "system" else ("--user", "--global")
    return any(os.path.lexists(_link(flag, environ)) for flag in flags)


def _flags(*, user: bool) -> tuple[str, ...]:
    return ("--user",) if user else ("", "--global")


def _link(flag: str, environ: Mapping[str, str]) -> str:
    """What systemctl makes with this flag."""
    if not flag:
        return on_host(f"/etc/systemd/system/multi-user.target.wants/{UNIT}")
    config = environ.get("XDG_CONFIG_HOME") or f"{home(environ)}/.config"
    folder = config if flag == "--user" else on_host("/etc")
    return f"{folder}/systemd/user/default.target.wants/{UNIT}"
