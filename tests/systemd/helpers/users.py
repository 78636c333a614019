"""The machine's ordinary users, and their managers."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slicer.install_units import apply, plan, remove
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.waiting import wait_until


@dataclass(frozen=True)
class User:
    """A user of the machine. ``slicer.start(…, via=alice.via)`` is slicer run by her."""

    name: str
    home: Path
    uid: int

    @property
    def identity(self) -> tuple[str, ...]:
        return "setpriv", f"--reuid={self.name}", f"--regid={self.name}", "--init-groups"

    @property
    def runtime(self) -> str:
        return f"/run/user/{self.uid}"

    @property
    def via(self) -> tuple[str, ...]:
        return *self.identity, "env", f"HOME={self.home}", f"XDG_RUNTIME_DIR={self.runtime}"

    @property
    def systemctl(self) -> tuple[str, ...]:
        return *self.via, "systemctl", "--user"

    @property
    def ledger(self) -> str:
        return f"{self.runtime}/slicer"

    @property
    def history(self) -> str:
        return f"{self.home}/.local/state/slicer/history.db"


def user(name: str) -> User:
    entry = pwd.getpwnam(name)
    return User(name, Path(entry.pw_dir), entry.pw_uid)


def lingering(name: str) -> Iterator[User]:
    made = user(name)
    systemctl.output("loginctl", "enable-linger", name)
    systemctl.output("systemctl", "start", f"user@{made.uid}.service")
    yield made
    systemctl.output("loginctl", "disable-linger", name)
    stop_manager(made)
    shutil.rmtree(made.home / ".local/state/slicer", ignore_errors=True)


def stop_manager(made: User) -> None:
    """End the user's manager, for the next one to find nothing of it."""
    for unit in (f"user@{made.uid}.service", f"user-runtime-dir@{made.uid}.service"):
        systemctl.output("systemctl", "stop", unit)
    wait_until("the runtime directory is gone", lambda: not Path(made.runtime).exists())
    # A manager that is started before that is taken down again by logind, half-way.
    wait_until("logind has forgotten the user", lambda: not Path(f"/run/systemd/users/{made.uid}").exists())


def sharing(*names: str) -> Iterator[None]:
    """Units installed; the users are in the group slicer, and so meet in the system's ledger."""
    whole = plan()
    apply(whole)
    for name in names:
        systemctl.output("gpasswd", "--add", name, "slicer")
    yield
    for name in names:
        systemctl.output("gpasswd", "--delete", name, "slicer")
    remove(whole)
    for path in ("/run/slicer", "/run/slicer/leases", "/run/slicer/tickets", "/run/slicer/bells"):
        os.chmod(path, 0o755)
        os.chown(path, 0, 0)
    os.chown("/run/slicer/lock", 0, 0)
