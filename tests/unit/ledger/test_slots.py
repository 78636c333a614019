"""Named slots in the ledger: counted under their names, given back with their lease, served from outside."""

from __future__ import annotations

import pytest

from slicer.errors import BusyError, InfeasibleError
from slicer.kernel import proc
from slicer.ledger import leasing, nesting
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Queued
from slicer.ledger.nesting import OuterJobs
from slicer.ledger.waiting import WaitingTicket
from slicer.model import Busy
from slicer.record import replace
from tests.unit import made_up
from tests.unit.ledger.box import LedgerBox, leaving
from tests.unit.ledger.test_leasing import NEEDS

pytest_plugins = ["tests.unit.ledger.box"]
A, B, C = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"
# Too long, all together, for a file's name.
LONG = {f"{letter * 59}.x-_1": 1 for letter in "abcd"}


def ask(box: LedgerBox, job: str, slots: dict[str, int]) -> HeldLease | Queued | Busy:
    request = made_up.request(job, slots=slots, slot_limits=dict.fromkeys(slots, 2), arrived_s=proc.now_s())
    return box.ledger.acquire(request, box.lease(job), box.observer())


def queue(box: LedgerBox, job: str, slots: dict[str, int]) -> WaitingTicket:
    draft = box.lease(job)
    ticket = made_up.ticket(
        job, slots=slots, slot_limits=dict.fromkeys(slots, 2), arrived_s=round(proc.now_s(), 6),
        pid=draft.pid, pid_start=draft.pid_start, boot_id=draft.boot_id, uid=draft.uid,
    )  # fmt: skip
    observer = box.observer()
    found = box.ledger.acquire(ticket, draft, observer, queues=True)
    assert isinstance(found, Queued)
    return WaitingTicket(box.ledger, ticket, draft, observer, found)


# A2, A6, issue: named slots
def test_a_slot_is_free_again_when_its_lease_ends(box: LedgerBox) -> None:
    first, second = ask(box, A, {"w": 1, "cpu": 2}), ask(box, B, {"w": 1})
    assert isinstance(first, HeldLease)
    assert isinstance(second, HeldLease)
    busy = ask(box, C, {"w": 1})
    assert isinstance(busy, Busy)
    assert (busy.kind, busy.slot, [lease.job for lease in busy.holders]) == ("slot", "w", [A, B])
    error = BusyError(busy)
    assert (error.kind, error.exit_code, error.message) == ("slot-busy", 75, "w is busy")
    assert isinstance(ask(box, C, {"cpu": 1}), Busy)
    first.release()
    third = ask(box, C, {"w": 1, "cpu": 2})
    assert isinstance(third, HeldLease)
    assert [lease.slots for lease in box.ledger.snapshot().leases] == [{"w": 1}, {"w": 1, "cpu": 2}]
    for held in (second, third):
        held.release()
    assert box.left() == []


# X4, issue: named slots
def test_slots_of_names_too_long_for_a_file_are_waited_for_as_any(box: LedgerBox) -> None:
    held = ask(box, A, dict.fromkeys(LONG, 2))
    assert isinstance(held, HeldLease)
    with leaving(queue(box, B, LONG)) as waiting, leaving(queue(box, C, {"e": 1, **LONG})) as behind:
        snapshot = box.ledger.snapshot()
        assert [ticket.slots for ticket in snapshot.tickets] == [LONG, {"e": 1, **LONG}]
        assert waiting.busy.slot == min(LONG)
        assert box.try_again(waiting) is None
        held.release()
        got = [box.try_again(each) for each in (waiting, behind)]
        assert [each.lease.slots for each in got if each is not None] == [LONG, {"e": 1, **LONG}]
        for each in got:
            if each is not None:
                each.release()
    assert box.left() == []
    assert box.warnings == []


# E4
def test_more_slots_than_there_are_is_refused_at_once(box: LedgerBox) -> None:
    with pytest.raises(InfeasibleError, match="3 w slots were asked for, but this machine has 2 w slots"):
        ask(box, A, {"w": 3})
    assert box.left() == []


# A4, issue: named slots
def test_an_outer_job_serves_the_inner_one_with_the_slots_that_it_holds() -> None:
    outer = OuterJobs((made_up.lease(A, slots={"w": 1}), made_up.lease(B, slots={"w": 1, "cpu": 1})), False)
    assert outer.slots == {"w": 2, "cpu": 1}
    wanted = made_up.profile(slots={"w": 2, "cpu": 1})
    assert nesting.missing(wanted, outer, False).slots == {}
    more = replace(wanted, slots={"w": 3, "x": 1, "cpu": 1})
    assert nesting.missing(more, outer, False).slots == {"w": 1, "x": 1}
    assert leasing.nested_lease(made_up.lease(C), outer).slots == {"w": 2, "cpu": 1}


# D3, issue: named slots
@pytest.mark.parametrize(
    ("slots", "then", "runs"),
    [
        ({"cpu": 1}, None, True),
        ({}, None, True),
        ({"w": 1}, None, False),  # a licence does not become two
        ({"cpu": 1, "w": 1}, None, False),
        ({"w": 1}, "run", True),
        ({"cpu": 1}, "fail", False),
    ],
)
def test_after_too_long_only_cpu_slots_are_overdrawn_unasked(
    slots: dict[str, int], then: str | None, runs: bool
) -> None:
    assert replace(NEEDS, slots=slots, then=then).runs_anyway is runs
