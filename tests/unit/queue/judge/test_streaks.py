"""Which commands are held back, because their attempts failed in a row, soon after their start (U19)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.queue.file import jobs_file
from slicer.queue.judge.streaks import after, checksum, group_of, is_held_back
from slicer.queue.model import FINAL, HoldBack, JobState, Status, Streak

_ENDS = st.lists(st.tuples(st.sampled_from(sorted(FINAL)), st.floats(0, 200)), max_size=30)
_RULES = st.builds(HoldBack, st.integers(0, 6), st.floats(0, 120))


def streak_of(ends: list[tuple[Status, float]], rule: HoldBack) -> Streak:
    now = Streak()
    for number, (status, lasted_s) in enumerate(ends):
        now = after(now, f"key{number}", status, lasted_s, rule)
    return now


def fails_soon(end: tuple[Status, float], rule: HoldBack) -> bool:
    return end[0] == "failed" and end[1] <= rule.within_s


@given(_ENDS, _RULES)
def test_a_group_is_held_back_by_its_last_attempts_and_by_nothing_else(  # U19
    ends: list[tuple[Status, float]], rule: HoldBack
) -> None:
    last = ends[len(ends) - rule.failures :]
    are_bad = len(ends) >= rule.failures > 0 and all(fails_soon(end, rule) for end in last)
    assert is_held_back(streak_of(ends, rule), rule) == are_bad


@given(_ENDS, _RULES)
def test_once_held_back_only_an_attempt_that_ends_well_releases_it(  # U19
    ends: list[tuple[Status, float]], rule: HoldBack
) -> None:
    """What still ran may fail late, run out of memory, or be stopped."""
    now = Streak(rule.failures, "key", last_no=9, checksum=7)
    for number, (status, lasted_s) in enumerate(ends):
        now = after(now, f"key{number}", status, lasted_s, rule)
        if status == "ok":
            assert now == Streak()
            return
        assert (now.last_no, now.checksum) == (9, 7)
        assert is_held_back(now, rule) == (rule.failures > 0)


@pytest.mark.parametrize(
    ("one", "other", "are_together"),
    [
        ("python train.py --seed 1", "CUDA_VISIBLE_DEVICES=0 /usr/bin/python train.py --seed 2", True),
        ("python train.py", "python tran.py", False),
        ("python -m lab.train a", "python -m lab.eval a", False),
        ("A=1 B=2", "A=1 C=2", False),  # no program to be seen: each for itself
    ],
)
def test_commands_of_one_program_and_script_are_a_group(one: str, other: str, are_together: bool) -> None:
    assert (group_of(one) == group_of(other)) == are_together  # U19


def lines(*texts: str) -> int:
    """The checksum of these lines, of which the first three were there when the hold began."""
    entries = jobs_file.parse("\n".join(texts) + "\n")
    numbers = {"t 1": 1, "t 2": 2, "t 3": 3}
    states = {e.key: JobState(e.key, numbers.get(e.command, 4), e.command) for e in entries}
    for state in states.values():
        state.status = "ok" if state.command == "t 3" else "pending"
    return checksum(entries, states, 3)


def test_an_edit_of_its_lines_shows_and_lines_that_are_moved_or_added_do_not() -> None:  # U19
    before = lines("t 1", "[vram=1G] t 2", "t 3")
    for same in (
        ("t 1", "t 3", "[vram=1G]  t 2"),
        ("t 1", "[vram=1G] t 2", "t 3", "t 4"),
        ("t 1", "[vram=1G] t 2"),  # t 3 has ended well: whoever removes it means nothing by that
    ):
        assert lines(*same) == before
    for other in (
        ("t 1", "[vram=2G] t 2", "t 3"),
        ("t 1", "[vram=1G env.A=1] t 2", "t 3"),
        ("t 1", "[vram=1G] t 2 --fixed", "t 3"),
        ("[vram=1G] t 2", "t 3"),
        ("t 1 --fixed", "[vram=1G] t 2", "t 3"),
    ):
        assert lines(*other) != before
