"""What the broker takes of the configuration: /etc/slicer alone, no user's file and no variable."""

from __future__ import annotations

import os

from slicer.config import profiles
from slicer.config.files import SYSTEM_DIR
from slicer.errors import SlicerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Where no user has files: neither root nor anybody else adds to what /etc/slicer says.
_NO_USER = {"XDG_CONFIG_HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}
_FILES = ("config.toml", "conf.d")  # of slicer.config.files


class Configuration:
    """The slots and the settings of decisions. What cannot be read leaves the last good one in force."""

    def __init__(self, warn: Callable[[str], None], directory: str = SYSTEM_DIR) -> None:
        """Raises ConfigError: at the start there is no last good one."""
        self._warn = warn
        self._directory = directory
        self._seen = self._look()
        self._load()

    def _load(self) -> None:
        found = profiles.load(_NO_USER, profiles.host(), system_dir=self._directory, remembers=False)
        self.config = found
        self.slots: dict[str, int] = dict(found.slots)
        self.placement = found.policy

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        """What tells an old file from a new one."""
        paths = [os.path.join(self._directory, name) for name in _FILES]
        if os.path.isdir(paths[1]):
            paths += sorted(entry.path for entry in os.scandir(paths[1]))
        found = []
        for path in paths:
            try:
                info = os.stat(path)
            except OSError:
                continue
            found.append((path, info.st_mtime_ns, info.st_ino))
        return tuple(found)

    def refresh(self) -> bool:
        """Read the files again if they have changed; whether other values are in force."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        before = self.slots, self.placement
        try:
            self._load()
        except SlicerError as error:
            self._warn(f"the last good configuration stays in force: {error}")
        return before != (self.slots, self.placement)
