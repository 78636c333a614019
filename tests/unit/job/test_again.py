"""Why a detached job's process runs it again, and what its outcome lists."""

from __future__ import annotations

from typing import Any

import pytest

from slicer.job.again import Again, Reruns, after
from slicer.model import GAVE_WAY
from slicer.record import replace
from slicer.retry import NEVER, Retry, parse_retry
from tests.unit.outcome.outcomes import OUTCOME

FAILED = replace(OUTCOME, reason="exited", exit_code=3, signal=None, ended_by="", attempts=())
OK = replace(FAILED, exit_code=0)


def ended(before: Again = Again(), retry: Retry = Retry(any=2), **fields: Any) -> Again | None:  # noqa: B008
    return after(before, replace(FAILED, **fields), retry, is_asked=False)


def test_any_failure_counts_and_the_pause_doubles() -> None:  # U8, U19
    first = ended()
    assert first is not None
    assert first.why == "failed with exit code 3 (attempt 1 of 3): again in 30s"
    assert (first.pause_s, first.next_words) == (30.0, "attempt 2 of 3")
    second = ended(first, reason="signal", signal=11, exit_code=139)
    assert second is not None
    assert "139, killed by SIGSEGV (attempt 2 of 3): again in 1m" in second.why
    assert ended(second) is None
    assert [(each.number, each.exit_code, each.signal) for each in second.attempts] == [
        (1, 3, None),
        (2, 139, 11),
    ]
    assert ended(retry=NEVER) is None


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"reason": "oom-kill", "exit_code": 137}, True),
        ({"reason": "timeout", "exit_code": 124}, True),
        ({"reason": "signal", "ended_by": "outside"}, True),
        ({"exit_code": 0}, False),
        ({"reason": "stopped", "ended_by": "slicer stop"}, False),
        ({"reason": "stopped", "ended_by": "systemd"}, False),  # as somebody wished
        ({"reason": "stopped", "ended_by": "shutdown"}, False),
        ({"reason": "stopped", "ended_by": "slicer idle"}, False),
        ({"reason": "signal", "ended_by": "slicer run"}, False),
    ],
)
def test_what_somebody_ended_or_what_ended_well_does_not(
    fields: dict[str, Any], counts: bool
) -> None:  # U8, U15
    assert (ended(**fields) is not None) == counts


def test_a_failure_of_its_gpu_has_a_number_of_its_own() -> None:  # U19
    sick = ended(retry=Retry(any=0, gpu=1), ended_by="gpu")
    assert sick is not None
    assert sick.fails == Retry(any=0, gpu=1)
    assert "its GPU failed" in sick.why
    assert ended(sick, Retry(any=0, gpu=1), ended_by="gpu") is None
    assert ended(sick, Retry(any=0, gpu=1)) is None


def test_who_gives_way_or_is_asked_runs_again_at_once_and_uses_no_retry() -> None:  # U8, U9
    way = ended(retry=NEVER, reason="stopped", ended_by=GAVE_WAY, exit_code=75)
    assert way is not None
    assert (way.gave_way, way.pause_s, way.fails, way.next_words) == (1, 0.0, NEVER, "attempt 2")
    asked = after(way, OK, NEVER, is_asked=True)
    assert asked is not None
    assert (asked.gave_way, asked.pause_s, asked.attempts[-1].number) == (1, 0.0, 2)
    third = ended(asked, Retry(any=1))
    assert third is not None
    assert third.next_words == "attempt 4 of 4"


def test_the_outcome_lists_the_last_attempts_of_a_job_that_ran_again() -> None:  # U8
    reruns = Reruns(lambda: False, lambda _: None)
    assert reruns.summed(OK).attempts == ()
    for _ in range(120):
        assert reruns.decide(FAILED, "any:200")
    assert not reruns.decide(OK, "any:200")
    numbers = [each.number for each in reruns.summed(OK).attempts]
    assert numbers == list(range(22, 122))
    reruns.is_over = True  # in a keeper that is alone
    assert not reruns.decide(FAILED, "any:200")


def test_a_job_that_lives_on_without_slicer_does_not_begin_again() -> None:  # U8
    reruns = Reruns(lambda: False, lambda _: None)
    assert (reruns.decide(FAILED, "any:9"), reruns.is_due) == (True, True)
    reruns.is_over = True
    assert (reruns.decide(FAILED, "any:9"), reruns.is_due) == (False, False)


@pytest.mark.parametrize(
    "text", ["", "2", "any", "any:", "any:-1", "any:x", "oom:1", "any:1,,", "any:٣", "any:" + "9" * 99]
)
def test_what_is_no_retry_is_refused(text: str) -> None:  # U8
    with pytest.raises(ValueError, match="any"):
        parse_retry(text)
