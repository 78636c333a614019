"""The figures of all jobs are right at any time, though nobody counts them anew (E8, X3)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.queue.model import DONE_SHOWN
from slicer.queue.show import rows
from slicer.queue.state import folding
from slicer.queue.state.folding import JobStates
from slicer.queue.state.journal import Record

_KEYS = st.integers(0, 4).map(lambda number: f"key{number}#0")
_WALLS = st.sampled_from([0.0, 1.0, 2.5])


@st.composite
def _records(draw: st.DrawFn) -> list[Record]:
    """Anything that may be told of some jobs, in any order, as far as it makes sense or not."""
    return [_record(draw, number) for number in range(draw(st.integers(0, 30)))]


def _record(draw: st.DrawFn, number: int) -> Record:
    key = draw(_KEYS)
    job = f"{key}/{draw(st.integers(1, 3))}"
    how: dict[str, Any] = {
        "exit_code": 0, "signal": None, "reason": "exited", "wall_s": draw(_WALLS), "vram_peak_mib": (),
        "utilisation": None, "looks": 0, "verdict": "unknown", "memory_peak_bytes": None, "at": 0.0,
    }  # fmt: skip
    kinds = [
        "seen",
        "begun",
        "begun",
        "ended",
        "ended",
        "oom",
        "unbegun",
        "interrupted",
        "refused",
        "reconsidered",
        "damaged",
    ]
    match draw(st.sampled_from(kinds)):
        case "seen":
            return folding.seen(key, number, "true", draw(st.sampled_from(["", "a"])))
        case "begun":
            return folding.begun(
                key, job, boot_id="b", attempt=1, log="l", gpus=(), gpu_indices=(), vram_mib=None,
                at=draw(st.integers(0, 9)),
            )  # fmt: skip
        case "ended":
            return folding.ended(key, job, draw(st.sampled_from(["ok", "failed", "oom"])), **how)
        case "oom":
            return folding.oom(key, job, next_vram_mib=1, **how)
        case "unbegun":
            return folding.unbegun(key, job)
        case "interrupted":
            return folding.interrupted(key, job, "reboot", 0)
        case "reconsidered":
            return folding.reconsidered(key)
        case "refused":
            return folding.refused(key, "infeasible", "too large", 1)
        case _:
            return {"event": "begun", "key": key}


@given(_records(), _records())
def test_the_figures_are_those_that_counting_anew_gives(before: list[Record], records: list[Record]) -> None:
    states = JobStates(folding.fold(before))
    walls = []
    for record in records:
        running = set(states.running)
        states.apply(record)
        walls += [states[key].wall_s for key in running if states[key].status == "ok"]
        assert states.running == {key: state for key, state in states.items() if state.status == "running"}
        assert (states.ok_count, states.ok_wall_s) == (len(walls), sum(walls))
        for state in states.values():
            assert not state.job or states.by_job(state.job) is state
    assert states == folding.fold([*before, *records])


# Q14, W8: what failed, and what took no time, tells nothing of how long the others will take
@pytest.mark.parametrize(
    ("ok_wall_s", "ok_count", "running_s", "pending", "expected"),
    [
        (0.0, 0, [], 6, None),
        (0.011, 1, [], 6, None),
        (100.0, 2, [], 6, 150.0),
        (100.0, 2, [20.0, 30.0], 4, 125.0),
        (100.0, 10, [32.0], 2, 12.0),  # one that runs for longer than the mean takes part in it
        (100.0, 10, [50.0], 0, None),  # nobody knows; not "about 0s"
        (100.0, 10, [], 0, None),
    ],
)
def test_how_long_it_will_take_is_told_from_jobs_that_did_their_work(
    ok_wall_s: float, ok_count: int, running_s: list[float], pending: int, expected: float | None
) -> None:
    assert rows.eta_s(ok_wall_s, ok_count, running_s, pending, 2) == expected


def test_no_more_of_the_last_are_kept_than_people_are_shown() -> None:
    states = JobStates({})
    for number in range(DONE_SHOWN + 10):
        states.apply(folding.seen(f"{number}", number, "true", ""))
        states.apply(folding.refused(f"{number}", "cancelled", "its line says cancel", 0))
        assert len(states.last()) == min(number + 1, DONE_SHOWN)
    assert Counter(state.status for state in states.values()) == Counter(cancelled=DONE_SHOWN + 10)


def test_a_job_is_not_found_by_an_attempt_that_never_began() -> None:
    states = JobStates({})
    states.apply(
        folding.begun(
            "k", "a1", boot_id="b", attempt=1, log="l", gpus=(), gpu_indices=(), vram_mib=None, at=1.0
        )
    )
    assert states.by_job("a1") is states["k"]
    states.apply(folding.unbegun("k", "a1"))
    assert states.by_job("a1") is None
