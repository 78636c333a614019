"""What the end of an attempt means."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.file.shell import Background
from slicer.queue.judge.judging import Case, Judged, exit_code_of, judge, measured, raised
from slicer.queue.model import GPU_FAILED, JobState, Status
from slicer.record import replace
from slicer.retry import Retry

GIB = 1024


KNOWN = Case(10 * GIB, (10 * GIB,), 10, 0.1)


def judged(reason: str = "exited", exit_code: int = 0, signal: int | None = None, **more: Any) -> Judged:
    return judge(EndedAttempt("", "", "ended", reason, exit_code, signal), replace(KNOWN, **more))


@pytest.mark.parametrize(
    ("reason", "exit_code", "status", "counted"),
    [
        ("exited", 0, "ok", 0),
        ("exited", 3, "failed", 3),
        ("signal", 139, "failed", 139),  # E12: 128 + N, where gpusched says 1
        ("timeout", 143, "timeout", 124),
        ("timeout", 0, "timeout", 124),  # it caught SIGTERM and left with 0: it is not done all the same
        ("stopped", 143, "failed", 143),
        ("stopped", 0, "failed", 143),  # as above
        ("oom-kill", 137, "failed", 137),
        ("unknown", 0, "failed", 1),
    ],
)
def test_the_end_gives_the_status_and_the_code_that_counts(  # E9, E10, E12
    reason: str, exit_code: int, status: str, counted: int
) -> None:
    found = judged(reason, exit_code)
    assert (found.status, found.exit_code, found.again) == (status, counted, False)


@pytest.mark.parametrize("reason", ["exited", "signal", "timeout", "stopped", "oom-kill", "unknown"])
@pytest.mark.parametrize("exit_code", [0, 1, 143])
def test_what_was_asked_to_end_is_cancelled_however_it_ends(reason: str, exit_code: int) -> None:  # E6
    found = judged(reason, exit_code, cancelling=True, has_oom_text=True, oom_retries=9)
    assert (found.status, found.again) == ("cancelled", False)


@pytest.mark.parametrize(
    ("background", "wall_s", "code", "status", "counted", "left"),
    [
        ("last", 0.01, 0, "failed", 1, 1),  # python a.py &
        ("last", 7200.0, 0, "failed", 1, 1),  # prepare; python a.py &
        ("", 0.01, 0, "failed", 1, 1),  # setsid -f python a.py
        ("", 9.9, 0, "failed", 1, 1),  # ray start
        ("", 10.0, 0, "ok", 0, 1),  # a build that leaves its daemon: said, and done
        ("beside", 3.0, 0, "ok", 0, 0),  # server & client
        ("last", 0.01, 3, "failed", 3, 0),
        ("", 0.01, 3, "failed", 3, 0),
    ],
)
def test_a_command_that_left_its_work_is_not_ok(  # U17
    background: Background, wall_s: float, code: int, status: str, counted: int, left: int
) -> None:
    ended = EndedAttempt("", "", "ended", "exited", code, wall_s=wall_s, leftovers=1)
    found = judge(ended, replace(KNOWN, background=background))
    assert (found.status, found.exit_code, found.leftovers) == (status, counted, left)
    assert found.reason == ("left" if code == 0 and status == "failed" else "")
    none_left = judge(replace(ended, leftovers=0), replace(KNOWN, background=background))
    assert (none_left.status, none_left.leftovers) == ("failed" if code else "ok", 0)


@pytest.mark.parametrize(("reason", "exit_code"), [("exited", 1), ("signal", 134)])
def test_cuda_oom_is_retried_as_often_as_said(reason: str, exit_code: int) -> None:  # E9
    found = [judged(reason, exit_code, has_oom_text=True, ooms=ooms, oom_retries=2) for ooms in range(3)]
    assert [(one.status, one.again, one.exit_code) for one in found] == [
        ("oom", True, exit_code),
        ("oom", True, exit_code),
        ("oom", False, exit_code),
    ]


@pytest.mark.parametrize(
    ("reason", "exit_code", "has_oom_text"),
    [
        ("oom-kill", 137, True),  # main memory: another GPU does not help
        ("timeout", 124, True),
        ("stopped", 143, True),
        ("unknown", 1, True),
        ("exited", 0, True),  # it said so, and coped
        ("exited", 1, False),
        ("signal", 139, False),
    ],
)
def test_nothing_else_is_retried_unless_asked(reason: str, exit_code: int, has_oom_text: bool) -> None:  # E9
    found = judged(reason, exit_code, has_oom_text=has_oom_text, oom_retries=9)
    assert not found.again
    assert found.status != "oom"


@pytest.mark.parametrize(
    ("reason", "exit_code", "has_oom_text"),
    [
        ("exited", 3, False),
        ("signal", 139, False),
        ("oom-kill", 137, False),
        ("timeout", 124, False),
        ("unknown", 1, False),
        ("exited", 1, True),  # once retries= is used up
    ],
)
def test_any_failure_is_retried_where_asked_after_pauses_that_double(  # U8, U19
    reason: str, exit_code: int, has_oom_text: bool
) -> None:
    more: dict[str, Any] = {"has_oom_text": has_oom_text, "ooms": 2, "oom_retries": 2, "retry": Retry(2)}
    found = [judged(reason, exit_code, fails=fails, **more) for fails in range(3)]
    assert [(one.again, one.pause_s) for one in found] == [(True, 30.0), (True, 60.0), (False, 0.0)]
    assert found[2].exit_code == exit_code
    many = judged(reason, exit_code, fails=500, **(more | {"retry": Retry(501)}))
    assert (many.again, many.pause_s) == (True, 960.0)


# U19: for nothing: it uses up no retry, and says nothing about the job
@pytest.mark.parametrize(
    ("reason", "exit_code", "has_oom_text"),
    [("exited", 1, False), ("exited", 1, True), ("timeout", 124, False)],
)
def test_a_job_whose_gpu_failed_runs_again(reason: str, exit_code: int, has_oom_text: bool) -> None:
    def found_after(gpu_fails: int) -> Judged:
        ended = EndedAttempt("", "", "ended", reason, exit_code, ended_by="gpu")
        more = {"has_oom_text": has_oom_text, "fails": 9, "gpu_fails": gpu_fails, "retry": Retry(gpu=3)}
        return judge(ended, replace(KNOWN, **more))

    found = [found_after(fails) for fails in (0, 2, 3)]
    assert [(one.again, one.pause_s) for one in found] == [(True, 30.0), (True, 120.0), (False, 0.0)]
    assert {(one.status, one.exit_code, one.reason) for one in found} == {("failed", exit_code, GPU_FAILED)}


def test_what_somebody_ended_or_what_ended_well_is_not_retried() -> None:  # U8, U15
    assert not judged("stopped", 143, retry=Retry(9)).again  # by systemctl: it has failed, as somebody wished
    assert not judged("exited", 0, retry=Retry(9)).again
    assert not judged("exited", 1, cancelling=True, retry=Retry(9)).again
    oom = judged("exited", 1, has_oom_text=True, oom_retries=1, retry=Retry(9))
    assert (oom.again, oom.pause_s) == (True, 0.0)  # by retries=, as ever


@pytest.mark.parametrize(
    ("declared", "peaks", "verdict"),
    [
        (1000, (1000,), "within"),
        (1000, (1100,), "within"),
        (1000, (1101,), "under-declared"),
        (1000, (900,), "within"),
        (1000, (899,), "over-declared"),
        (1000, (100, 1101), "under-declared"),  # the GPU that it uses most of counts
        (1000, (100, 1000), "within"),
        (1000, (), "unknown"),
        (1000, (0, 0), "unknown"),
        (None, (5000,), "unknown"),
        (0, (1,), "under-declared"),
    ],
)
def test_declared_is_compared_with_the_largest_peak(  # E5
    declared: int | None, peaks: tuple[int, ...], verdict: str
) -> None:
    assert judged(declared_mib=declared, peak_mib=peaks).verdict == verdict


def test_only_a_job_that_did_its_work_is_called_over_declared() -> None:  # E5
    assert judged(peak_mib=(1,)).verdict == "over-declared"
    assert judged(exit_code=1, peak_mib=(1,)).verdict == "unknown"
    assert judged("timeout", 124, peak_mib=(1,)).verdict == "unknown"
    assert judged(exit_code=1, peak_mib=(20 * GIB,)).verdict == "under-declared"  # a fact, however it ends


# Q7: between a few looks it may have used more; that it used more than it declared is a fact
def test_only_a_job_that_was_seen_often_is_called_over_declared() -> None:
    assert judged(peak_mib=(1,), looks=9).verdict == "unknown"
    assert judged(peak_mib=(20 * GIB,), looks=1).verdict == "under-declared"
    assert measured((0, 0), 9) == ()
    assert measured((0, 1), 1) == (0, 1)
    assert measured((0, 0), 10) == (0, 0)


@pytest.mark.parametrize(
    ("declared", "peaks", "largest", "expected"),
    [
        (8000, (), 80_000, 10_000),
        (8000, (4000, 12_000), 80_000, 15_000),
        (8001, (), 80_000, 10_002),  # 10001.25: rounded up
        (70_000, (), 80_000, 79_500),  # no more than there is, less the margin
        (79_900, (), 80_000, 79_900),  # never less than was declared
        (None, (60_000,), 80_000, None),  # it had the whole GPU
        (0, (), 80_000, 0),
    ],
)
def test_oom_raises_the_declaration_by_a_quarter(  # E9
    declared: int | None, peaks: tuple[int, ...], largest: int, expected: int | None
) -> None:
    assert raised(declared, peaks, largest, 500) == expected


@given(
    st.integers(0, 1 << 20),
    st.lists(st.integers(0, 1 << 20), max_size=4),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 12),
)
def test_a_raised_declaration_stays_between_what_was_and_what_there_is(  # E9
    declared: int, peaks: list[int], largest: int, margin: int
) -> None:
    found = raised(declared, tuple(peaks), largest, margin)
    assert found is not None
    assert declared <= found <= max(declared, largest - margin)
    again = raised(found, tuple(peaks), largest, margin)
    assert again is not None
    assert again >= found


def state(status: Status, exit_code: int = 0) -> JobState:
    return JobState("k", 1, "true", status=status, exit_code=exit_code)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], 0),
        ([state("ok"), state("cancelled", 143), state("pending", 9), state("running", 9)], 0),
        ([state("failed", 3), state("failed", 139), state("ok")], 139),
        ([state("timeout", 124), state("oom", 1)], 124),
        ([state("infeasible")], 1),
        ([state("lost")], 1),
        ([state("failed", 256)], 255),  # not 0, as exit() would have it
    ],
)
def test_the_queue_exits_with_the_largest_failing_code(states: list[JobState], expected: int) -> None:  # E12
    assert exit_code_of(iter(states)) == expected
