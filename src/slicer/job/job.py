"""A job that is ready to be started, and its listeners."""

from __future__ import annotations

import os

from slicer.errors import StateError
from slicer.job.program import runs_podman
from slicer.job.scope import label
from slicer.model import CPU, SLICE_VARIABLE
from slicer.quantity import INFINITY
from slicer.record import record
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from slicer.job.again import Reruns
    from slicer.job.command import Output
    from slicer.job.gpu_use import Found, GpuUse
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.leasing import PreparedRequest
    from slicer.model import Busy, Lease, Notify, Outcome, Profile, Property, ScopeSpec
    from slicer.outcome import journal
    from slicer.placement.settings import Policy
    from slicer.share.environment import ShareOrder

    class Listener(Protocol):
        """Is notified of a job's events as they happen, for people."""

        def notice(self, text: str) -> None:
            """Something worth knowing."""

        def warning(self, text: str) -> None:
            """A problem that stops nothing."""

    class RunListener(Listener, Protocol):
        """Is also notified of the wait for the lease."""

        def waiting(self, busy: Busy) -> None:
            """The job has to wait."""

        def still_waiting(self, busy: Busy) -> float | None:
            """The job still waits. Returns the seconds until the next call; None: no more calls."""

        def acquired(self, lease: Lease, waited_s: float) -> None:
            """The job has its lease."""

    class Attempt(Protocol):
        """The record of a job that may be tried again: whether its command began, and how it ended."""

        def begin(self) -> Output:
            """The keeper is about to start the command. Where its output goes. Raises OSError."""

        def say(self, text: str) -> None:
            """Add a line of slicer's to the output."""

        def take_back(self) -> None:
            """The command did not begin after all."""

        def end(self, outcome: Outcome) -> str:
            """Note how it ended. Returns what went wrong. Safe to repeat."""

    class Containers(Protocol):
        """Those that a daemon starts for the command, in the job's own slice."""

        def added(self, slice_name: str, job: str, gpus: tuple[str, ...]) -> tuple[str, ...]:
            """The words that are added to the command line, or to the environment. ``gpus``: as in words."""

        def words(self, slice_name: str, job: str, gpus: tuple[str, ...]) -> tuple[str, ...]:
            """The command line to execute. ``gpus``: those of the lease."""

        def end(self, job: str, place: str, environ: Mapping[str, str]) -> None:
            """Remove those that run or may be started, at once (SIGKILL). ``place``: the slice's cgroup."""


OWN_OUTPUT = (1, 2)  # slicer's own stdout and stderr

# A job that outgrows one of these disturbs others. A weight without effect only makes things slower.
_HARD_LIMITS = frozenset({
    "AllowedCPUs", "CPUQuota", "DeviceAllow", "DevicePolicy", "MemoryHigh", "MemoryMax", "MemorySwapMax",
    "TasksMax",
})  # fmt: skip

# The supervisor's messages to the keeper. STARTING is followed by QUIT or an order, and the command's end by
# RECORDED.
STARTING = b"s"  # systemd is about to be asked for the scope
QUIT = b"q"  # the scope or the job will not start
ORDER_END = b"\0"  # of an order: when the job began, and its lease
RECORDED = b"r"  # the outcome is recorded


