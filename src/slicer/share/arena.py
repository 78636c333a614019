"""The state of jobs that share GPUs, for ``slicer status``: from their files and the arena (``arena.h``).

The library creates the arena and changes it at any time, and a job may write anything. So everything read is
checked. A row counts only if a living process names it, one that holds the lock on its byte.
"""

from __future__ import annotations

import os
import struct
import time

from slicer.errors import StateError
from slicer.record import record
from slicer.share.environment import FOLDER
from slicer.share.job_file import JobFile, is_locked
from slicer.share.job_file import jobs as jobs_with_files
from slicer.state.statefile import is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from slicer.state.statedir import StateDir

    Doing = Literal["nothing", "waiting", "has", "yields"]
    from collections.abc import Iterable

    from slicer.model import Share
    from slicer.share.layout import JobFileText

NAME = "arena-2"
MAGIC = 0x616E657261736C73
VERSION = 2
JOBS = 128
PROCESSES = 512

_HEAD = struct.Struct("@QIIIIIIQ24x")
_GPUS_SIZE = 64 * 48
_JOB = struct.Struct("@16sIiQIIIIQQIIIIQQQ24x")
_PROCESS = struct.Struct("@IiIIIIIIQQ16x")
OFFSET_JOBS = _HEAD.size + _GPUS_SIZE
OFFSET_PROCESSES = OFFSET_JOBS + JOBS * _JOB.size
SIZE = OFFSET_PROCESSES + PROCESSES * _PROCESS.size

_DOINGS: tuple[Doing, ...] = ("nothing", "waiting", "has", "yields")
_TURN_STATE = 3
_LONGEST_NS = 10 * 365 * 86400 * 10**9


@record
class Turn:
    """What a living job is doing in the arena."""

    doing: Doing
    for_s: float  # for how long
    ahead: int  # if it waits: the number of jobs before it


@record
class ArenaJob:
    job: str
    priority: int
    doing: Doing
    ticket: int  # its place among the waiting jobs of its priority
    since_ns: int


def read(directory: StateDir, now_ns: int) -> dict[str, Turn]:
    """What each living job is doing, by its id. Empty if there is no valid arena.

    ``now_ns``: by CLOCK_MONOTONIC, the arena's clock.
    """
    try:
        folder = directory.base.open_folder(FOLDER)
    except OSError:
        return {}
    try:
        fd = folder.open_file(NAME, os.O_RDONLY)
    except (OSError, StateError):
        return {}
    finally:
        folder.close()
    try:
        data = os.pread(fd, SIZE + 1, 0)
        return turns(data, named_rows(data, lambda row: is_locked(fd, row)), now_ns)
    except OSError:
        return {}
    finally:
        os.close(fd)


# -- pure ---------------------------------------------------------------------------------------------------


def is_ours(data: bytes) -> bool:
    """Whether this is a complete arena with this layout."""
    if len(data) != SIZE:
        return False
    magic, version, size, _, jobs, processes, *_ = _HEAD.unpack_from(data)
    return (magic, version, size, jobs, processes) == (MAGIC, VERSION, SIZE, JOBS, PROCESSES)


def named_rows(data: bytes, is_alive: Callable[[int], bool]) -> frozenset[int]:
    """The jobs' rows that a living process names. ``is_alive``: whether the process of a row lives."""
    if not is_ours(data):
        return frozenset()
    used = min(_HEAD.unpack_from(data)[6], PROCESSES)
    found = set()
    for row in range(used):
        named = _PROCESS.unpack_from(data, OFFSET_PROCESSES + row * _PROCESS.size)[0]
        if 0 < named <= JOBS and is_alive(row):
            found.add(named - 1)
    return frozenset(found)


def turns(data: bytes, rows: frozenset[int], now_ns: int) -> dict[str, Turn]:
    jobs = [job for row in sorted(rows) if (job := _job(data, row)) is not None]
    waiting = sorted((-job.priority, job.ticket, job.job) for job in jobs if job.doing == "waiting")
    places = {name: place for place, (_, _, name) in enumerate(waiting)}
    return {job.job: Turn(job.doing, _seconds(now_ns - job.since_ns), places.get(job.job, 0)) for job in jobs}


def _job(data: bytes, row: int) -> ArenaJob | None:
    """A job's row; None if it is invalid."""
    fields = _JOB.unpack_from(data, OFFSET_JOBS + row * _JOB.size)
    name, used, priority, ticket, since_ns, turn = (fields[at] for at in (0, 1, 2, 8, 9, 10))
    job = name.partition(b"\0")[0].decode("ascii", "replace")
    if not used or not is_job_id(job) or not -100 <= priority <= 100:
        return None
    return ArenaJob(job, priority, _DOINGS[turn & _TURN_STATE], ticket, since_ns)


def _seconds(span_ns: int) -> float:
    return span_ns / 1e9 if 0 <= span_ns <= _LONGEST_NS else 0.0


@record
class SharingNow:
    """A sharing job. Tuples are in the order of ``gpus``."""

    job: str
    wants: Share
    gpus: tuple[str, ...]
    limit_mib: tuple[int, ...]  # 0: no cap
    charged_mib: tuple[int, ...]  # now, to its living processes
    processes: int  # living ones that use CUDA
    has_begun: bool  # any ever used CUDA
    turn: Turn | None  # None: the arena does not have it
    turns: int
    held_s: float
    waits: int
    waited_s: float
    refused: int
    got_past_cap: bool
    troubles: tuple[str, ...]


def standing(directory: StateDir | None, jobs: Iterable[str]) -> tuple[SharingNow, ...]:
    """The jobs among these that share. Those that cannot be read are left out."""
    if directory is None:
        return ()
    known = set(jobs_with_files(directory))
    wanted = [job for job in jobs if job in known]
    if not wanted:
        return ()
    turns = read(directory, time.monotonic_ns())
    found = (_one(directory, job, turns.get(job)) for job in wanted)
    return tuple(each for each in found if each is not None)


def _one(directory: StateDir, job: str, turn: Turn | None) -> SharingNow | None:
    try:
        file = JobFile(directory, job)
        try:
            said, (charged, alive) = file.read(), file.charges()
        finally:
            file.close()
    except StateError:
        return None
    return now_of(said, charged, alive, turn)


def now_of(said: JobFileText, charged: tuple[int, ...], alive: int, turn: Turn | None) -> SharingNow:
    """The state by a job's file. ``charged``: bytes by GPU; ``alive``: its living processes. Pure."""
    counted = said.counters
    return SharingNow(
        job=said.job, wants=said.wants, gpus=said.gpus, limit_mib=tuple(each >> 20 for each in said.limit),
        charged_mib=tuple(each >> 20 for each in charged), processes=alive, has_begun=said.rows > 0,
        turn=turn if said.wants != "cap" else None, turns=counted.turns, held_s=counted.held_ns / 1e9,
        waits=counted.waits, waited_s=counted.waited_ns / 1e9, refused=counted.refused,
        got_past_cap=bool(said.got_past_cap), troubles=said.troubles,
    )  # fmt: skip
