"""The administrator's files in /etc/slicer, no user's: read, checked, read again when they change."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from slicer.broker.rules.policy import NO_POLICY, Policy
from slicer.broker.rules.policy_text import names_in, read, resolve
from slicer.broker.server.names import Names
from slicer.config import profiles
from slicer.config.files import MAX_BYTES, SYSTEM_DIR, read_system_file
from slicer.config.profiles import Config
from slicer.errors import ConfigError, SlicerError, StateError
from slicer.kernel.open_files import file_id
from slicer.model import Profile
from slicer.placement import capacity
from slicer.state.directory import Directory

PATH = "/etc/slicer/policy.toml"
_KEPT = "policy"  # in the broker's own directory: the text of the last good one


def load(path: str = PATH, names: Names | None = None) -> tuple[Policy, tuple[str, ...]]:
    """The policy in the file, and warnings; :data:`NO_POLICY` where there is no file.

    Raises ConfigError with file and line.
    """
    return meaning(read_system_file(path) or b"", path, names or Names())


def meaning(content: bytes, path: str, names: Names) -> tuple[Policy, tuple[str, ...]]:
    """The policy that a text is, and warnings. Raises ConfigError with file and line."""
    if not content:
        return NO_POLICY, ()
    said = read(content, path)
    return resolve(said, *names.look_up(*names_in(said)))


class PolicyFile:
    """The policy in force. A bad file leaves the last good one in force, also for the next broker.

    ``warn`` is told of a bad file and of names that nobody has, once for each state of the file.
    """

    def __init__(
        self, path: str = PATH, *, kept: Directory, warn: Callable[[str], None], names: Names | None = None
    ) -> None:
        """``kept``: where the last good one is kept until the next boot. Raises ConfigError without one."""
        self._path = path
        self._kept = kept
        self._warn = warn
        self._names = names or Names()
        self._id = file_id(path)
        try:
            self.policy = self._load()
        except ConfigError as error:
            self.policy = self._from_before(error)
            self._warn_not_in_force(error)

    def _load(self) -> Policy:
        content = read_system_file(self._path) or b""  # that there is none is a policy, too
        policy, warnings = meaning(content, self._path, self._names)
        for each in warnings:
            self._warn(each)
        self._keep(content)
        return policy

    def _from_before(self, error: ConfigError) -> Policy:
        """The policy that an earlier broker kept. Raises the error where there is nothing good."""
        if not self._kept.has(_KEPT):
            raise error
        try:
            return meaning(self._kept.read(_KEPT, MAX_BYTES), self._path, self._names)[0]
        except ConfigError:  # another version's words
            raise error from None

    def _keep(self, content: bytes) -> None:
        try:
            if not self._kept.has(_KEPT) or self._kept.read(_KEPT, MAX_BYTES) != content:
                os.close(self._kept.replace(_KEPT, content, mode=0o600))
        except (OSError, StateError) as error:
            self._warn(f"the policy cannot be kept for the next broker: {error}")

    def _warn_not_in_force(self, error: ConfigError) -> None:
        self._warn(f"{error}; the policy from before stays in force")

    def refresh(self) -> bool:
        """Read the file again if it has changed (one stat otherwise); whether another policy is in force."""
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

    def gids_of(self, uid: int, said: Sequence[int]) -> tuple[int, ...]:
        """The groups of a user, its own first: ``said`` by its socket, and those of /etc/group.

        A process may leave groups that limit it, so what its socket says is not all.
        """
        return self._names.gids_of(uid, said)

    def name_of(self, uid: int) -> str:
        return self._names.name_of(uid)


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
        self.placement = capacity.Policy()

    def load(self, directory: str = SYSTEM_DIR) -> None:
        """Read the files of that directory. Raises ConfigError."""
        self._directory = directory
        self._seen = self._look()
        self.config = found = profiles.load(_NO_USER, profiles.host(), system_dir=directory, remembers=False)
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
        """Identities that tell old files from new ones."""
        config, drop_ins = (os.path.join(self._directory, name) for name in _FILES)
        paths, found = [self._directory, config, drop_ins], []
        with suppress(OSError):  # what is wrong with it is said when it is read
            paths += sorted(os.path.join(drop_ins, name) for name in os.listdir(drop_ins))
        for path in paths:
            with suppress(OSError):
                info = os.stat(path)
                found.append((path, info.st_ino, info.st_mtime_ns))
        return tuple(found)
