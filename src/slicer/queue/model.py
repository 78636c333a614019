"""The types of the queue: an entry of the jobs file, a job's state, an event, the board.

Nothing here touches the machine. Memory is in MiB. Durations are in seconds, and times in seconds since the
epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from slicer.record import record
from slicer.retry import Retry

# "pending": not started yet, or waiting for another start. All others except "running" are final.
Status = Literal[
    "pending", "running", "ok", "failed", "timeout", "oom", "cancelled", "infeasible", "skipped", "lost"
]
FINAL: frozenset[Status] = frozenset(get_args(Status)) - {"pending", "running"}
DONE: tuple[Status, ...] = ("ok", "cancelled")
NEVER: tuple[Status, ...] = ("infeasible", "skipped")  # in this run: the next one tries again
UNBEGUN: tuple[Status, ...] = ("pending", "cancelled", *NEVER)
# A job's declaration compared with its use (E5). "unknown": nothing declared, or too few looks.
Verdict = Literal["within", "under-declared", "over-declared", "unknown"]
GPU_FAILED = "gpu"  # a failed job's reason: its GPU failed, not the job
LEFT = "left"  # a failed job's reason: its command left its work to processes that were ended
LOCAL = "local"  # the engine of this machine
ENOUGH_LOOKS = 10  # fewer looks at a job's GPUs do not show its peak, which the driver does not record
DONE_SHOWN = 50  # ended jobs on a board


Place = tuple[int, int]  # a job's place among the pending: -priority, position in the file


class Kind(NamedTuple):
    """A line's demand; jobs of one kind have the same. None or empty: not given."""

    vram_mib: int | None = None  # on each GPU
    gpus: int | None = None
    profile: str | None = None
    priority: int | None = None
    slots: tuple[tuple[str, int], ...] = ()  # names and counts, ordered by name
    share: str | None = None  # as slicer run --share
    octave: int | None = None  # of its estimated seconds: 10 for 1024 to 2047; None unknown, or without GPUs
    engine: str | None = None  # the one that has to run it
    preemptible: bool | None = None  # it gives way to other jobs


@record
class Attributes:
    """The attributes in the brackets before a command. None or empty: not given."""

    kind: Kind = Kind()
    timeout_s: float | None = None
    retries: int | None = None  # after CUDA's "out of memory"
    cancel: bool = False
    name: str = ""
    after: tuple[str, ...] = ()  # names of jobs that must succeed first
    cwd: str = ""
    env: tuple[tuple[str, str], ...] = ()
    expect_s: float | None = None  # how long it should run
    begin: str = ""  # when it may begin, in the line's words
    retry: Retry | None = None
    snapshot: bool | str = False  # it runs in a copy of the work tree: of when its queue saw it, or there


class Entry(NamedTuple):  # not a record: there may be 100,000
    """One job in the jobs file. ``key`` is its identity: two lines with the same command have two keys."""

    number: int  # of the line, from 1
    key: str  # the first 12 hex digits of sha1(command), "#", the number of earlier lines with that command
    command: str
    attributes: Attributes


