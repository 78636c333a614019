"""Folds the journal's records into the states of all jobs. Also makes the records. Pure.

A record is applied whole or not at all. A repeated record changes nothing, nor does one about an earlier
attempt. So a queue that died between two records may write the second again.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, get_args

from slicer.queue.model import (
    DONE_SHOWN,
    FINAL,
    GPU_FAILED,
    STATE_DEFAULTS,
    STATE_FIELDS,
    JobState,
    Status,
    Streak,
    Verdict,
)
from slicer.queue.state.journal import Record
from slicer.record import as_dict
from slicer.state.statefile import json_reader

_FILE_NAME = re.compile(r"(?:\w[\w.-]{0,63})?", re.ASCII)


class Ending(TypedDict):
    """How an attempt ended: fields of :class:`JobState`, and ``at`` for people who read the journal."""

    exit_code: int
    signal: int | None
    reason: str
    wall_s: float
    vram_peak_mib: tuple[int, ...]
    utilisation: float | None
    looks: int
    verdict: Verdict
    memory_peak_bytes: int | None
    leftovers: int
    at: float


def seen(key: str, no: int, command: str, name: str) -> Record:
    """A job was seen for the first time, or its name has changed."""
    return {"event": "seen", "key": key, "no": no, "command": command, "name": name}


def begins(key: str, begin: str, at: float) -> Record:
    """The job does not begin before this time, which its line calls ``begin``."""
    return {"event": "begins", "key": key, "begin": begin, "begins_at": at}


def copied(key: str, snapshot: str) -> Record:
    """The job is to run in that directory, in a copy of the work tree."""
    return {"event": "copied", "key": key, "snapshot": snapshot}


def begun(
    key: str, job: str, *, boot_id: str, attempt: int, log: str, gpus: Sequence[str],
    gpu_indices: Sequence[int], vram_mib: int | None, at: float,
) -> Record:  # fmt: skip
    """The attempt (counted from 1) is about to start. The record must be on the disk before that."""
    return {
        "event": "begun", "key": key, "job": job, "boot_id": boot_id, "attempts": attempt, "log": log,
        "gpus": list(gpus), "gpu_indices": list(gpu_indices), "vram_mib": vram_mib, "started_at": at,
    }  # fmt: skip


def submitted(
    key: str, job: str, *, engine: str, attempt: int, log: str, vram_mib: int | None, at: float
) -> Record:
    """The attempt is about to be handed to a cluster, where it may wait before it begins."""
    return {
        "event": "submitted", "key": key, "job": job, "engine": engine, "attempts": attempt, "log": log,
        "vram_mib": vram_mib, "started_at": at,
    }  # fmt: skip


def started(
    key: str, job: str, *, node: str, gpus: Sequence[str], gpu_indices: Sequence[int], at: float
) -> Record:
    """The submitted attempt has begun."""
    return {
        "event": "started", "key": key, "job": job, "node": node, "gpus": list(gpus),
        "gpu_indices": list(gpu_indices), "started_at": at,
    }  # fmt: skip


def ended(key: str, job: str, status: Status, **how: Unpack[Ending]) -> Record:
    """The attempt is over, and the job with it: ``status`` is final."""
    return {"event": "ended", "key": key, "job": job, "status": status, **_listed(how)}


def oom(key: str, job: str, *, next_vram_mib: int | None, **how: Unpack[Ending]) -> Record:
    """The attempt ended with CUDA's "out of memory"; the job will run again and declare ``next_vram_mib``."""
    return {"event": "oom", "key": key, "job": job, "next_vram_mib": next_vram_mib, **_listed(how)}


def again(key: str, job: str, again_at: float, next_vram_mib: int | None, **how: Unpack[Ending]) -> Record:
    """The attempt has failed, and the job will run again, because its line or queue lets it."""
    more = {"again_at": again_at, "next_vram_mib": next_vram_mib}
    return {"event": "again", "key": key, "job": job, **more, **_listed(how)}


def unbegun(key: str, job: str) -> Record:
    """The attempt never started, and does not count."""
    return {"event": "unbegun", "key": key, "job": job}


def interrupted(key: str, job: str, why: str, gave_way: int) -> Record:
    """The attempt was ended from outside (by a reboot). It counts, and the job will run again."""
    return {"event": "interrupted", "key": key, "job": job, "reason": why, "gave_way": gave_way}


def refused(key: str, status: Status, reason: str, exit_code: int) -> Record:
    """The job will not be started: it is infeasible, skipped or cancelled. ``status`` is final."""
    return {"event": "refused", "key": key, "status": status, "reason": reason, "exit_code": exit_code}


