"""What the broker does as time goes by, and by clocks that jump. No test waits for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.broker.protocol import messages, wire
from slicer.broker.server.broker import IDLE_S
from slicer.broker.server.cleanup import GRACE_S
from slicer.broker.server.queueing import RETURNS_S
from tests.unit.broker.programs import Programs
from tests.unit.broker.within import Within, acquire, within

CPU = {"slots": {"cpu": 1}}
DAY_S = 86400.0


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Within]:
    with within(tmp_path, monkeypatch, config="[slots]\ncpu = 1\n") as made:
        yield made


def test_a_place_is_kept_for_a_while_after_its_connection_broke(inside: Within) -> None:  # L2
    holder, first, second = acquire(**CPU), acquire(**CPU), acquire(**CPU)
    assert isinstance(inside.dial().ask(holder, more=True), messages.Granted)
    place, behind = inside.dial(), inside.dial()
    for caller, asked in ((place, first), (behind, second)):
        assert isinstance(caller.ask(asked, more=True), messages.Waiting)
    place.sock.close()
    inside.turn()
    inside.clocks.pass_(RETURNS_S - 1.0)
    inside.turn()
    assert inside.files("tickets") == sorted((first.job, second.job))
    place = inside.dial()
    assert place.ask(first, more=True).busy.ahead == 0, "it has its place again"
    inside.clocks.pass_(2.0)
    inside.turn()
    assert first.job in inside.files("tickets"), "and keeps it while it is connected"
    place.sock.close()
    inside.turn()
    inside.clocks.pass_(RETURNS_S + 1.0)
    inside.turn()
    assert inside.files("tickets") == [second.job]
    assert inside.dial().ask(first, more=True).busy.ahead == 1, "it comes as everybody does"
    inside.dial().ask(messages.Release(holder.job))
    while not isinstance(behind.hear(), messages.Granted):
        pass  # news


def test_it_leaves_when_nobody_needs_it_and_the_next_caller_finds_all_as_it_was(inside: Within) -> None:
    holder = acquire(**CPU)
    caller = inside.dial()
    assert isinstance(caller.ask(holder, more=True), messages.Granted)
    inside.clocks.pass_(IDLE_S - 1.0)
    inside.turn()  # whoever says nothing is left before that
    caller.sock.close()
    inside.turn()
    assert inside.broker is not None
    inside.broker._loop.after(0.0, lambda: inside.clocks.pass_(IDLE_S + 1.0))
    inside.run_to_its_end()
    late = inside.dial()  # systemd has the socket
    inside.start()
    waiting = late.ask(acquire(**CPU), more=True)
    assert [each.job for each in waiting.busy.holders] == [holder.job]
    inside.clocks.pass_(IDLE_S + 1.0)
    inside.turn()
    inside.clocks.pass_(IDLE_S + 1.0)
    inside.turn()  # somebody waits: it stays


def test_a_program_that_holds_too_long_is_ended_and_its_gpu_is_nobodys_before(  # L1
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = f"[users.{os.getuid()}]\nmax_hold = '1h'\n"
    with within(tmp_path, monkeypatch, policy=policy) as inside:
        programs = Programs(inside)
        try:
            programs.hold(gpus=2)
            waiter = inside.dial()
            assert isinstance(waiter.ask(acquire(gpus=1), more=True), messages.Waiting)
            waiter.sock.close()
            inside.turn()
            inside.clocks.pass_(3590.0)
            inside.turn()
            assert "SIGTERM" not in "".join(inside.log)
            inside.clocks.pass_(70.0)
            inside.run(lambda: programs.is_told)
            waiter = inside.dial()
            assert isinstance(waiter.ask(acquire(gpus=1), more=True), messages.Waiting), "and still has them"
            inside.clocks.pass_(GRACE_S - 1.0)
            inside.turn()
            assert not waiter.has_heard
            inside.clocks.pass_(2.0)
            while not isinstance(waiter.hear(), messages.Granted):
                pass
            assert os.waitpid(programs.pids[0], 0)[1] == signal.SIGKILL
        finally:
            programs.close()


def test_a_wall_clock_that_jumps_changes_no_order_no_wait_and_no_account(inside: Within) -> None:  # X4
    clocks = inside.clocks
    holder = acquire(gpus=2, **CPU)
    assert isinstance(inside.dial().ask(holder, more=True), messages.Granted)
    queue = []
    for jump_s in (-DAY_S, 3 * DAY_S, -DAY_S):
        clocks.wall_s += jump_s
        asked, caller = acquire(**CPU), inside.dial()
        assert isinstance(caller.ask(asked, more=True), messages.Waiting)
        queue.append((asked.job, caller))
    limited = inside.dial()
    assert isinstance(limited.ask(acquire(max_wait_s=50.0, **CPU), more=True), messages.Waiting)
    clocks.pass_(40.0)
    clocks.wall_s += DAY_S
    inside.turn()
    status = inside.dial().ask(messages.Status())
    assert [each.job for each in status.tickets][:3] == [job for job, _ in queue]
    assert len(status.tickets) == 4, "who waits for 50 s has not waited yet"
    clocks.wall_s -= DAY_S
    clocks.pass_(11.0)
    inside.turn()
    while isinstance(reply := limited.hear(), messages.Waiting):
        pass
    assert reply == "Busy"
    inside.dial().ask(messages.Release(holder.job))
    [row] = inside.dial().ask(messages.Usage(None, "user")).rows
    assert row.of == str(os.getuid())
    assert row.gpu_s == pytest.approx(2 * 51.0, abs=2.0)
    for job, caller in queue:
        while not isinstance(caller.hear(), messages.Granted):
            pass
        assert inside.files("leases") == [job]
        inside.dial().ask(messages.Release(job))


def test_who_waits_so_long_has_waited_while_the_machine_was_suspended(inside: Within) -> None:  # X4
    holder = acquire(gpus=1, **CPU)
    assert isinstance(inside.dial().ask(holder, more=True), messages.Granted)
    limited = inside.dial()
    assert isinstance(limited.ask(acquire(max_wait_s=3600.0, **CPU), more=True), messages.Waiting)
    inside.turn()
    inside.clocks.boot_s += 3601.0  # epoll's clock has stood still
    inside.clocks.wall_s += 3601.0
    inside.clocks.pass_(61.0)
    while isinstance(reply := limited.hear(), messages.Waiting):
        pass
    assert reply == "Busy"
    assert inside.files("tickets") == []
    [row] = inside.dial().ask(messages.Usage(None, "user")).rows
    assert row.gpu_s == pytest.approx(3662.0, abs=2.0), "it was held meanwhile"


def test_places_that_were_exchanged_are_written_down(inside: Within) -> None:  # L2, S19
    holder, first, second = acquire(**CPU), acquire(**CPU), acquire(**CPU)
    assert isinstance(inside.dial().ask(holder, more=True), messages.Granted)
    assert inside.dial().ask(first, more=True).busy.ahead == 0
    ahead = acquire(**CPU, ahead_of=first.job)
    assert inside.dial().ask(ahead, more=True).busy.ahead == 0
    assert inside.dial().ask(second, more=True).busy.ahead == 2
    inside.stop()
    inside.start()
    callers = [inside.dial() for _ in range(3)]
    for caller, asked in zip(callers, (second, first, ahead), strict=True):
        caller.sock.sendall(wire.encode_call(asked, more=True))
        caller._kind = messages.Acquire
    assert [caller.hear().busy.ahead for caller in callers] == [2, 1, 0]
