"""The administrator's policy, /etc/slicer/policy.toml: read, checked, and read again when it has changed."""

from __future__ import annotations

import os

from slicer.broker.rules.policy import NO_POLICY
from slicer.broker.rules.policy_text import names_in, read, resolve
from slicer.broker.server.names import Names
from slicer.config.files import MAX_BYTES, read_system_file
from slicer.errors import ConfigError, StateError
from slicer.kernel.open_files import file_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicer.broker.rules.policy import Policy
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
        self.trouble = ""  # why the file as it is now is not in force
        try:
            self.policy = self._load()
        except ConfigError as error:
            self.policy = self._from_before(error)
            self._not_in_force(error)

    def _load(self) -> Policy:
        content = read_system_file(self._path) or b""  # that there is none is a policy, too
        policy, warnings = meaning(content, self._path, self._names)
        for each in warnings:
            self._warn(each)
        self._keep(content)
        return policy

    def _from_before(self, error: ConfigError) -> Policy:
        """What an earlier broker kept. Raises the error where there is nothing good."""
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

    def _not_in_force(self, error: ConfigError) -> None:
        self.trouble = str(error)
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
            self.trouble = ""
        except ConfigError as error:
            self._not_in_force(error)
        return self.policy != before

    def gids_of(self, uid: int, said: Sequence[int]) -> tuple[int, ...]:
        """The groups of a user, its own first: ``said`` by its socket, and those of /etc/group.

        A process may leave groups that limit it, so what its socket says is not all.
        """
        return self._names.gids_of(uid, said)

    def name_of(self, uid: int) -> str:
        """The user's name by /etc/passwd, else "uid 1001"."""
        return self._names.name_of(uid)
