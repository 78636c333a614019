"""What the broker takes of the configuration: /etc/slicer alone, no user's file and no variable."""

from __future__ import annotations

import os

from slicer.config import profiles
from slicer.config.files import SYSTEM_DIR
from slicer.errors import SlicerError
from slicer.placement.capacity import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.config.profiles import Config
    from slicer.model import Profile

# Where no user has files: neither root nor anybody else adds to what /etc/slicer says.
_NO_USER = {"XDG_CONFIG_HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}
_FILES = ("config.toml", "conf.d")  # of slicer.config.files


class Configuration:
    """The slots and the settings of decisions. What cannot be read leaves the last good one in force."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._directory = ""
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self.config: Config | None = None  # all of it, for the administrator's profiles
        self._profiles: dict[str, Profile] = {}  # those of it that were asked for
        self.slots: dict[str, int] = {}
        self.placement = Policy()

    def load(self, directory: str = SYSTEM_DIR) -> None:
        """Read the files of that directory. Raises ConfigError."""
        self._directory = directory
        self._seen = self._look()
        self.config = found = profiles.load(
            _NO_USER, profiles.host(), system_dir=directory, remembers=False
        )
        self._profiles.clear()
        self.slots = dict(found.slots)
        self.placement = found.policy

    def profile(self, name: str) -> Profile | None:
        """The administrator's profile of that name; None: there is none."""
        if self.config is None or not name:
            return None
        if name not in self._profiles:
            try:
                self._profiles[name] = self.config.profile(name)
            except SlicerError:
                return None
        return self._profiles[name]

    def refresh(self) -> bool:
        """Read the files again if they have changed; whether other values are in force."""
        if self._look() == self._seen:
            return False
        before = self.config
        try:
            self.load(self._directory)
        except SlicerError as error:
            self._warn(f"the configuration from before stays in force: {error}")
        return self.config is not before

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        """What tells old files from new ones."""
        found = []
        for path in (self._directory, *(os.path.join(self._directory, name) for name in _FILES)):
            found += _identity(path)
        for path in _drop_ins(os.path.join(self._directory, _FILES[1])):
            found += _identity(path)
        return tuple(found)


def _drop_ins(path: str) -> list[str]:
    try:
        return sorted(os.path.join(path, name) for name in os.listdir(path))
    except OSError:
        return []  # what is wrong with it is said when it is read


def _identity(path: str) -> list[tuple[str, int, int]]:
    try:
        info = os.stat(path)
    except OSError:
        return []
    return [(path, info.st_ino, info.st_mtime_ns)]
