"""One request in the place of another."""

from __future__ import annotations

import pytest

from slicer.broker.rules.order import put_ahead
from slicer.model import Ticket
from tests.unit import made_up


def waiting(job: str, arrived_s: float, uid: int = 1001, **fields: object) -> Ticket:
    return made_up.ticket(job * 12, uid=uid, arrived_s=arrived_s, **{"slots": {"cpu": 1}, **fields})


def test_who_is_put_ahead_of_another_one_takes_its_place_and_that_one_the_next() -> None:  # L3, S19
    own = [waiting("1", 10.0), waiting("3", 30.0), waiting("2", 20.0)]
    new, moved = put_ahead(waiting("9", 99.0), "2" * 12, own, ("cpu",))
    places = {each.job[0]: each.arrived_s for each in (new, *moved)}
    assert places == {"9": 20.0, "2": 30.0, "3": 99.0}, "its user has the same places as before, and the last"


def test_no_place_lasts_for_ever() -> None:  # L3, S19
    """An anchor that is never served: only the first that is put ahead of it comes before bob."""
    anchor, bob = waiting("a", 10.0), waiting("b", 20.0, uid=1002)
    before_bob = 0
    for now_s in range(30, 40):
        new, moved = put_ahead(waiting("9", float(now_s)), anchor.job, [anchor], ("cpu",))
        before_bob += new.arrived_s < bob.arrived_s
        (anchor,) = moved  # the new one is served, and leaves
    assert before_bob == 1


@pytest.mark.parametrize(
    "fields", [{"priority": 5}, {"slots": {"u1001.own": 1}}, {"slots": {}, "gpus": 1}], ids=str
)
def test_a_place_in_another_line_is_none(fields: dict[str, object]) -> None:  # L3, S19
    new = waiting("9", 99.0)
    assert put_ahead(new, "1" * 12, [waiting("1", 10.0, **fields)], ("cpu",)) == (new, [])
    assert put_ahead(new, "2" * 12, [waiting("1", 10.0)], ("cpu",)) == (new, [])
