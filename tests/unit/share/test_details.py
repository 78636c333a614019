"""What people read of a job's sharing."""

from __future__ import annotations

import pytest

from slicer.model import Sharing
from slicer.record import replace
from slicer.share import details, layout
from slicer.share.arena import Turn, now_of
from slicer.share.summary import sharing_of
from tests.unit.share.test_environment import ORDER
from tests.unit.share.test_layout import GPUS, JOB, MIB

SHARING = Sharing(
    wants="both", mode="yield", processes=1, gated=9, turns=2, held_s=1.5, allocations=3, peak_mib=(1024,)
)

WAITS = Turn("waiting", 0.25, 2)


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({}, 0, ""),
        ({"refused": 3}, 0, ""),  # a program may have expected it
        ({"refused": 3}, 1, "3 allocations refused by the cap"),
        ({"undrained": 1}, 0, "1 turn passed on undrained"),
        ({"undrained": 1, "refused": 1, "got_past_cap": 1}, 1, "got past its cap"),
    ],
)
def test_only_what_went_wrong_is_in_the_last_line(changes: dict[str, int], code: int, said: str) -> None:
    assert details.problem(replace(SHARING, **changes), code) == said


@pytest.mark.parametrize(
    ("wants", "rows"),
    [("lock", ["sharing", "turns", "GPU work"]), ("cap", ["sharing", "allocations"])],
)
def test_what_was_not_asked_for_has_no_row(wants: str, rows: list[str]) -> None:
    assert [name for name, _ in details.details(replace(SHARING, wants=wants))] == rows


def test_each_trouble_has_its_words() -> None:  # D5
    for word in (*layout.TROUBLES.values(), "not-preloaded", "no-file", "other"):
        rows = dict(details.details(replace(SHARING, troubles=(word,))))
        assert " " in rows["trouble"]


@pytest.mark.parametrize(
    ("wants", "rows", "turn", "said"),
    [
        ("both", 0, None, "shares: lock, cap 8G, no CUDA yet"),
        ("lock", 1, Turn("has", 1.0, 0), "shares: lock, has the turn, 0 turns, 0s"),
        ("lock", 1, WAITS, "shares: lock, waits for 250ms, 2 before it, 0 turns, 0s"),
        ("cap", 1, Turn("has", 1.0, 0), "shares: cap 8G, 1G and 0 charged"),
        ("both", 1, None, "shares: lock, cap 8G, 0 turns, 0s, 1G and 0 charged"),
    ],
)
def test_how_a_job_stands(wants: str, rows: int, turn: Turn | None, said: str) -> None:  # issue: status
    limit = 0 if wants == "lock" else 8192 * MIB
    text = layout.decode(layout.new(JOB, wants, 0, GPUS, limit))  # type: ignore[arg-type]
    now = now_of(replace(text, rows=rows), (1024 * MIB, 0), rows, turn)
    assert ", ".join(details.standing_words(now)) == said


def test_without_a_file_it_is_said_that_nothing_is_known() -> None:
    assert sharing_of(ORDER, None).troubles == ("no-file",)
    assert sharing_of(replace(ORDER, library="", problem="static"), None).troubles == ("not-preloaded",)
