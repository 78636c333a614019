"""The rows of Status: made once, and never for the wrong eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slicer.broker.protocol import messages, wire
from slicer.broker.rules import views
from slicer.broker.server.service import Rows, fitting
from slicer.record import replace
from tests.unit.broker.messages import LEASE, TICKET
from tests.unit.broker.within import acquire, within

OWNER, OTHER, ROOT = TICKET.uid, 4711, 0
SECRET = replace(TICKET, command='train --token "geheim"\\', slots={"cpu": 1, f"u{OWNER}.mine": 2})


def told(rows: Rows, viewer: int, *tickets: Any) -> Any:
    standing = messages.Standing((), rows.of(tickets, viewer), {}, (), (), {})
    return wire.decode_reply(messages.Status, wire.encode_reply(standing)).message.tickets


def test_a_row_says_what_its_viewer_may_see_whoever_looked_before() -> None:  # S10
    rows = Rows(views.ticket)
    for viewer in (OTHER, OWNER, ROOT, OTHER, OWNER):
        assert told(rows, viewer, SECRET) == (views.ticket(SECRET, viewer),), viewer
    assert told(rows, OTHER, SECRET)[0].command == ""
    assert told(rows, OWNER, SECRET)[0].command == SECRET.command


def test_a_long_queue_is_made_into_rows_once() -> None:
    made: list[str] = []

    def view(entry: Any, viewer: int) -> Any:
        made.append(entry.job)
        return views.ticket(entry, viewer)

    rows = Rows(view)
    queue = [replace(SECRET, job=f"{n:012x}") for n in range(200)]
    for viewer in (OTHER, OTHER, OTHER + 1):
        assert len(rows.of(queue, viewer)) == 200
    assert len(made) == 200
    queue[7] = replace(queue[7], name="another")
    assert told(rows, OTHER, *queue)[7].name == "another"
    assert len(made) == 201
    rows.of(queue[:10], OTHER)
    assert len(rows._rows) == 10, "what has gone takes no memory"
    assert Rows(views.lease).of((LEASE,), OTHER) == (wire.encoded(views.lease(LEASE, OTHER)),)


def test_rows_that_are_too_many_cost_those_of_their_own_user() -> None:  # L1, S24
    """Those of who looks come first, then one of each user after the other."""
    crowd, bob = [(1001, 100)] * 50, [(1002, 100)] * 3
    is_told = fitting([*crowd, *bob, (OTHER, 100)], OTHER, 1000)
    assert (sum(is_told[:50]), is_told[50:]) == (6, [True] * 4)
    assert is_told[:6] == [True] * 6, "the first ones in the queue"
    assert fitting([(1001, 5000), (1001, 1), (1002, 500)], OTHER, 1000) == [False, False, True]
    assert all(fitting([*crowd, *bob], OTHER))


def test_a_status_that_is_too_long_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1, S24
    monkeypatch.setattr(fitting, "__defaults__", (2000,))
    with within(tmp_path, monkeypatch, config="[slots]\ncpu = 1\n") as inside:
        for _ in range(10):
            inside.dial().ask(acquire(slots={"cpu": 1}, name="x" * 200), more=True)
        standing = inside.dial().ask(messages.Status())
    assert standing.left_out
    assert 1 <= len(standing.leases) + len(standing.tickets) == 10 - standing.left_out
