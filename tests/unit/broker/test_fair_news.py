"""What one user does costs others no more than a moment: news, forecasts and stopped requests are bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.broker.protocol import messages
from slicer.broker.rules.order import interleaved
from slicer.broker.server import queueing
from slicer.broker.server.deciding import Stopped
from slicer.kernel import proc
from slicer.model import Lease, Ticket
from slicer.placement.decision import Book
from slicer.placement.forecast import start_times
from slicer.placement.settings import Policy
from slicer.record import replace
from tests.unit.broker.messages import LEASE, TICKET
from tests.unit.broker.within import Within, acquire, within


def test_each_users_first_comes_before_anybodys_second() -> None:  # L1, S16
    came = ["m1", "m2", "m3", "b1", "m4", "c1", "b2"]
    assert interleaved(came, lambda each: ord(each[0])) == ["m1", "b1", "c1", "m2", "b2", "m3", "m4"]


def test_a_thousand_stopped_requests_take_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:  # L1, S16
    """A decision serves them one by one; so each of its rounds finds twice as many."""
    monkeypatch.setattr(proc, "is_stopped", lambda pid, start: pid == 1)
    queue = [replace(TICKET, job=f"{index:012x}", uid=1000, pid=1) for index in range(1000)]
    bobs = replace(TICKET, job="b" * 12, uid=1001, pid=2)
    found, rounds = Stopped(), 0
    gone = found.since(100.0)
    while True:
        able = [each for each in (*queue, bobs) if each.job not in gone]
        idle = found.among(able, {able[0].job}, 100.0)
        if not idle:
            break
        rounds += 1
        gone |= idle
    assert able == [bobs]
    assert rounds < 20
    assert len(found.since(100.5)) == 1000, "it is known for a while"
    assert len(found.since(105.0)) > 400, "and for the longer, the more there are"
    assert not found.since(120.0)


def test_a_forecast_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:  # L1, S16
    """Of a thousand leases that say when they end only the first ends are looked at."""
    decided: list[float] = []
    real = start_times.__globals__["decide"]

    def decide(queue: list[Ticket], devices: object, leases: tuple[Lease, ...], *more: object) -> object:
        decided.append(len(leases))
        return real(queue, devices, leases, *more)

    monkeypatch.setitem(start_times.__globals__, "decide", decide)
    leases = tuple(
        replace(LEASE, job=f"{index:012x}", gpus=(), slots={"x": 1}, since_s=0.0, expect_s=1000.0 + index)
        for index in range(1000)
    )
    late = replace(TICKET, job="b" * 12, gpus=0, slots={"x": 900}, slot_limits={"x": 1000})
    policy = Policy()
    assert start_times(Book([late], (), leases, policy, 100.0)) == {late.job: None}
    assert sum(decided) < 20_000
    assert start_times(Book([late], (), leases[:99], policy, 100.0)) == {late.job: 0.0}


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Within]:
    with within(tmp_path, monkeypatch, config="[slots]\ncpu = 1\n") as made:
        yield made


def test_what_there_is_no_time_for_is_told_with_the_next_rounds(
    inside: Within, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1, S16
    """With no time at all, each round tells one."""
    monkeypatch.setattr(queueing, "_TELLING_S", -1.0)
    holder = acquire(slots={"cpu": 1})
    first = inside.dial()
    assert isinstance(first.ask(holder, more=True), messages.Granted)
    wishes = [acquire(slots={"cpu": 1}) for _ in range(5)]
    waiting = [inside.dial() for _ in wishes]
    for caller, wish in zip(waiting, wishes, strict=True):
        assert isinstance(caller.ask(wish, more=True), messages.Waiting)
    assert isinstance(inside.dial().ask(messages.Release(wishes[0].job)), messages.Done)
    for caller in waiting[1:]:  # who is ahead has changed for each
        inside.clocks.pass_(1.1)
        assert caller.hear().busy.ahead < 4
    assert os.listdir(f"{inside.places.state}/leases") == [holder.job]
