"""A job that is ready to be started, and who hears of it."""

from __future__ import annotations

from slicer.job.scope import label
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from slicer.model import Busy, Lease, Profile, ScopeSpec
    from slicer.outcome import journal

    class Listener(Protocol):
        """Hears what happens to a job while it happens, for people."""

        def notice(self, text: str) -> None:
            """Something worth knowing."""

        def warning(self, text: str) -> None:
            """Something that went wrong, but stops nothing."""

    class RunListener(Listener, Protocol):
        """Hears of the wait for the lease, too."""

        def waiting(self, busy: Busy) -> None:
            """The job has to wait."""

        def still_waiting(self, busy: Busy) -> float | None:
            """It still has to. Returns after how many seconds to say so again; None: never."""

        def acquired(self, lease: Lease, waited_s: float) -> None:
            """The job has its lease."""


@record
class Job:
    """A command that is ready to be started, with everything settled but its lease and its process."""

    id: str
    name: str
    command: tuple[str, ...]
    program: str  # path to execute
    env: Callable[[tuple[str, ...]], dict[str, str]]  # the environment, by the GPUs of the lease
    profile: Profile
    spec: ScopeSpec
    outcome_path: str  # where --outcome wants the JSON; "" for nowhere
    history_path: str
    with_journal: bool  # the command's output goes to the journal too
    idle_threshold_mib: int  # a GPU with no more in use than this counts as empty
    # Only of a queue's job, which has no terminal:
    log: str = ""  # the name, in the log directory, of the file that takes the command's output
    directory: str = ""  # to run in


@record
class Started:
    """When and where a job's command began."""

    cgroup: str  # as /proc/PID/cgroup names it; "" without systemd
    started_at: float  # seconds since the epoch
    began: float  # monotonic seconds, just before the scope's start (or the lease, if that came later)
    waited_s: float  # for the lease


def tell(job: Job, kind: journal.Kind, *, message: str = "", **fields: str | float | None) -> None:
    """Send one event of the job to the journal."""
    from slicer.outcome import journal

    journal.event(
        kind, job=job.id, name=label(job.name, job.command), unit=job.spec.unit, manager=job.spec.manager,
        message=message, fields=fields,
    )  # fmt: skip
