"""What goes over the control socket comes out of it as it was, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slicer.queue.control import messages
from slicer.queue.control.messages import LONGEST, QueuedLine, RunningQueue, decode, encode
from slicer.record import as_dict, replace
from tests.unit.queue.show.test_board_text import board, empty
from tests.unit.queue.show.test_event_text import row

QUEUE = RunningQueue(
    file="/a/jo\udcffbs.txt", log_dir="/a/logs", pid=7, unit="", state="running", began_at=1.5,
    counts={"running": 1, "ok": 3, "cancelled": 2, "failed": 4, "lost": 1}, eta_s=None, warning="",
)  # fmt: skip
LINE = QueuedLine(
    key="1f#0", label="jobs.txt#7", no=7, name="", command="true", status="pending", attempts=0, began_at=1.5,
    job="", log="", waits_for="after b", exit_code=0, reason="", jobs_file="/a/jobs.txt", log_dir="/a/logs",
    pid=7,
)  # fmt: skip


def sent(message: dict[str, Any]) -> dict[str, Any]:
    found = decode(encode(message))
    assert found is not None
    return found


# U1
@pytest.mark.parametrize("shown", [board(), empty(), board(eta_s=12.5, warning="full", state="stalled")])
def test_a_board_comes_out_as_it_was(shown: Any) -> None:
    packet = decode(messages.board_packet(shown))
    assert packet is not None
    assert messages.read_board(packet["board"]) == replace(shown, pending=shown.pending[:100])


# U1
def test_what_a_queue_says_of_itself_comes_out_as_it_was() -> None:
    assert messages.read(RunningQueue, sent(as_dict(QUEUE))) == QUEUE
    assert messages.read(QueuedLine, sent(as_dict(LINE))) == LINE


# U1: what `slicer wait` makes of a line
@pytest.mark.parametrize(
    ("status", "code", "for_others"),
    [("ok", 0, 0), ("failed", 3, 3), ("cancelled", 0, 143), ("cancelled", 9, 9), ("infeasible", 1, 1),
     ("skipped", 1, 1), ("pending", 0, 75)],
)  # fmt: skip
def test_a_line_has_an_exit_code_for_others(status: Any, code: int, for_others: int) -> None:
    assert replace(LINE, status=status, exit_code=code).code_for_others == for_others


# U1: however many jobs run, and whatever they are called
def test_a_board_fits_into_a_packet() -> None:
    rows = tuple(row(no, command="ü\U0001f4a9" * 5000, waits_for="w" * 5000) for no in range(500))
    large = board(running=rows, pending=rows[:50], done=rows[:50], title="t" * 9999)
    packet = messages.board_packet(large)
    assert len(packet) <= LONGEST
    found = decode(packet)
    assert found is not None
    read = messages.read_board(found["board"])
    assert read.counts == large.counts
    assert 0 < len(read.running) < 500


# U1
@pytest.mark.parametrize(
    "packet",
    [b"", b"{", b"[]", b"7", b'{"ask":"standing"}', b'{"v":2}', b'{"v":"1"}', b"[" * 100_000, b"\xff\xfe"],
)
def test_what_is_no_packet_of_this_version(packet: bytes) -> None:
    assert decode(packet) is None


# U1
@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": "7"}, {"pid": -1}, {"pid": True}, {"file": None}, {"counts": [1]}, {"counts": {"ok": "1"}},
        {"began_at": 1e300}, {"eta_s": "soon"},
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        messages.read(RunningQueue, {**as_dict(QUEUE), **wrong})
    with pytest.raises((TypeError, ValueError, KeyError)):
        messages.read(RunningQueue, {k: value for k, value in as_dict(QUEUE).items() if k not in wrong})
    told = json.loads(messages.board_packet(board()))["board"]
    for other in ({"state": "asleep"}, {"running": [{}]}, {"gpus": 7}):
        with pytest.raises((TypeError, ValueError, KeyError)):
            messages.read_board({**told, **other})


# U1: fields that a newer queue adds
def test_unknown_fields_are_left_out() -> None:
    assert messages.read(RunningQueue, {**as_dict(QUEUE), "mood": "good"}) == QUEUE
    assert replace(QUEUE) == QUEUE
