"""Who is in the way of a closed shop: what opens GPUs outside of jobs, in login sessions."""

from __future__ import annotations

import os

from slicer.kernel import cgroup, on_host
from slicer.kernel.proc import read_text
from slicer.kernel.users import user_name
from slicer.record import record

_UNITS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
    "/lib/systemd/system",
)  # fmt: skip
_DISPLAY_MANAGER = "/etc/systemd/system/display-manager.service"
_SESSIONS = "/run/systemd/sessions"
_GRAPHICAL = ("x11", "wayland", "mir")


@record
class Session:
    """A graphical login session, by logind. ``kind``: "x11", "wayland" or "mir"."""

    id: str
    user: str
    kind: str
    is_greeter: bool


@record
class Opener:
    """A process that has a GPU open now, in a login session."""

    pid: int
    name: str
    user: str


def has_unit(unit: str) -> bool:
    """Whether systemd knows a unit of that name, by its file."""
    return any(os.path.exists(on_host(f"{folder}/{unit}")) for folder in _UNITS)


def display_manager() -> str:
    """The display manager that is switched on ("gdm.service"); "": there is none."""
    try:
        return os.path.basename(os.readlink(on_host(_DISPLAY_MANAGER)))
    except OSError:
        return ""


def sessions() -> tuple[Session, ...]:
    """The graphical sessions that logind knows."""
    folder = on_host(_SESSIONS)
    found = []
    for name in _names(folder):
        path = os.path.join(folder, name)
        said = _assignments(path) if os.path.isfile(path) else {}  # beside each lies a FIFO
        if said.get("TYPE") in _GRAPHICAL:
            user = said.get("USER", "") or _name_of(said.get("UID", ""))
            found.append(Session(name, user, said["TYPE"], said.get("CLASS") == "greeter"))
    return tuple(found)


def openers() -> tuple[Opener, ...]:
    """The processes below user.slice that have one of NVIDIA's nodes open."""
    found = []
    for name in _names("/proc"):
        if name.isdecimal() and cgroup.of(name).startswith("/user.slice/") and _has_open(name):
            try:
                user = user_name(os.stat(f"/proc/{name}").st_uid)
                found.append(Opener(int(name), read_text(f"/proc/{name}/comm").strip(), user))
            except OSError:
                continue  # it has just ended
    return tuple(sorted(found, key=lambda opener: opener.pid))


def _has_open(pid: str) -> bool:
    folder = f"/proc/{pid}/fd"
    for name in _names(folder):
        try:
            if os.readlink(f"{folder}/{name}").startswith("/dev/nvidia"):  # stat(2) could wait for a server
                return True
        except OSError:
            continue
    return False


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []  # it is not there, or has just ended


def _assignments(path: str) -> dict[str, str]:
    try:
        lines = read_text(path).splitlines()
    except OSError:
        return {}
    return {key: value for key, equals, value in (line.partition("=") for line in lines) if equals}


def _name_of(uid: str) -> str:
    return user_name(int(uid)) if uid.isdecimal() else "unknown"
