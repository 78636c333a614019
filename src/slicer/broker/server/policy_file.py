"""The administrator's policy, /etc/slicer/policy.toml: read, checked, and read again when it has changed."""

from __future__ import annotations

from slicer.broker.rules.policy import NO_POLICY
from slicer.broker.rules.policy_text import names_in, read, resolve
from slicer.broker.server.names import Names
from slicer.config.files import read_system_file
from slicer.errors import ConfigError
from slicer.kernel.file_id import file_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicer.broker.rules.policy import Policy


PATH = "/etc/slicer/policy.toml"


def load(path: str = PATH, names: Names | None = None) -> tuple[Policy, tuple[str, ...]]:
    """The policy in the file, and warnings; :data:`NO_POLICY` where there is no file.

    Raises ConfigError with file and line.
    """
    content = read_system_file(path)
    if content is None:
        return NO_POLICY, ()
    said = read(content, path)
    return resolve(said, *(names or Names()).look_up(*names_in(said)))


class PolicyFile:
    """The policy in force. A bad file leaves the last good one in force.

    ``warn`` is told of a bad file and of names that nobody has, once for each state of the file.
    """

    def __init__(self, path: str = PATH, *, warn: Callable[[str], None], names: Names | None = None) -> None:
        """Raises ConfigError: at the start there is no last good one."""
        self._path = path
        self._warn = warn
        self._names = names or Names()
        self._id = file_id(path)
        self.trouble = ""  # why the file as it is now is not in force
        self.policy = self._load()

    def _load(self) -> Policy:
        policy, warnings = load(self._path, self._names)
        for each in warnings:
            self._warn(each)
        return policy

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
            self.trouble = str(error)
            self._warn(f"{error}; the policy from before stays in force")
        return self.policy != before

    def gids_of(self, uid: int, said: Sequence[int]) -> tuple[int, ...]:
        """The groups of a user, its own first: ``said`` by its socket, and those of /etc/group.

        A process may leave groups that limit it, so what its socket says is not all.
        """
        return self._names.gids_of(uid, said)

    def name_of(self, uid: int) -> str:
        """The user's name by /etc/passwd, else "uid 1001"."""
        return self._names.name_of(uid)
