"""What all users' jobs took: /var/lib/slicer/usage.db, root's alone."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.broker.protocol.messages import Finished
    from slicer.broker.rules.shares import Past
    from slicer.model import Lease, Usage

DIRECTORY = "/var/lib/slicer"
FILE = "usage.db"


@record
class Ended:
    """A lease that is over, for the accounts."""

    lease: Lease  # with its command
    gid: int  # the group that it is booked for: rules.resolve.account_of
    ended_s: float  # CLOCK_BOOTTIME
    waited_s: float
    rate: float  # rules.shares.gpu_rate, when it was granted
    vram_mib: int  # over all its GPUs; a whole GPU counts with all its memory
    finished: Finished | None  # as its client told; None: it told nothing
    usage: Usage | None  # the cgroup's own figures, where the broker could read them; these count


class Accounts:
    """The database. Nothing that it cannot do keeps a lease from being given or ended: it warns instead."""

    def __init__(
        self, half_life_s: Callable[[], float], *, directory: str = DIRECTORY, warn: Callable[[str], None]
    ) -> None:
        """Open it, make it where it is missing. Raises nothing: without a database it remembers by itself."""

    def book(self, ended: Ended) -> None:
        """Add a job. Booking one twice (after a kill in between) adds it once."""

    def past(self) -> dict[int, Past]:
        """What every user has used by jobs that have ended, decayed to now."""
        return {}

    def close(self) -> None:
        """Give up the connection."""
