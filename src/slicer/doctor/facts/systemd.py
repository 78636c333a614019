"""systemd, its managers, and the cgroups that it can give to jobs."""

from __future__ import annotations

import os
import re

from slicer.backend import is_booted
from slicer.backend.scopes import filters_devices
from slicer.backend.systemd import SystemdBackend
from slicer.doctor.facts.host import mounts
from slicer.errors import BackendError
from slicer.kernel import cgroup
from slicer.kernel.proc import text_of
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Manager


@record
class SystemdFacts:
    """``unreachable`` is "" if the manager that would start jobs answers."""

    boots: bool  # systemd runs here
    unreachable: str
    version: str  # systemd's own text, such as "257.13-1~deb13u1"; "" if unknown
    container: str  # "docker", "lxc", …; "" if none
    is_wsl: bool
    cgroups: str  # "v2", "hybrid", "v1" or "none"
    at: str  # the manager's cgroup, below which scopes are created
    is_there: bool  # that cgroup exists, so its controllers are known
    controllers: tuple[str, ...]  # the controllers that it has
    on_v1: tuple[str, ...]  # controllers in use by a v1 hierarchy
    filters_devices: bool = True  # the kernel lets the system manager fence devices; True if unknown

    @property
    def number(self) -> tuple[int, int]:
        """The version's first two numbers; (0, 0) if unknown."""
        found = re.match(r"(\d+)(?:\.(\d+))?", self.version)
        return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def gather(uid: int, manager: Manager, *, asks: bool = True) -> SystemdFacts:
    """``asks``: ask the manager over D-Bus, which may hang. Otherwise only check that its socket exists."""
    at = f"/user.slice/user-{uid}.slice/user@{uid}.service" if manager == "user" else ""
    boots = is_booted()
    unreachable, version = "", ""
    if boots and not asks:
        path = f"/run/user/{uid}/bus" if manager == "user" else "/run/dbus/system_bus_socket"
        unreachable = "" if os.path.exists(path) else f"{path} does not exist"
    elif boots:
        try:
            version, at = _ask(manager)
        except BackendError as error:
            unreachable = error.message
            version = _system_version() if manager == "user" else ""
    return SystemdFacts(
        boots=boots, unreachable=unreachable, version=version, container=_container(),
        is_wsl="microsoft" in text_of("/proc/sys/kernel/osrelease").lower(),
        cgroups=_cgroups(), at=at, is_there=os.path.isdir(cgroup.path_of(at)),
        controllers=tuple(sorted(cgroup.controllers(cgroup.path_of(at)))), on_v1=_on_v1(),
        filters_devices=filters_devices(""),
    )  # fmt: skip


def _ask(manager: Manager) -> tuple[str, str]:
    backend = SystemdBackend(manager)
    backend.connect()
    try:
        return backend.manager_property("Version"), backend.manager_property("ControlGroup")
    finally:
        backend.close()


def _system_version() -> str:
    backend = SystemdBackend("system")
    try:
        backend.connect()
        return backend.manager_property("Version")
    except BackendError:
        return ""
    finally:
        backend.close()


def _container() -> str:
    named = text_of("/run/systemd/container")
    if named:
        return named
    marks = (("/run/.containerenv", "podman"), ("/.dockerenv", "docker"))
    return next((name for path, name in marks if os.path.exists(path)), "")


def _cgroups() -> str:
    root = cgroup.root()
    if root == "/sys/fs/cgroup":
        return "v2"
    if root is not None:
        return "hybrid"
    return "v1" if any(mount.kind == "cgroup" for mount in mounts()) else "none"


def _on_v1() -> tuple[str, ...]:
    """The controllers with their own hierarchy: /proc/cgroups has name, hierarchy, cgroups, enabled."""
    rows = [line.split() for line in text_of("/proc/cgroups").splitlines() if not line.startswith("#")]
    return tuple(row[0] for row in rows if len(row) == 4 and row[1] != "0" and row[3] == "1")