def reconsidered(key: str) -> Record:
    """The job will be started after all, or now: a user asked for it, or it may have become feasible."""
    return {"event": "reconsidered", "key": key}


def cancelling(key: str, job: str) -> Record:
    """The attempt was asked to end because its line has "cancel"."""
    return {"event": "cancelling", "key": key, "job": job}


def streak(group: str, now: Streak) -> Record:
    """What counts from now on of the last attempts of a command's group."""
    return {"event": "streak", "group": group, **as_dict(now)}


def records(states: Mapping[str, JobState]) -> Iterator[Record]:
    """One record for each state. Together they fold to the same states."""
    for state in states.values():
        record: Record = {"event": "state"}
        for name in STATE_FIELDS:
            value = getattr(state, name)
            if name not in STATE_DEFAULTS or value != STATE_DEFAULTS[name]:
                record[name] = list(value) if isinstance(value, tuple) else value
        yield record


def fold(records: Iterable[Record]) -> dict[str, JobState]:
    """The states of the jobs by their keys. Damaged records are left out."""
    states: dict[str, JobState] = {}
    for record in records:
        apply(states, record)
    return states


def apply(states: dict[str, JobState], record: Record) -> bool:
    """Apply ``record`` to ``states``. False if it is damaged: a field is missing or has the wrong type.

    Unknown events and fields come from a newer slicer and are ignored. A job whose "seen" record was lost has
    the number 0 until it is seen again.
    """
    event, key = record.get("event"), record.get("key")
    if not isinstance(event, str):
        return False
    rule = _RULES.get(event)
    if rule is None:
        return True
    if not isinstance(key, str):
        return False
    try:
        values = {name: _READERS[name](record[name]) for name in rule.fields}
        may_lack = STATE_DEFAULTS if event == "state" else _LATER
        values |= {name: _READERS[name](record[name]) for name in may_lack if name in record}
    except (TypeError, ValueError, KeyError):
        return False
    state = states.get(key)
    if state is None or event == "state":
        if not rule.makes_job:
            return True
        state = states[key] = JobState(key, 0, "")
    if not rule.of_attempt or (state.status == "running" and state.job == values.pop("job")):
        state.update(rule.change(state, values))
    return True


def apply_streak(streaks: dict[str, Streak], record: Record) -> None:
    """Apply a "streak" to ``streaks``, by group. Any other record changes nothing, nor does a damaged one."""
    group = record.get("group")
    if record.get("event") != "streak" or not isinstance(group, str):
        return
    try:
        now = Streak(**{name: read(record[name]) for name, read in _STREAK.items()})
    except (TypeError, ValueError, KeyError):
        return
    if now.failures:
        streaks[group] = now
    else:
        streaks.pop(group, None)


def _one_more(state: JobState, values: _Values) -> _Values:
    """The failure counts as one of the GPU, or of the job."""
    if values["reason"] == GPU_FAILED:
        return {"gpu_fails": state.gpu_fails + 1}
    return {"fails": state.fails + 1}


def _listed(how: Ending) -> Record:
    return {**how, "vram_peak_mib": list(how["vram_peak_mib"])}


# The fields about one attempt, and their values before it begins.
_ATTEMPT = (
    "job", "boot_id", "started_at", "log", "gpus", "gpu_indices", "vram_mib", "cancelling",
    "engine", "submitted", "node",
    "exit_code", "signal", "reason", "wall_s", "vram_peak_mib", "utilisation", "looks", "verdict",
    "memory_peak_bytes", "leftovers",
)  # fmt: skip
_NOT_BEGUN = {name: STATE_DEFAULTS[name] for name in _ATTEMPT}

_Values = dict[str, Any]
_NOTHING: _Values = {}


