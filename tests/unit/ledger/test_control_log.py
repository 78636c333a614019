"""What was done to a job, and for how long it stood still: pure, whatever the file says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.ledger.control_log import (
    ControlAct,
    Pause,
    decode,
    encode,
    last_set,
    open_pause,
    paused_s,
    pauses,
    who_told_to_end,
)


def acts(*said: tuple[float, str]) -> tuple[ControlAct, ...]:
    return tuple(ControlAct(at_s, kind, 0, "") for at_s, kind in said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([], ()),
        ([(1, "pause"), (2, "paused")], (Pause(1, None, True),)),
        ([(1, "pause"), (2, "paused"), (3, "resume"), (4, "resumed")], (Pause(1, 4, True),)),
        # the supervisor has seen both
        ([(1, "pause"), (2, "frozen"), (3, "paused"), (5, "resume"), (6, "thawed"), (7, "resumed")],
         (Pause(1, 6, True),)),
        ([(1, "frozen"), (3, "thawed"), (4, "frozen")], (Pause(1, 3, False), Pause(4, None, False))),
        ([(1, "frozen"), (2, "resume"), (3, "resumed")], (Pause(1, 3, False),)),
        # killed before it froze the job, and given again
        ([(1, "pause"), (2, "thawed"), (5, "pause"), (6, "paused")],
         (Pause(1, 2, True), Pause(5, None, True))),
        ([(1, "resumed"), (2, "thawed")], ()),
        ([(1, "set"), (2, "stop")], ()),
    ],
)  # fmt: skip
def test_pauses(said: list[tuple[float, str]], found: tuple[Pause, ...]) -> None:  # X6
    seen = acts(*said)
    assert pauses(seen) == found
    last = found[-1] if found else None
    assert open_pause(seen) == (last if last and last.until_s is None else None)


def test_only_the_time_that_counts_is_added_up() -> None:  # X6
    seen = acts((1, "pause"), (3, "resumed"), (10, "frozen"))
    assert paused_s(seen, 12) == 2 + 2
    assert paused_s(seen, 2) == 1


def test_what_slicer_set_last_counts() -> None:  # X6
    texts = ("CPUQuota=5%", "CPUQuota=6%", "A=b=c")
    said = tuple(ControlAct(at_s, "set", 0, text) for at_s, text in enumerate(texts, start=1))
    assert last_set(said) == {"CPUQuota": "6%", "A": "b=c"}
    assert who_told_to_end(said) == ""
    stop, cap = ControlAct(4, "stop", 0, ""), ControlAct(5, "cap", 0, "")
    assert who_told_to_end((*said, stop, cap)) == "slicer stop"
    assert who_told_to_end((*said, cap, stop)) == "slicer cap"
    way, signal = ControlAct(3, "way", 0, ""), ControlAct(6, "signal", 0, "")
    assert who_told_to_end((*said, way)) == "gave way"  # U8: unless somebody ends it meanwhile
    assert who_told_to_end((*said, way, stop)) == "slicer stop"
    assert who_told_to_end((*said, way, signal)) == "slicer run"


@given(st.text(max_size=100), st.floats(0, 1e9), st.integers(0, 2**32 - 2))
def test_a_line_is_read_back_as_it_was_written(text: str, at_s: float, uid: int) -> None:
    act = ControlAct(round(at_s, 6), "set", uid, text.encode("utf-8", "replace").decode())
    (found,) = decode(encode(act))
    assert (found.kind, found.uid, found.text) == (act.kind, act.uid, act.text)
    assert abs(found.at_s - act.at_s) < 1e-5


@given(st.binary(max_size=200))
def test_no_bytes_are_too_much(data: bytes) -> None:  # S9
    for act in decode(data):
        assert act.at_s >= 0
    decode(encode(ControlAct(1, "pause", 0, "")) + data)


def test_a_line_without_its_end_is_left_out() -> None:
    whole = encode(ControlAct(1, "pause", 0, ""))
    assert decode(whole + whole[:-1]) == (ControlAct(1, "pause", 0, ""),)
