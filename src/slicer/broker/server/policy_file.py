"""The administrator's files in /etc/slicer, never a user's: read, checked, and read again after a change."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from slicer.broker.rules.policy import NO_POLICY, SitePolicy
from slicer.broker.rules.policy_text import names_in, read, resolve
from slicer.broker.server.names import Names
from slicer.config import profiles
from slicer.config.files import MAX_BYTES, SYSTEM_DIR, read_system_file
from slicer.config.profiles import Config
from slicer.errors import ConfigError, SlicerError, StateError
from slicer.kernel.open_files import file_id
from slicer.model import Profile
from slicer.placement.settings import Policy
from slicer.state.directory import Directory

PATH = "/etc/slicer/policy.toml"
_KEPT = "policy"  # in the broker's own directory: the text of the last good policy


def load(path: str = PATH, names: Names | None = None) -> tuple[SitePolicy, tuple[str, ...]]:
    """The policy in the file, and warnings; :data:`NO_POLICY` without a file.

    Raises ConfigError with file and line.
    """
    return meaning(read_system_file(path) or b"", path, names or Names())


def meaning(content: bytes, path: str, names: Names) -> tuple[SitePolicy, tuple[str, ...]]:
    """The policy in a text, and warnings. Raises ConfigError with file and line."""
    if not content:
        return NO_POLICY, ()
    said = read(content, path)
    return resolve(said, *names.look_up(*names_in(said)))


class PolicyFile:
    """The policy in force. A bad file leaves the last good one in force, also for the next broker.

    ``warn`` reports a bad file and unknown names once for each state of the file.
    """

    def __init__(
        self, path: str, *, kept: Directory, warn: Callable[[str], None], names: Names
    ) -> None:
        """``kept``: where the last good policy is kept until the next boot. Without any: ConfigError."""
        self._path = path
        self._kept = kept
        self._warn = warn
        self._names = names
        self._id = file_id(path)
        try:
            self.policy = self._load()
        except ConfigError as error:
            self.policy = self._from_before(error)
            self._warn_not_in_force(error)

    def _load(self) -> SitePolicy:
        content = read_system_file(self._path) or b""  # no file is a policy, too
        policy, warnings = meaning(content, self._path, self._names)
        for each in warnings:
            self._warn(each)
        self._keep(content)
        return policy

    def _from_before(self, error: ConfigError) -> SitePolicy:
        """The policy that an earlier broker kept. Raises the error if there is none or it is invalid."""
        if not self._kept.has(_KEPT):
            raise error
        try:
            return meaning(self._kept.read(_KEPT, MAX_BYTES), self._path, self._names)[0]
        except ConfigError:  # written by another version
            raise error from None

    def _keep(self, content: bytes) -> None:
        try:
            if not self._kept.has(_KEPT) or self._kept.read(_KEPT, MAX_BYTES) != content:
                os.close(self._kept.replace(_KEPT, content, mode=0o600))
        except (OSError, StateError) as error:
            self._warn(f"the policy cannot be kept for the next broker: {error}")

    def _warn_not_in_force(self, error: ConfigError) -> None:
        self._warn(f"{error}; the previous policy stays in force")

    def refresh(self) -> bool:
        """Read the file again if it has changed (otherwise one stat); returns whether the policy differs."""
        found = file_id(self._path)
        if found == self._id:
            return False
        self._id = found
        before = self.policy
        try:
            self.policy = self._load()
        except ConfigError as error:
            self._warn_not_in_force(error)
        return self.policy != before


# Where users have no files: only root's settings in /etc/slicer count.
_NO_USER = {"XDG_CONFIG_HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}
_FILES = ("config.toml", "conf.d")  # of slicer.config.files


class Configuration:
    """The slots and the settings of decisions. An unreadable file leaves the last good ones in force."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._directory = ""
        self._seen: object = None
        self.config: Config | None = None  # the whole configuration, for the administrator's profiles
        self._profiles: dict[str, Profile] = {}  # the ones requested so far
        self.slots: dict[str, int] = {}
        self.placement = Policy()

    def load(self, directory: str = SYSTEM_DIR) -> None:
        """Read the files of that directory. Raises ConfigError."""
        self._directory = directory
        self._seen = self._look()
        self.config = found = profiles.load(_NO_USER, profiles.host(), system_dir=directory, remembers=False)
        self._profiles.clear()
        self.slots = dict(found.slots)
        self.placement = found.policy

    def profile(self, name: str) -> Profile | None:
        """The administrator's profile of that name, or None."""
        if self.config is None or not name:
            return None
        if name not in self._profiles:
            try:
                self._profiles[name] = self.config.profile(name)
            except SlicerError:
                return None
        return self._profiles[name]

    def refresh(self) -> bool:
        """Read the files again if they have changed; returns whether the values are others."""
        if self._look() == self._seen:
            return False
        before = self.config
        try:
            self.load(self._directory)
        except SlicerError as error:
            self._warn(f"the previous configuration stays in force: {error}")
        return self.config is not before

    def _look(self) -> object:
        """Identities that distinguish old files from new ones."""
        config, drop_ins = (os.path.join(self._directory, name) for name in _FILES)
        paths = [self._directory, config, drop_ins]
        with suppress(OSError):  # reading it reports the error
            paths += sorted(os.path.join(drop_ins, name) for name in os.listdir(drop_ins))
        return [(path, file_id(path)) for path in paths]
