"""The attempt file, read back: nothing in it is believed that cannot be right."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicer.model import Git, Outcome, PastAttempt, Sharing, Usage
from slicer.outcome import history
from slicer.outcome.outcome_file import outcome_json
from slicer.queue.state import attempt
from slicer.queue.state.attempt import Attempt, AttemptFile
from slicer.record import replace

pytestmark = pytest.mark.both_pythons

JOB = "0123456789ab"
OUTCOME = Outcome(
    job=JOB, name="train", command=("/bin/sh", "-c", "true"), profile="gpu", backend="plain", manager="user",
    unit="", slice="gpu.slice", gpus=("GPU-1",), vram_mib=1024, vram_peak_mib=(512,), cpu_slots=0,
    slots={}, forced=0, uid=1000, reason="exited", exit_code=3, signal=None, started_at=1.5e9, waited_s=0.25,
    wall_s=2.0,
    usage=Usage(cpu_s=1.0, memory_peak_bytes=1 << 20), leftovers=0, enforced=("MemoryMax",), not_enforced=(),
)  # fmt: skip
LINE = json.dumps(outcome_json(OUTCOME)).encode() + b"\n"
HEAD = b"4711 123456\n"


MIB = st.integers(0, 2**40)
SECONDS = st.floats(0, 2**40)


TEXTS = st.text(max_size=20) | st.just("\udcff")
LISTS = st.lists(TEXTS, max_size=3).map(tuple)
PEAKS = st.lists(MIB, max_size=3).map(tuple)
FLAG = st.integers(0, 1)
COUNT = st.integers(0, 2**20)
BYTES = st.none() | st.integers(0, 2**62)
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "job": st.just(JOB), "name": TEXTS, "command": LISTS, "profile": TEXTS,
    "backend": st.sampled_from(["systemd", "plain", "inner"]), "manager": st.sampled_from(["system", "user"]),
    "unit": st.sampled_from(["", f"slicer-{JOB}.scope"]), "slice": TEXTS,
    "gpus": st.lists(st.sampled_from(["GPU-1", "GPU-2"])).map(tuple), "vram_mib": st.none() | MIB,
    "vram_peak_mib": PEAKS, "cpu_slots": st.just(0),
    "slots": st.dictionaries(st.sampled_from(["cpu", "a-b"]), st.integers(1, 2**20)), "forced": FLAG,
    "uid": st.integers(0, 2**32 - 2),
    "reason": st.sampled_from(["exited", "signal", "oom-kill", "timeout", "stopped", "unknown"]),
    "exit_code": st.integers(0, 255), "signal": st.none() | st.integers(1, 64), "started_at": SECONDS,
    "waited_s": SECONDS, "wall_s": SECONDS,
    "usage": st.builds(Usage, **dict.fromkeys(Usage.__annotations__, st.just(None))), "leftovers": COUNT,
    "enforced": LISTS, "not_enforced": LISTS, "paused_s": st.none() | SECONDS,
    "ended_by": st.sampled_from(["", "slicer stop", "slicer queue", "terminal", "systemd", "shutdown"]),
    "changed": LISTS, "changed_outside": LISTS, "directory": TEXTS, "log": TEXTS,
    "gpu_indices": st.lists(st.integers(0, 99), max_size=3).map(tuple),
    "git": st.none() | st.builds(Git, commit=TEXTS, branch=TEXTS, dirty=st.none() | FLAG, diff=TEXTS),
    "attempts": st.lists(
        st.builds(
            PastAttempt, number=COUNT, reason=st.sampled_from(["exited", "stopped"]),
            exit_code=st.integers(0, 255), signal=st.none() | st.integers(1, 64),
            ended_by=st.sampled_from(["", "gave way"]), started_at=SECONDS, wall_s=SECONDS,
            gpus=st.lists(st.sampled_from(["GPU-1", "GPU-2"])).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    "sharing": st.none() | st.builds(
        Sharing, wants=st.sampled_from(["lock", "cap", "both"]), mode=TEXTS, processes=COUNT, gated=COUNT,
        passed=COUNT, turns=COUNT, held_s=SECONDS, waits=COUNT, waited_s=SECONDS, longest_wait_s=SECONDS,
        undrained=COUNT, allocations=COUNT, refused=COUNT, uncounted=COUNT, peak_mib=PEAKS,
        overhead_mib=PEAKS, got_past_cap=FLAG, driver_cap=FLAG, troubles=LISTS,
    ),
}  # fmt: skip


def test_all_fields_of_an_outcome_are_drawn() -> None:
    assert DRAWN.keys() == Outcome.__annotations__.keys()


# D17
@given(st.fixed_dictionaries(DRAWN))
def test_whatever_a_job_may_be_its_outcome_is_read_back(drawn: dict[str, Any]) -> None:
    line = json.dumps(outcome_json(replace(OUTCOME, **drawn))).encode()
    found = attempt.decode(HEAD + line + b"\n", JOB, is_alive=False).outcome
    assert found is not None
    assert outcome_json(found) == json.loads(line)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def of_job(directory: int) -> Attempt:
    return Attempt(directory, JOB, directory, "log")


def take_and_die(directory: int) -> None:
    """As a keeper that is killed once it has noted the begin."""
    own = of_job(directory)
    own.take()
    os.close(own._fd)


def decoded(data: bytes) -> AttemptFile:
    return attempt.decode(data, JOB, is_alive=False)


def test_what_was_written_is_read_back(directory: int) -> None:
    attempt.reserve(directory, JOB)
    assert attempt.read(directory, JOB) is None
    own = of_job(directory)
    own.take()
    begun = attempt.read(directory, JOB)
    assert begun is not None
    assert (begun.is_alive, begun.keeper, begun.outcome) == (True, os.getpid(), None)
    os.close(own._fd)
    assert of_job(directory).end(OUTCOME) == ""
    ended = attempt.read(directory, JOB)
    assert ended is not None
    assert (ended.is_alive, ended.keeper, ended.outcome) == (False, os.getpid(), OUTCOME)


# Q1: neither can be told from one that never began
def test_a_begin_can_be_taken_back(directory: int) -> None:
    attempt.reserve(directory, JOB)
    take_and_die(directory)
    of_job(directory).take_back()
    assert attempt.read(directory, JOB) is None
    take_and_die(directory)
    assert attempt.read(directory, JOB) is not None


# D17
def test_what_nobody_could_read_back_is_not_written(directory: int) -> None:
    said = of_job(directory).end(replace(OUTCOME, wall_s=float("inf")))
    assert said == "the job's outcome cannot be written: nobody could read it back"
    found = attempt.read(directory, JOB)
    assert found is not None
    assert found.outcome is None


def test_an_end_can_be_noted_though_somebody_removed_the_file(directory: int) -> None:
    assert of_job(directory).end(OUTCOME) == ""
    assert attempt.read(directory, JOB) == AttemptFile(False, 0, 0, OUTCOME)


# S6: links are not followed, and nothing is waited for; the command may have begun
@pytest.mark.parametrize("what", ["link", "fifo", "directory", "socket"])
def test_something_else_in_its_place_costs_that_attempt_only(
    directory: int, tmp_path: Path, what: str
) -> None:
    path, other = tmp_path / JOB, tmp_path / "other"
    other.write_bytes(HEAD + LINE)
    match what:
        case "link":
            path.symlink_to(other)
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            os.mknod(path, 0o140600)
    assert attempt.read(directory, JOB) == AttemptFile(False, 0, 0, None)
    for write in (lambda: attempt.reserve(directory, JOB), of_job(directory).take):
        with pytest.raises(OSError):  # noqa: PT011
            write()
    assert other.read_bytes() == HEAD + LINE


# S7
@pytest.mark.parametrize(
    "changed",
    [
        {"job": "../../../etc"},
        {"job": "ba9876543210"},  # another job's
        {"exit_code": 256},
        {"exit_code": -1},
        {"exit_code": True},
        {"signal": 0},
        {"signal": 65},
        {"wall_s": float("nan")},
        {"wall_s": float("inf")},
        {"waited_s": -1},
        {"started_at": "now"},
        {"reason": "magic"},
        {"backend": "other"},
        {"gpus": "GPU-1"},
        {"gpus": [1]},
        {"vram_peak_mib": [10**30]},
        {"uid": 2**70},
        {"slots": ["cpu"]},
        {"slots": {"cpu": -1}},
        {"slots": {"../x": 1}},
        {"usage": None},
        {"usage": {"cpu_s": float("inf")}},
        {"usage": [1]},
        {"command": None},
        {"forced": "yes"},
    ],
    ids=str,
)
def test_a_field_that_cannot_be_right_costs_the_line(changed: dict[str, Any]) -> None:
    line = json.dumps({**outcome_json(OUTCOME), **changed}).encode() + b"\n"
    assert decoded(HEAD + line) == AttemptFile(False, 4711, 123456, None)
    assert decoded(HEAD + LINE + line).outcome == OUTCOME  # and no other


@pytest.mark.parametrize("name", sorted(outcome_json(OUTCOME).keys() - {"gpu_indices", "git", "attempts"}))
def test_a_field_that_is_missing_costs_the_line(name: str) -> None:
    data = outcome_json(OUTCOME)
    del data[name]
    assert decoded(HEAD + json.dumps(data).encode() + b"\n").outcome is None


def test_an_outcome_of_before_an_upgrade_is_read() -> None:  # D17
    """A queue that was upgraded while its jobs ran finds how those ended."""
    data = outcome_json(OUTCOME)
    del data["gpu_indices"], data["git"]
    assert decoded(HEAD + json.dumps(data).encode() + b"\n").outcome == OUTCOME


@pytest.mark.parametrize("head", [b"", b"-5 1", b"1 1", b"%d 1" % 2**23, b"9" * 5000, b"\xb2\xb3 1", b"12"])
def test_a_keeper_that_cannot_be_is_nobody(head: bytes) -> None:
    assert decoded(head + b"\n" + LINE) == AttemptFile(False, 0, 0, OUTCOME)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
LINES = st.one_of(
    st.binary(max_size=200),
    st.just(b"[" * 100_000),
    st.just(b"9" * 10_000),
    st.dictionaries(st.sampled_from(list(outcome_json(OUTCOME))), VALUES, max_size=4).map(
        lambda changed: json.dumps({**outcome_json(OUTCOME), **changed}).encode()
    ),
    st.dictionaries(st.sampled_from(list(Usage.__annotations__)), VALUES, max_size=3).map(
        lambda usage: json.dumps({**outcome_json(OUTCOME), "usage": usage}).encode()
    ),
)


# S7: whatever stands in it, it is read, and what is taken from it can be kept
@settings(deadline=None)
@given(st.binary(max_size=40), st.lists(LINES, max_size=3))
def test_any_bytes_are_read(head: bytes, lines: list[bytes]) -> None:
    found = decoded(b"\n".join([head, *lines]) + b"\n")
    assert 0 <= found.keeper <= 2**22
    if found.outcome is None:
        return
    assert found.outcome.job == JOB
    assert decoded(HEAD + json.dumps(outcome_json(found.outcome)).encode() + b"\n").outcome is not None


def test_what_is_read_back_can_be_kept_in_the_history(tmp_path: Path) -> None:
    odd = {**outcome_json(OUTCOME), "name": "\udcff\0", "uid": 2**32 - 2, "wall_s": 1e15, "signal": 64}
    found = decoded(HEAD + json.dumps(odd).encode() + b"\n").outcome
    assert found is not None
    path = str(tmp_path / "state" / "history.db")
    history.append(found, path)
    assert history.read(path)[0].uid == 2**32 - 2
