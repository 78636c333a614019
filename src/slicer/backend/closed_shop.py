"""The closed shop: login sessions cannot open NVIDIA's GPUs, so only a lease gives access.

It is a drop-in for user.slice, and for the services by which users run things outside of it. systemd only has
lists of allowed devices, so each driver's major number except NVIDIA's is allowed. Names of drivers would not
work: systemd looks them up once, when the machine boots, and most drivers are loaded later.

Other services, including containers, stay open: the administrator decides who may start those.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from slicer.backend.unit_files import SYSTEM_UNITS, Action
from slicer.kernel import cgroup, on_host
from slicer.kernel.open_files import links
from slicer.kernel.proc import names_in, read_text, text_of
from slicer.kernel.users import user_name
from slicer.record import record

NAME = "50-slicer-closed-shop.conf"
SLICE = "user.slice"
# Services that run users' orders outside of user.slice: cron and at, by the distributions' names.
JOB_RUNNERS = (
    "cron.service", "crond.service", "cronie.service", "fcron.service", "anacron.service", "atd.service",
)  # fmt: skip
# Running units get the rules, too: systemd 252 gives them to the kernel at the reload, 257 only when some
# unit starts.
COMMANDS = (
    ("systemctl", "daemon-reload"),
    ("systemd-run", "--quiet", "--collect", "--wait", "--description=rules of the closed shop", "true"),
)
_MAJORS = 512  # character devices have no more
_NVIDIA = 195

_TEXT = """\
# A closed shop: nothing in {unit} can open an NVIDIA GPU. slicer's jobs with a lease can.
# `slicer install --closed-shop --remove` removes it.
#
# All block devices, and every major number of character devices but NVIDIA's. Without NVIDIA's control device
# the other drivers of its GPUs (unified memory, MIG) are useless. By number, because systemd looks names up
# when the unit starts, and drivers that are loaded later would be left out.

[{section}]
{lines}
DevicePolicy=strict
"""


def drop_in(unit: str) -> bytes:
    allowed = ["block-* rwm", *(f"char-{major} rwm" for major in range(_MAJORS) if major != _NVIDIA)]
    lines = "\n".join(f"DeviceAllow={each}" for each in allowed)
    section = "Slice" if unit.endswith(".slice") else "Service"
    return _TEXT.format(unit=unit, section=section, lines=lines).encode()


def actions(units: Iterable[str]) -> tuple[Action, ...]:
    what = "closed shop: no GPUs in {} without a lease"
    return tuple(
        Action("", on_host(f"{SYSTEM_UNITS}/{unit}.d/{NAME}"), what.format(unit), drop_in(unit))
        for unit in units
    )


UNIT_FOLDERS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
)  # fmt: skip
_DISPLAY_MANAGER = "/etc/systemd/system/display-manager.service"
_SESSIONS = "/run/systemd/sessions"
_GRAPHICAL = ("x11", "wayland", "mir")


@record
class Session:
    """A graphical login session, from logind. ``kind``: "x11", "wayland" or "mir"."""

    id: str
    user: str
    kind: str
    is_greeter: bool


@record
class Opener:
    """A process in a login session that has a GPU open now."""

    pid: int
    name: str
    user: str


def has_unit(unit: str) -> bool:
    """Whether systemd has a file for a unit of that name."""
    folders = (*UNIT_FOLDERS, "/lib/systemd/system")
    return any(os.path.exists(on_host(f"{folder}/{unit}")) for folder in folders)


def display_manager() -> str:
    """The enabled display manager ("gdm.service"); "": there is none."""
    try:
        return os.path.basename(os.readlink(on_host(_DISPLAY_MANAGER)))
    except OSError:
        return ""


def sessions() -> tuple[Session, ...]:
    folder = on_host(_SESSIONS)
    found = []
    for name in names_in(folder):
        path = os.path.join(folder, name)
        said = _assignments(path) if os.path.isfile(path) else {}  # beside each session's file lies a FIFO
        if said.get("TYPE") in _GRAPHICAL:
            uid = said.get("UID", "")
            user = said.get("USER") or (user_name(int(uid)) if uid.isdecimal() else "unknown")
            found.append(Session(name, user, said["TYPE"], said.get("CLASS") == "greeter"))
    return tuple(found)


def openers() -> tuple[Opener, ...]:
    """The processes below user.slice that have one of NVIDIA's nodes open."""
    found = []
    for name in names_in("/proc"):
        if name.isdecimal() and cgroup.of(name).startswith("/user.slice/") and _has_open(int(name)):
            try:
                user = user_name(os.stat(f"/proc/{name}").st_uid)
                found.append(Opener(int(name), read_text(f"/proc/{name}/comm").strip(), user))
            except OSError:
                continue  # it has just ended
    return tuple(sorted(found, key=lambda opener: opener.pid))


def _has_open(pid: int) -> bool:
    return any(link.startswith("/dev/nvidia") for link in links(pid))  # stat(2) could wait for a server


def _assignments(path: str) -> dict[str, str]:
    lines = (line.partition("=") for line in text_of(path).splitlines())
    return {key: value for key, equals, value in lines if equals}