class JobState:
    """The journal's knowledge of one job. Unset fields have the class's defaults, which saves memory."""

    key: str
    no: int  # its number for people, in the order in which jobs were first seen
    command: str
    name: str = ""
    status: Status = "pending"
    attempts: int = 0  # the number of begun ones; an attempt that never started does not count
    ooms: int = 0  # attempts that ended with CUDA's "out of memory"
    next_vram_mib: int | None = None  # declared for the next attempt, raised after "out of memory"
    fails: int = 0  # attempts that failed, after which retry=any: let it run again
    gpu_fails: int = 0  # and those whose GPU failed
    gave_way: int = 0  # and those that gave way to other jobs
    again_at: float = 0.0  # it does not run again before, in seconds since 1970
    begin: str = ""  # its line's words when it was last seen
    begins_at: float = 0.0  # what they meant then: it does not begin before, in seconds since 1970
    snapshot: str = ""  # the directory in the copy that was made for it; "": none was
    # Of the running attempt, or the last one:
    job: str = ""  # its id, also that of its lease, scope and outcome
    boot_id: str = ""
    started_at: float = 0.0
    log: str = ""  # file name in the log directory
    gpus: tuple[str, ...] = ()  # UUIDs
    gpu_indices: tuple[int, ...] = ()  # the numbers for people, in the order of gpus
    vram_mib: int | None = None  # declared on each of them
    cancelling: bool = False  # it was asked to end because its line has "cancel"
    engine: str = ""  # where it runs: "slurm"; "" on this machine
    submitted: bool = False  # the engine has it, but its command has not begun
    node: str = ""  # the machine's name, if it is not this one
    # How it ended:
    exit_code: int = 0
    signal: int | None = None
    reason: str = ""  # as in Outcome.reason, GPU_FAILED or LEFT; for NEVER and "lost", a sentence
    wall_s: float = 0.0
    vram_peak_mib: tuple[int, ...] = ()  # in the order of gpus; () unknown
    utilisation: float | None = None  # percent, of its GPUs during the run
    looks: int = 0  # the number of looks at its GPUs while it ran
    verdict: Verdict = "unknown"
    memory_peak_bytes: int | None = None
    leftovers: int = 0  # processes that outlived a successful command, though its line shows none; ended

    def __init__(self, key: str, no: int, command: str, name: str = "", **more: Any) -> None:
        self.key = key
        self.no = no
        self.command = command
        self.name = name
        if more:
            self.update(more)

    def update(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name not in STATE_FIELDS:
                raise TypeError(f"a JobState has no field {name!r}")
            setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobState):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in STATE_FIELDS)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"JobState({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


@record
class HoldBack:
    """When a command's group is held back: after so many ``failures`` in a row (0: never), each ``within_s``
    seconds of its start.
    """

    failures: int = 5
    within_s: float = 60.0


@record
class Streak:
    """The last attempts of a command's group, as far as they failed so soon, one after the other."""

    failures: int = 0
    key: str = ""  # of the job that failed last
    last_no: int = 0  # once the group is held back: the number of the last job that was known then
    checksum: int = 0  # and that of the lines of the group then


def label(jobs_file: str, no: int) -> str:
    """What a job without a name is called, as in "jobs.txt#7"."""
    return f"{jobs_file.rpartition('/')[2]}#{no}"


def kind_of(entry: Entry, state: JobState | None) -> Kind:
    """The kind of a job. After an attempt that ran out of GPU memory it needs at least the raised amount."""
    kind, raised_mib = entry.attributes.kind, state.next_vram_mib if state is not None else None
    if kind.vram_mib is None or raised_mib is None:
        return kind
    return kind._replace(vram_mib=max(kind.vram_mib, raised_mib))


# The fields of a JobState and their types, as written; and the defaults of those that have one.
STATE_FIELDS: dict[str, str] = JobState.__annotations__
STATE_DEFAULTS: dict[str, Any] = {
    name: vars(JobState)[name] for name in STATE_FIELDS if name in vars(JobState)
}


@record
class JobRow:
    no: int
    name: str  # "" if the line has none
    command: str
    status: Status
    attempt: int  # the running or next one (from 1); for an ended job, the number of attempts
    declared_mib: int | None
    gpu_indices: tuple[int, ...]  # where it runs or ran
    now_mib: tuple[int, ...]  # in use, in the order of gpu_indices; () unknown
    peak_mib: tuple[int, ...]
    utilisation: float | None  # percent, average so far
    looks: int  # the number of looks at its GPUs
    wall_s: float  # how long it runs, or ran
    exit_code: int
    reason: str
    verdict: Verdict
    waits_for: str  # why a pending job waits: "GPU 0 is held by train", "job 3"; "" unknown or not waiting
    note: str  # "cancelling"; "" for nothing
    leftovers: int = 0


@record
class GpuRow:
    index: int
    name: str
    total_mib: int
    used_mib: int
    utilisation: int | None  # percent
    jobs: tuple[int, ...]  # the numbers of this queue's jobs on it


BoardState = Literal["running", "paused", "stopping", "ending", "drained", "stalled", "ended"]


