"""The machine's ordinary users, and their managers."""

from __future__ import annotations

import pwd
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.patience import until
from tests.systemd.helpers import systemctl


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
    def bare(self) -> tuple[str, ...]:
        """As under cron, su and sudo -u: without a word about a session."""
        unset = ("-u", "XDG_RUNTIME_DIR", "-u", "DBUS_SESSION_BUS_ADDRESS")
        return *self.identity, "env", *unset, f"HOME={self.home}"

    @property
    def systemctl(self) -> tuple[str, ...]:
        return *self.via, "systemctl", "--user"

    @property
    def ledger(self) -> str:
        return f"/run/lock/slicer-{self.uid}"

    @property
    def history(self) -> str:
        return f"{self.home}/.local/state/slicer/history.db"


def user(name: str) -> User:
    entry = pwd.getpwnam(name)
    return User(name, Path(entry.pw_dir), entry.pw_uid)


def lingering(name: str) -> Iterator[User]:
    made = user(name)
    start_manager(made)
    yield made
    end_session(made)
    for directory in (made.ledger, made.home / ".local/state/slicer"):
        shutil.rmtree(directory, ignore_errors=True)


def start_manager(made: User) -> None:
    """The user has a manager, as long as nobody ends it."""
    systemctl.output("loginctl", "enable-linger", made.name)
    systemctl.output("systemctl", "start", f"user@{made.uid}.service")


def end_session(made: User) -> None:
    """As the last logout of a user who does not linger."""
    systemctl.output("loginctl", "disable-linger", made.name)
    stop_manager(made)


def stop_manager(made: User) -> None:
    """End the user's manager, for the next one to find nothing of it."""
    for unit in (f"user@{made.uid}.service", f"user-runtime-dir@{made.uid}.service"):
        systemctl.output("systemctl", "stop", unit)
    until(lambda: not Path(made.runtime).exists(), "the runtime directory is gone")
    # A manager that is started before that is taken down again by logind, half-way.
    until(lambda: not Path(f"/run/systemd/users/{made.uid}").exists(), "logind has forgotten the user")
