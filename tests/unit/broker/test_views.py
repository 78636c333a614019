"""What one user sees of another."""

from __future__ import annotations

from slicer.broker.rules import views
from slicer.model import Busy
from slicer.record import replace
from tests.unit.broker.messages import LEASE, TICKET

COUNTED = {"cpu": 4, "license": 2}
OWNER, OTHER = LEASE.uid, 4711


def test_a_slot_of_ones_own_is_nobody_elses() -> None:
    kept = views.kept({"cpu": 1, "mine": 2}, 1001, COUNTED)
    assert kept == {"cpu": 1, "u1001.mine": 2}
    assert views.kept_limits({"cpu": 1, "mine": 2}, {"cpu": 99, "mine": 3}, 1001, COUNTED) == {
        "cpu": 4, "u1001.mine": 3,
    }  # fmt: skip
    assert views.kept({"mine": 1}, 1002, COUNTED).keys().isdisjoint(kept)
    assert views.kept({"u1001.mine": 1}, 1002, COUNTED) == {"u1002.u1001.mine": 1}


def test_own_slots_have_their_own_names_and_those_of_others_none() -> None:
    kept = {"cpu": 1, "u1001.mine": 2, "ultra": 1, "u.x": 1}
    assert views.shown(kept, 1001) == {"cpu": 1, "mine": 2, "ultra": 1, "u.x": 1}
    assert views.shown(kept, 1002) == {"cpu": 1, "ultra": 1, "u.x": 1}
    assert views.shown(kept, 0) == kept


def test_commands_are_for_their_owner_and_root() -> None:
    lease, ticket = replace(LEASE, command="secret"), replace(TICKET, command="secret")
    for viewer, seen in ((OWNER, "secret"), (0, "secret"), (OTHER, "")):
        assert views.lease(lease, viewer).command == seen
    for viewer, seen in ((TICKET.uid, "secret"), (0, "secret"), (OTHER, "")):
        assert views.ticket(ticket, viewer).command == seen


def test_a_reason_has_no_commands_and_is_small() -> None:
    holders = tuple(replace(LEASE, command="secret", expect_s=float(100 - n)) for n in range(50))
    shown = views.busy(Busy("slot", holders, 3, (), "", slot="u1001.mine"), OTHER)
    assert len(shown.holders) == 8
    assert all(not each.command for each in shown.holders)
    assert [each.expect_s for each in shown.holders] == sorted(each.expect_s or 0 for each in shown.holders)
    assert shown.slot == ""
