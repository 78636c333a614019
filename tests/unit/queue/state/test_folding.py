"""What the journal's records say of each job (E7)."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.queue.model import JobState, Streak
from slicer.queue.state import folding
from slicer.queue.state.folding import fold, records
from slicer.queue.state.journal import Record

KEY = "0123456789ab#0"
HOW: dict[str, Any] = {
    "exit_code": 1, "signal": None, "reason": "exited", "wall_s": 2.5, "vram_peak_mib": (7000, 6000),
    "utilisation": 81.5, "looks": 12, "verdict": "within", "memory_peak_bytes": 1 << 30, "at": 1002.5,
}  # fmt: skip
SEEN = folding.seen(KEY, 7, "python train.py", "train")


def begun(job: str = "a1", attempt: int = 1, key: str = KEY, **more: Any) -> Record:
    known: dict[str, Any] = {
        "boot_id": "b1", "attempt": attempt, "log": "job0007.log", "gpus": ("GPU-0", "GPU-1"),
        "gpu_indices": (0, 1), "vram_mib": 6500, "at": 1000.0,
    }  # fmt: skip
    return folding.begun(key, job, **(known | more))


def as_read(record: Record) -> Record:
    """The record as the journal gives it back."""
    back: Record = json.loads(json.dumps(record))
    return back


def state(*records: Record) -> JobState:
    return fold(map(as_read, records))[KEY]


def test_an_attempt_is_known_before_it_starts() -> None:
    assert state(SEEN) == JobState(KEY, 7, "python train.py", "train")
    assert state(SEEN, begun()) == JobState(
        KEY, 7, "python train.py", "train", status="running", attempts=1, job="a1", boot_id="b1",
        started_at=1000.0, log="job0007.log", gpus=("GPU-0", "GPU-1"), gpu_indices=(0, 1), vram_mib=6500,
    )  # fmt: skip


def test_an_end_is_known_with_all_its_figures() -> None:
    found = state(SEEN, begun(), folding.ended(KEY, "a1", "failed", **HOW))
    assert found.is_final
    assert (found.status, found.exit_code, found.signal, found.reason) == ("failed", 1, None, "exited")
    assert (found.wall_s, found.vram_peak_mib, found.utilisation) == (2.5, (7000, 6000), 81.5)
    assert (found.verdict, found.memory_peak_bytes) == ("within", 1 << 30)


def test_a_job_that_is_to_run_again_is_as_one_that_never_ended() -> None:  # W6
    failed = (SEEN, begun(), folding.ended(KEY, "a1", "oom", **HOW))
    found = state(*failed, folding.reconsidered(KEY))
    assert (found.status, found.attempts, found.ooms) == ("pending", 1, 0)
    again = state(*failed, folding.reconsidered(KEY), begun("a2", 2), folding.ended(KEY, "a2", "ok", **HOW))
    assert (again.status, again.attempts) == ("ok", 2)
    assert state(SEEN, begun(), folding.reconsidered(KEY)).status == "running"
    assert (
        state(SEEN, begun(), folding.ended(KEY, "a1", "ok", **HOW), folding.reconsidered(KEY)).status == "ok"
    )
    assert fold([as_read(folding.reconsidered(KEY))]) == {}


def test_oom_raises_what_is_declared_next_and_the_attempt_counts() -> None:  # E9
    found = state(SEEN, begun(), folding.oom(KEY, "a1", next_vram_mib=8750, **HOW))
    assert (found.status, found.attempts, found.ooms, found.next_vram_mib) == ("pending", 1, 1, 8750)
    again = state(
        SEEN, begun(), folding.oom(KEY, "a1", next_vram_mib=8750, **HOW), begun("a2", 2, vram_mib=8750)
    )
    assert (again.attempts, again.ooms, again.next_vram_mib, again.vram_mib) == (2, 1, 8750, 8750)
    assert (again.exit_code, again.vram_peak_mib, again.reason) == (0, (), "")  # not those of the first


def test_a_job_that_runs_again_after_a_pause_knows_until_when_and_how_often() -> None:  # U8
    failed = (SEEN, begun(), folding.again(KEY, "a1", 1030.0, None, **HOW))
    found = state(*failed)
    assert (found.status, found.attempts, found.fails, found.ooms) == ("pending", 1, 1, 0)
    assert (found.again_at, found.exit_code, found.log) == (1030.0, 1, "job0007.log")
    second = state(*failed, begun("a2", 2), folding.again(KEY, "a2", 1090.0, 9, **HOW))
    assert (second.fails, second.again_at, second.next_vram_mib) == (2, 1090.0, 9)
    last = (begun("a2", 2), folding.ended(KEY, "a2", "failed", **HOW))
    asked = state(*failed, *last, folding.reconsidered(KEY))
    for found in (asked, state(*failed, folding.reconsidered(KEY))):
        assert (found.status, found.fails, found.again_at) == ("pending", 0, 0.0)


def test_an_attempt_that_never_began_does_not_count() -> None:
    before = state(SEEN, begun(), folding.oom(KEY, "a1", next_vram_mib=9, **HOW))
    after = state(
        SEEN,
        begun(),
        folding.oom(KEY, "a1", next_vram_mib=9, **HOW),
        begun("a2", 2),
        folding.unbegun(KEY, "a2"),
    )
    assert (after.status, after.attempts, after.job) == ("pending", before.attempts, "")
    assert (after.ooms, after.next_vram_mib) == (before.ooms, before.next_vram_mib)


def test_an_attempt_that_a_reboot_ended_counts() -> None:
    found = state(SEEN, begun(), folding.cancelling(KEY, "a1"), folding.interrupted(KEY, "a1", "reboot", 0))
    assert (found.status, found.attempts, found.reason, found.cancelling) == ("pending", 1, "reboot", False)


def test_an_attempt_that_gave_way_is_no_failure() -> None:  # U8
    found = state(SEEN, begun(), folding.interrupted(KEY, "a1", "it gave way to another job", 1))
    assert (found.status, found.gave_way, found.fails, found.ooms) == ("pending", 1, 0, 0)
    older = folding.interrupted(KEY, "a1", "x", 7)
    del older["gave_way"]
    assert state(SEEN, begun(), older).gave_way == 0


def test_a_job_can_be_refused_only_while_it_waits() -> None:  # E4, E6
    never = folding.refused(KEY, "infeasible", "no GPU has 900G", 1)
    found = state(SEEN, never)
    assert (found.status, found.reason, found.exit_code) == ("infeasible", "no GPU has 900G", 1)
    assert state(SEEN, begun(), never).status == "running"
    assert state(SEEN, begun(), folding.ended(KEY, "a1", "ok", **HOW), never).status == "ok"


def test_a_job_that_is_being_cancelled_is_known_as_such() -> None:  # E6
    assert state(SEEN, begun(), folding.cancelling(KEY, "a1")).cancelling
    assert not state(SEEN, begun(), folding.cancelling(KEY, "a1"), begun("a2", 2)).cancelling


ABOUT_A1 = [
    folding.ended(KEY, "a1", "ok", **HOW),
    folding.oom(KEY, "a1", next_vram_mib=1, **HOW),
    folding.again(KEY, "a1", 1030.0, None, **HOW),
    folding.unbegun(KEY, "a1"),
    folding.interrupted(KEY, "a1", "reboot", 0),
    folding.cancelling(KEY, "a1"),
]


@pytest.mark.parametrize("late", ABOUT_A1, ids=lambda record: str(record["event"]))
def test_what_is_about_an_earlier_attempt_changes_nothing(late: Record) -> None:
    now = (SEEN, begun(), folding.interrupted(KEY, "a1", "reboot", 0), begun("a2", 2))
    assert state(*now, late) == state(*now)


@pytest.mark.parametrize("record", ABOUT_A1, ids=lambda record: str(record["event"]))
def test_a_record_that_was_written_twice_counts_once(record: Record) -> None:
    once = state(SEEN, begun(), record)
    assert state(SEEN, begun(), record, record) == once
    assert state(SEEN, begun(), begun()) == state(SEEN, begun())


@pytest.mark.parametrize("record", ABOUT_A1, ids=lambda record: str(record["event"]))
def test_what_is_about_no_known_job_changes_nothing(record: Record) -> None:
    assert fold([as_read(record)]) == {}


def test_an_attempt_counts_even_if_it_is_lost_what_job_it_was() -> None:
    """A damaged "seen" must not make the job run twice."""
    lost = fold([as_read(begun())])[KEY]
    assert (lost.no, lost.status, lost.job) == (0, "running", "a1")
    assert state(begun(), SEEN) == state(SEEN, begun())


def test_newer_words_are_ignored() -> None:
    newer: list[Record] = [
        {"event": "moved", "key": KEY, "to": 3},
        {"event": "opened", "by": 1000},
        {**SEEN, "colour": "red", "status": "ok"},
        {**begun(), "weather": [1, {}]},
    ]
    states: dict[str, JobState] = {}
    assert all(folding.apply(states, record) for record in newer)
    assert states[KEY] == state(SEEN, begun())


@pytest.mark.parametrize(
    "change",
    [
        {"job": "../../x"}, {"job": ".."}, {"log": "/etc/passwd"}, {"log": "job1.log\n"},
        {"attempts": 10**30},
        {"key": 7}, {"key": None}, {"event": 3}, {"event": None}, {"job": None}, {"attempts": "1"},
        {"attempts": True}, {"attempts": -1}, {"attempts": 1.0}, {"gpus": "GPU-0"}, {"gpus": [0]},
        {"gpu_indices": [0, "1"]}, {"gpu_indices": {"0": 1}}, {"vram_mib": "6G"}, {"vram_mib": []},
        {"started_at": "now"}, {"started_at": math.nan}, {"started_at": 10**400}, {"log": ["x"]},
        {"boot_id": None},
    ],
    ids=repr,
)  # fmt: skip
def test_a_record_with_a_wrong_type_is_damaged_and_does_nothing(change: Record) -> None:
    states = fold([as_read(SEEN)])
    assert not folding.apply(states, as_read(begun()) | change)
    assert states == fold([as_read(SEEN)])


@pytest.mark.parametrize("field", [*begun()])
def test_a_record_that_lacks_a_field_is_damaged(field: str) -> None:
    short = {name: value for name, value in as_read(begun()).items() if name != field}
    states: dict[str, JobState] = {}
    assert not folding.apply(states, short)
    assert states == {}


@pytest.mark.parametrize(
    "change",
    [{"status": "fine"}, {"status": 1}, {"status": []}, {"verdict": "so-so"}, {"signal": "KILL"}],
    ids=repr,
)
def test_words_that_are_none_of_ours_are_damage(change: Record) -> None:
    states = fold(map(as_read, (SEEN, begun())))
    assert not folding.apply(states, as_read(folding.ended(KEY, "a1", "ok", **HOW)) | change)
    assert states[KEY].status == "running"


_KEYS = st.sampled_from(["k#0", "k#1", "m#0"])
_JOBS = st.sampled_from(["a1", "a2", "a3"])
_TEXT = st.text(max_size=8) | st.just("\udcff")
_COUNT = st.integers(0, 1 << 40)
_MAYBE = st.none() | _COUNT
_SECONDS = st.floats(0, 1e10) | st.integers(0, 10)
_FINAL = st.sampled_from(["ok", "failed", "timeout", "oom", "cancelled", "infeasible", "lost"])
_ENDING = {
    "exit_code": st.integers(0, 255), "signal": st.none() | st.integers(1, 64), "reason": _TEXT,
    "wall_s": _SECONDS, "vram_peak_mib": st.lists(_COUNT, max_size=2).map(tuple),
    "utilisation": st.none() | _SECONDS, "looks": _COUNT,
    "verdict": st.sampled_from(["within", "unknown", "over-declared"]),
    "memory_peak_bytes": _MAYBE, "at": _SECONDS,
}  # fmt: skip
_RECORDS = st.lists(
    st.builds(folding.seen, _KEYS, _COUNT, _TEXT, _TEXT)
    | st.builds(
        folding.begun, _KEYS, _JOBS, boot_id=_TEXT, attempt=st.integers(1, 5), log=_TEXT,
        gpus=st.lists(_TEXT, max_size=2), gpu_indices=st.lists(_COUNT, max_size=2), vram_mib=_MAYBE,
        at=_SECONDS,
    )
    | st.builds(folding.ended, _KEYS, _JOBS, _FINAL, **_ENDING)
    | st.builds(folding.oom, _KEYS, _JOBS, next_vram_mib=_MAYBE, **_ENDING)
    | st.builds(folding.again, _KEYS, _JOBS, _SECONDS, _MAYBE, **_ENDING)
    | st.builds(folding.unbegun, _KEYS, _JOBS)
    | st.builds(folding.interrupted, _KEYS, _JOBS, _TEXT)
    | st.builds(folding.refused, _KEYS, _FINAL, _TEXT, st.integers(0, 255))
    | st.builds(folding.reconsidered, _KEYS)
    | st.builds(folding.cancelling, _KEYS, _JOBS)
    | st.dictionaries(st.sampled_from(["event", "key", "job", "no"]), _TEXT | _COUNT | st.lists(_COUNT)),
    max_size=25,
)  # fmt: skip


@given(_RECORDS)
def test_states_written_anew_are_the_same_states(history: list[Record]) -> None:  # E7
    states = fold(map(as_read, history))
    anew = [as_read(record) for record in records(states)]
    assert fold(anew) == states


@given(_RECORDS, _RECORDS)
def test_a_journal_written_anew_goes_on_as_the_old_one(
    before: list[Record], after: list[Record]
) -> None:  # E7
    whole = fold(map(as_read, before + after))
    assert fold(map(as_read, [*records(fold(map(as_read, before))), *after])) == whole


@given(_RECORDS)
def test_folding_gives_the_same_whether_read_back_or_as_it_was_written(history: list[Record]) -> None:
    assert fold(history) == fold(map(as_read, history))


def streaks(*records: Record) -> dict[str, Streak]:
    found: dict[str, Streak] = {}
    for record in map(as_read, records):
        folding.apply_streak(found, record)
    return found


def test_the_last_word_on_a_group_counts_and_changes_no_job() -> None:  # U19
    first, held = Streak(4, KEY), Streak(5, KEY, 1000, 2**32 - 1)
    both = (folding.streak("python t.py", first), folding.streak("python t.py", held))
    assert streaks(SEEN, *both, folding.streak("b", first)) == {"python t.py": held, "b": first}
    assert streaks(*both, *both) == streaks(*both)
    assert streaks(*both, folding.streak("python t.py", Streak())) == {}
    assert fold(map(as_read, [SEEN, *both])) == fold(map(as_read, [SEEN]))


@pytest.mark.parametrize(
    "change",
    [{"group": 7}, {"group": None}, {"failures": "5"}, {"failures": -1}, {"key": 1}, {"checksum": None}],
    ids=repr,
)
def test_a_damaged_word_on_a_group_changes_nothing(change: Record) -> None:  # U19, E7
    good = folding.streak("t", Streak(3, KEY))
    assert streaks(good, as_read(folding.streak("t", Streak(9, KEY))) | change) == streaks(good)
    short = {name: value for name, value in good.items() if name != "checksum"}
    assert streaks(short) == {}
