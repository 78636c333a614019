"""The administrator's policy, /etc/slicer/policy.toml: read, checked, and read again when it has changed."""

from __future__ import annotations

from slicer.broker.rules.policy import NO_POLICY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicer.broker.rules.policy import Policy

PATH = "/etc/slicer/policy.toml"


def load(path: str = PATH) -> Policy:
    """The policy in the file; without a file :data:`NO_POLICY`. Raises ConfigError, with file and line."""
    raise NotImplementedError


class PolicyFile:
    """The policy in force. A bad file leaves the last good one in force."""

    def __init__(self, path: str = PATH, *, warn: Callable[[str], None]) -> None:
        """Raises ConfigError: at the start there is no last good one."""
        self.policy = NO_POLICY

    def refresh(self) -> bool:
        """Read the file again if it has changed (one stat otherwise); whether another policy is in force."""
        return False

    def gids_of(self, uid: int, said: Sequence[int]) -> tuple[int, ...]:
        """The groups of a user, its own first: ``said`` by its socket, and those of /etc/group.

        A process may leave groups that limit it, so what its socket says is not all.
        """
        return tuple(said)

    def name_of(self, uid: int) -> str:
        """The user's name by /etc/passwd, else "uid 1001"."""
        return f"uid {uid}"