@record
class Job:
    """A command that is ready to be started, with everything decided except its lease and its process."""

    id: str
    name: str
    command: tuple[str, ...]
    program: str  # path to execute
    env: Callable[[tuple[str, ...]], dict[str, str]]  # the environment, by the GPUs of the lease
    profile: Profile
    spec: ScopeSpec
    outcome_path: str  # the JSON file of --outcome; "" for none
    history_path: str
    history_keep_s: float | None  # older outcomes are removed; None: never
    with_git: bool  # its outcome says which code ran
    with_journal: bool  # the command's output goes to the journal too
    policy: Policy  # the ledger's
    # Of a job without a terminal, detached or of a queue:
    log: str = ""  # the path of the file that takes the command's output
    log_mib: int = 0  # beyond this size its beginning is freed; 0: never
    reruns: Reruns | None = None  # whether its process runs it again; None: never
    directory: str = ""  # to run in; "": slicer's
    copy: str = ""  # of a work tree, in which that is; "": in none
    # Only of a queue's job:
    queue: str = ""  # the path of its jobs file
    attempt: Attempt | None = None
    look_s: float = 1.0  # between two looks at its GPUs
    # Only of a route's job:
    route: str = ""  # its name
    ends_with_caller: bool = False  # a wrapped program must not outlive its call
    output: tuple[int, int] = OWN_OUTPUT  # descriptors: the command's stdout and stderr
    sharing: ShareOrder | None = None  # how its GPUs are shared; None: the driver's default
    notify: Notify | None = None  # who is notified of which events; None: nobody
    broker: str = ""  # the socket of the broker that granted its lease; "": the user's own ledger did
    keeps_containers: bool | None = None  # podman's, in its scope; None: as its environment says
    docker: Containers | None = None  # that its command starts through dockerd; None: it starts none
    # The rest of its scope's properties, by the GPUs of the lease. None: spec has them all.
    fence: Callable[[tuple[str, ...]], tuple[Property, ...]] | None = None

    def variables(self, held: HeldLease) -> dict[str, str]:
        """The command's environment, in the process that starts it, in the job's scope."""
        lease, made = held.lease, self.env(held.lease.gpus)
        if self.spec.within:
            made[SLICE_VARIABLE] = self.spec.within
        shown = made.get("CUDA_VISIBLE_DEVICES", "")
        if shown or "SLICER_GPU_INDICES" in made:
            from slicer.gpu.ordinals import numbered

            known = dict(zip(lease.gpus, lease.gpu_indices, strict=False))
            made = numbered(made, self.profile.gpu_ids, known)
        if self.keeps_containers is None or not runs_podman(self.program, made):
            return made
        from slicer.job import podman

        if not self.keeps_containers:
            return podman.without(made)
        try:
            return podman.added(made, shown, held.directory.path)
        except StateError as error:
            tell(self, "error", lease=lease, message=f"podman's containers leave the job: {error}")
            return made

    def words(self, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """The command to execute. ``gpus``: those of the lease."""
        if self.spec.adopts:  # it lingers for what was moved into the scope, whose exit nobody sees
            return "sh", "-c", "echo slicer: an adopted process writes where it did before; exit 125"
        return self.command if self.docker is None else self.docker.words(self.spec.within, self.id, gpus)

    @property
    def has_share_file(self) -> bool:
        """Whether it has a file of :mod:`slicer.share.job_file` while it runs."""
        return self.sharing is not None and self.sharing.is_active

    def runs_in(self) -> str:
        """The working directory of slicer, and of the command; "" if it was removed."""
        try:
            return self.directory.rstrip("/") or os.getcwd()
        except OSError:
            return ""


class Follower:
    """Whoever started a job, and hears what becomes of it. This one does not listen."""

    def granted(self, job: Job, lease: Lease, waited_s: float, stand_by: Callable[[], int]) -> None:
        """The job has its lease. What this raises withdraws the job.

        ``stand_by`` starts its scope, and returns a descriptor for the caller to close: readable once the
        scope is lost (-1: nothing was started).
        """

    def begun(self) -> None:
        """The command has its order."""

    def used(self, use: GpuUse, *, is_last: bool = False) -> None:
        """The job's GPUs were looked at."""

    def found(self, news: Found) -> bool:
        """Something about its use of them. Returns whether it was told to people."""
        return False


NOBODY = Follower()


@record
class Started:
    """When and where a job's command began."""

    cgroup: str  # as /proc/PID/cgroup names it; "" without systemd
    started_at: float  # seconds since the epoch
    began: float  # monotonic seconds, just before the scope's start (or the lease, if that came later)
    waited_s: float  # for the lease


def tell_ineffective(
    job: Job, held: HeldLease, backend: str, not_enforced: tuple[str, ...], listener: Listener
) -> None:
    """Tell of ineffective limits: the command line's always, others once per boot (outcomes list them)."""
    limits = {item.name for item in job.spec.properties if item.value != INFINITY}
    said = limits & {name for name, source in job.profile.sources.items() if source.startswith("--")}
    asked = tuple(name for name in not_enforced if name in said)
    no_controller = "no cgroup controller for it, see slicer doctor"
    if asked:
        why = {
            "inner": f"not set, because the job runs inside {job.spec.unit}",
            "plain": "not enforced, because it takes systemd",
        }.get(backend, f"not enforced here: {no_controller}")
        listener.warning(f"{', '.join(asked)}: {why}")
    missing = sorted({*not_enforced} & _HARD_LIMITS - {*asked})
    if missing and backend == "systemd":  # without it, its absence was said
        from slicer.state.statedir import first_time

        if first_time(held.directory, f"not-enforced-{'-'.join(missing)}"):
            why = f"{no_controller}; shown once per boot"
            listener.notice(f"not enforced here: {', '.join(missing)} ({why})")


def tell(
    job: Job, kind: journal.Kind, *, lease: Lease | None = None, message: str = "",
    **fields: journal.Value | tuple[str, ...],
) -> None:  # fmt: skip
    """Send an event to the journal. ``lease``: the job's; ``message``: in place of the kind's own text."""
    from slicer.outcome import journal

    name = label(job.name, job.command)
    known = journal.about(lease) if lease is not None else {}
    queue = (job.queue.rpartition("/")[2], job.queue) if job.queue else None
    journal.event(
        kind, job=job.id, name=name, unit=job.spec.unit, manager=job.spec.manager,
        message=message and f"{visible(name)}: {message}",
        fields={"profile": job.profile.name, "queue": queue, "route": job.route or None, **known, **fields},
    )  # fmt: skip


def tell_wait(job: Job, wanted: PreparedRequest, busy: Busy) -> None:
    """Tell the journal that the job has to wait, and for whom."""
    from slicer.job import words
    from slicer.kernel.proc import now_s
    from slicer.outcome import journal

    choice = wanted.ticket.gpu_choice
    gpus = choice if len(choice) == wanted.ticket.gpus else ()  # else it may get other GPUs
    tell(
        job, "waiting", message=f"waiting for {words.describe_busy(busy, now_s(), in_public=True)}",
        gpu=journal.gpu_words(gpus, wanted.observer.indices(gpus)),
        holder=", ".join(lease.unit or lease.job for lease in busy.holders), ahead=busy.ahead,
    )  # fmt: skip


def tell_start(job: Job, lease: Lease, waited_s: float, *, is_own: bool = True) -> None:
    """Tell the journal that the job has its lease (``is_own``: not an outer job's), and that it starts."""
    from slicer.job import words

    if is_own and (lease.gpus or lease.slots):
        tell(
            job, "acquired", lease=lease, message=words.acquired(lease, waited_s),
            waited_s=round(waited_s, 3), cpu_slots=lease.slots.get(CPU, 0),
        )  # fmt: skip
    tell(job, "started", lease=lease, message=words.started(lease), command=" ".join(job.command))