def _word(words: Collection[str]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in words:
            raise ValueError(f"{value!r} is not one of {words}")
        return value

    return read


def _file_name(value: Any) -> Any:
    """A file name that cannot lead out of the log directory."""
    if not _FILE_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a file name")
    return value


# How a field is read.
_READERS = {name: json_reader(kind) for name, kind in STATE_FIELDS.items()}
_READERS |= {
    "job": _file_name, "log": _file_name,
    "status": _word(get_args(Status)), "verdict": _word(get_args(Verdict)),
}  # fmt: skip
_STREAK = {name: json_reader(kind) for name, kind in Streak.__annotations__.items()}


class _Rule(NamedTuple):
    """The effect of a record: ``change`` makes a job's new fields from its state and the record's fields."""

    fields: tuple[str, ...]  # the record must have these
    change: Callable[[JobState, _Values], _Values]
    of_attempt: bool = False  # it counts only while the attempt of its "job" runs
    makes_job: bool = False  # if no job has its key


_LATER = ("leftovers", "gave_way")  # fields that older records lack
_HOW = tuple(name for name in Ending.__annotations__ if name not in ("at", *_LATER))
_BEGUN = ("job", "boot_id", "attempts", "log", "gpus", "gpu_indices", "vram_mib", "started_at")
_AGAIN: _Values = {"status": "pending", "cancelling": False}
_RULES = {
    "seen": _Rule(("no", "command", "name"), lambda state, values: values, makes_job=True),
    "begins": _Rule(("begin", "begins_at"), lambda state, values: values),
    "copied": _Rule(("snapshot",), lambda state, values: values),
    "begun": _Rule(_BEGUN, lambda state, values: _NOT_BEGUN | values | {"status": "running"}, makes_job=True),
    "submitted": _Rule(
        ("job", "engine", "attempts", "log", "vram_mib", "started_at"),
        lambda state, values: _NOT_BEGUN | values | {"status": "running", "submitted": True},
        makes_job=True,
    ),
    "started": _Rule(
        ("job", "node", "gpus", "gpu_indices", "started_at"),
        lambda state, values: values | {"submitted": False},
        of_attempt=True,
    ),
    "ended": _Rule(
        ("job", "status", *_HOW),
        lambda state, values: values if values["status"] in FINAL else _NOTHING,
        of_attempt=True,
    ),
    "oom": _Rule(
        ("job", "next_vram_mib", *_HOW),
        lambda state, values: values | {"status": "pending", "ooms": state.ooms + 1},
        of_attempt=True,
    ),
    "again": _Rule(
        ("job", "again_at", "next_vram_mib", *_HOW),
        lambda state, values: values | {"status": "pending", **_one_more(state, values)},
        of_attempt=True,
    ),
    "unbegun": _Rule(
        ("job",),
        lambda state, values: _NOT_BEGUN | {"status": "pending", "attempts": max(0, state.attempts - 1)},
        of_attempt=True,
    ),
    "interrupted": _Rule(("job", "reason"), lambda state, values: values | _AGAIN, of_attempt=True),
    "refused": _Rule(
        ("status", "reason", "exit_code"),
        lambda state, values: values if state.status == "pending" and values["status"] in FINAL else _NOTHING,
        makes_job=True,
    ),
    "reconsidered": _Rule(
        (),
        lambda state, values: (
            _AGAIN | {"reason": "", "exit_code": 0, "ooms": 0, "fails": 0, "gpu_fails": 0, "again_at": 0.0}
            if (state.is_final and state.status != "ok") or (state.status == "pending" and state.again_at)
            else _NOTHING
        ),
    ),
    "cancelling": _Rule(("job",), lambda state, values: {"cancelling": True}, of_attempt=True),
    "state": _Rule(("no", "command"), lambda state, values: values, makes_job=True),
}


class JobStates(dict[str, JobState]):
    """The states by the jobs' keys. Only :meth:`apply` may change them.

    ``running`` has the states of the running jobs. ``ok_count`` jobs have succeeded since this was made, and
    ran for ``ok_wall_s`` seconds in all.
    """

    def __init__(self, states: Mapping[str, JobState]) -> None:
        super().__init__(states)
        self.running: dict[str, JobState] = {}
        self._by_job: dict[str, JobState] = {}
        self.ok_count = 0
        self.ok_wall_s = 0.0
        for state in self.values():
            self._enter(state)

    def by_job(self, job_id: str) -> JobState | None:
        return self._by_job.get(job_id)

    def last(self) -> list[JobState]:
        """The last ended jobs, in the order of their ends, for the board."""
        ended = (state for state in self.values() if state.is_final)
        return heapq.nlargest(DONE_SHOWN, ended, key=_end_of)[::-1]

    def apply(self, record: Record) -> None:
        """Apply the record to a job's state (:func:`apply`)."""
        key = str(record.get("key"))
        was_running = key in self.running
        if key in self:
            self._leave(self[key])
        apply(self, record)
        after = self.get(key)
        if after is not None:
            self._enter(after)
            if was_running and after.status == "ok":
                self.ok_count += 1
                self.ok_wall_s += after.wall_s

    def _leave(self, state: JobState) -> None:
        self.running.pop(state.key, None)
        self._by_job.pop(state.job, None)

    def _enter(self, state: JobState) -> None:
        if state.job:
            self._by_job[state.job] = state
        if state.status == "running":
            self.running[state.key] = state


def _end_of(state: JobState) -> tuple[float, str]:
    return state.started_at + state.wall_s, state.key
