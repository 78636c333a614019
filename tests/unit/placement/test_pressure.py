"""Nothing is started while the machine stalls."""

from __future__ import annotations

import pytest

from slicer.model import CPU, Request
from slicer.placement.decision import Book, decide
from slicer.placement.devices import Device
from slicer.placement.forecast import deadlocked, start_times
from slicer.placement.pressure import StallLimit, parsed, stall
from slicer.placement.settings import Policy
from tests.unit import made_up

SAID = """\
some avg10=33.60 avg60=20.00 avg300=1.25 total=123456
full avg10=90.00 avg60=90.00 avg300=90.00 total=12345
"""
STALLS = Policy(stall="the machine stalls")
GPU = (Device("a", 80_000, 0, {}, 0, ()),)


def test_a_rule_names_a_resource_a_part_and_a_time() -> None:  # X5
    assert parsed("memory 20% 10s") == StallLimit("memory", 20.0, "10s")
    assert parsed("io  0.5% 5m") == StallLimit("io", 0.5, "5m")
    assert parsed("off") is None
    for wrong in ("", "memory", "memory 20 10s", "memory 0% 10s", "memory 100% 10s", "memory nan% 10s",
                  "memory 20% 15s", "disk 20% 10s", "memory 20% 10s x"):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            parsed(wrong)


@pytest.mark.parametrize(
    ("rule", "said", "why"),
    [
        ("memory 20% 10s", SAID, "the machine stalls for memory 34% of the time (more than 20%)"),
        ("memory 20% 1m", SAID, ""),
        ("io 1.2% 5m", SAID, "the machine stalls for io 1% of the time (more than 1.2%)"),
        ("memory 20% 10s", "", ""),  # a kernel without it
        ("memory 20% 10s", "some", ""),
    ],
)
def test_the_kernels_averages_say_whether_it_stalls(rule: str, said: str, why: str) -> None:  # X5
    most = parsed(rule)
    assert most is not None
    assert stall(most, said) == why


def requests() -> tuple[Request, ...]:
    slot = {"slots": {CPU: 1}, "slot_limits": {CPU: 4}}
    inner = made_up.ticket("inner", inside=("outer",), **slot)
    return made_up.request("gpu", gpus=1), made_up.request("slot", **slot), made_up.request("none"), inner


# X5: but for jobs that want nothing, and those inside another one, which waits for them
def test_nothing_that_takes_something_begins_while_the_machine_stalls() -> None:
    assert set(decide(requests(), GPU, (), Policy(), 0.0).grants) == {"gpu", "slot", "none", "inner"}
    found = decide(requests(), GPU, (), STALLS, 0.0)
    assert set(found.grants) == {"none", "inner"}
    assert found.reserving == ()
    assert found.again_s is not None


def test_who_waits_for_that_is_told() -> None:  # X5
    book = Book(requests(), GPU, (), STALLS, 0.0)
    found = [book.busy(each) for each in requests()[:2]]
    assert [(each.kind, each.slot, each.ahead, each.why) for each in found] == [
        ("gpu", "", 0, STALLS.stall), ("cpu", CPU, 0, STALLS.stall),
    ]  # fmt: skip
    ticket = made_up.ticket("x", gpus=1)
    assert start_times(Book([ticket], GPU, (), STALLS, 0.0)) == {"x": None}
    assert deadlocked(ticket, [ticket], Book([ticket], GPU, (), STALLS, 0.0)) == ()