@record
class Board:
    """The whole queue at one moment. ``pending`` and ``done`` may be truncated; ``counts`` has all jobs."""

    title: str  # the jobs file, as the user named it
    at: float
    began_at: float
    gpus: tuple[GpuRow, ...]
    running: tuple[JobRow, ...]
    pending: tuple[JobRow, ...]  # in the order of their starts
    done: tuple[JobRow, ...]  # in the order of their ends
    counts: dict[Status, int]
    eta_s: float | None  # until all is done; None: no basis for an estimate
    state: BoardState
    warning: str  # why the queue cannot continue: the disk is full, the file malformed; "" if it can
    pid: int  # the queue's own
    every_s: float  # how often status.txt is written while jobs run


EventKind = Literal[
    "opened",  # the queue begins: total, pending, done (how many), log_dir, jobs_file, resumed (bool)
    "file-changed",  # added, removed (how many pending lines came and went)
    "file-kept",  # the file cannot be used now; the last good one stays: error
    "file-good",  # it can be used again
    "skipped",  # ended in an earlier run: count, counts (of each status)
    "waiting",  # nothing can start now (reported once): why
    "started",  # log (file name)
    "adopted",  # found running; its queue has died
    "usage",  # verbose: its memory has grown (job.now_mib, job.peak_mib)
    "exceeds",  # E5, at once, and once an attempt and GPU: gpu (index), used_mib, declared_mib
    "idle",  # what (IdleNews.kind) about its unused GPUs: text, idle_s, left_s (until its end; or None)
    "finished",  # how: job.status; log, log_path; unless it succeeded, last_line (of the log)
    "held-back",  # text; group (of commands), count (of its lines), failures, log and last_line (of the last)
    "released",  # group: its lines are no longer held back
    "retry",  # it runs again: status (of the attempt), again_in_s, declared_mib (before), next_mib, …
    "infeasible",  # reason
    "cancelling",  # its line has cancel, so it is being ended
    "cancelled",  # before it started: its line has cancel, or somebody removed it from the queue
    "requeued",  # an attempt that never began, that a reboot ended, or that gave way: why
    "lost",  # it ended together with its keeper, so its outcome is unknown; log, log_path, last_line
    "unrunnable",  # it is skipped (a job in its "after" failed or was removed): why
    "drained",  # nothing is left to do; watch (bool), held (how many lines are held back)
    "stopping",  # asked to stop: nothing new is started; running (how many)
    "ending",  # asked twice: running jobs are being ended
    "stalled",  # nothing is started because the journal or a file cannot be written: why
    "resumed",  # writing is possible again
    "warning",  # text
    "notice",  # text
    "summary",  # counts (of each status), failed, earlier, under, over (Rows), logs (by number), exit_code, …
]


@record
class Event:
    """An event. ``job`` is its state at that time; ``data`` has the fields listed at its kind."""

    kind: EventKind
    at: float
    job: JobRow | None = None
    data: Mapping[str, Any] = MappingProxyType({})


DEFAULT_LOG_DIR = "slicer_logs"


@record
class QueueOptions:
    """``gpus``: indices, UUIDs or beginnings of UUIDs; () all. None in another field: as configured."""

    jobs_file: str
    log_dir: str
    gpus: tuple[str, ...] = ()
    idle_threshold_mib: int | None = None
    margin_mib: int | None = None
    spike_buffer: float | None = None
    tolerance: float = 0.10
    poll_s: float = 5.0
    exclusive: bool = False
    hold_back: HoldBack = HoldBack()
    watch: bool = False
    oom_retries: int = 0
    retry: Retry | None = None  # None: as the profiles say
    fresh: bool = False
    verbose: bool = False
    profile: str = "gpu"
    shell: str | None = None  # of the lines: a path, or a name in PATH
    at_a_time: int | None = None  # the most jobs at once, in addition to the ledger's limits
    backend: str = "auto"
    engine: str = LOCAL  # slurm, auto: this machine, and Slurm for what does not fit now
    notify: str | None = None  # the notifications about its jobs, as slicer run --notify
    trust_file: bool = False  # root runs the file although other users may change it
