"""How the jobs that share GPUs stand now, for ``slicer status``: read from their files and the arena."""

from __future__ import annotations

import time

from slicer.errors import StateError
from slicer.record import record
from slicer.share import arena, job_file
from slicer.share.arena import Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicer.model import Share
    from slicer.share.layout import JobFileText
    from slicer.state.statedir import StateDir


@record
class SharingNow:
    """One sharing job. Tuples are in the order of ``gpus``."""

    job: str
    wants: Share
    gpus: tuple[str, ...]
    limit_mib: tuple[int, ...]  # 0: no cap
    charged_mib: tuple[int, ...]  # now, by its living processes
    processes: int  # of them, that use CUDA
    has_begun: bool  # whether any ever did
    turn: Turn | None  # None: the arena does not know it
    turns: int
    held_s: float
    waits: int
    waited_s: float
    refused: int
    got_past_cap: bool
    troubles: tuple[str, ...]


def standing(directory: StateDir | None, jobs: Iterable[str]) -> tuple[SharingNow, ...]:
    """Those of the jobs that share. What cannot be read is left out."""
    if directory is None:
        return ()
    known = set(job_file.jobs(directory))
    wanted = [job for job in jobs if job in known]
    if not wanted:
        return ()
    turns = arena.read(directory, time.monotonic_ns())
    found = (_one(directory, job, turns.get(job)) for job in wanted)
    return tuple(each for each in found if each is not None)


def _one(directory: StateDir, job: str, turn: Turn | None) -> SharingNow | None:
    try:
        file = job_file.JobFile(directory, job)
        try:
            said, (charged, alive) = file.read(), file.charges()
        finally:
            file.close()
    except StateError:
        return None
    return now_of(said, charged, alive, turn)


def now_of(said: JobFileText, charged: tuple[int, ...], alive: int, turn: Turn | None) -> SharingNow:
    """What a job's file comes to. ``charged``: bytes by GPU; ``alive``: its processes that live. Pure."""
    counted = said.counters
    return SharingNow(
        job=said.job, wants=said.wants, gpus=said.gpus, limit_mib=tuple(each >> 20 for each in said.limit),
        charged_mib=tuple(each >> 20 for each in charged), processes=alive, has_begun=said.rows > 0,
        turn=turn if said.wants != "cap" else None, turns=counted.turns, held_s=counted.held_ns / 1e9,
        waits=counted.waits, waited_s=counted.waited_ns / 1e9, refused=counted.refused,
        got_past_cap=bool(said.got_past_cap), troubles=said.troubles,
    )  # fmt: skip
