"""The broker's server, as processes see it: leases, the queue, and what a kill leaves of both."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_box import BrokerBox, Caller, Crowd
from tests.patience import until

CPU = {"slots": {"cpu": 1}}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[BrokerBox]:
    yield from BrokerBox.running(tmp_path, "config.toml", "[slots]\ncpu = 1\nlicense = 2\n")


def granted(caller: Caller) -> dict[str, object]:
    lease = caller.await_("granted")["lease"]
    assert isinstance(lease, dict)
    return lease


def waits(*callers: Caller) -> bool:
    return all(caller.has("waiting") and not caller.has("granted") for caller in callers)


def test_a_lease_lasts_until_it_is_given_back_or_its_process_ends(box: BrokerBox) -> None:  # L1
    first, second, third = box.call(**CPU), box.call(**CPU), None
    winner, waiter = sorted((first, second), key=lambda each: not until_told(each))
    assert until(lambda: waits(waiter), "the other waits")
    busy = waiter.await_("waiting")["busy"]
    assert busy["slot"] == "cpu"
    assert [each["job"] for each in busy["holders"]] == [winner.job]
    winner.do("release")
    granted(waiter)
    third = box.call(**CPU)
    third.await_("waiting")
    waiter.kill()
    granted(third)
    third.quit()
    until(lambda: not box.files("leases") and not box.files("tickets") and not box.files("commands"), "empty")


def until_told(caller: Caller) -> bool:
    until(lambda: caller.has("granted") or caller.has("waiting"), "an answer")
    return caller.has("granted")


# K2, L1
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_lease_lasts_as_long_as_one_inside_it(box: BrokerBox, is_killed: bool) -> None:
    outer = box.call(gpus=2)
    granted(outer)
    inner, innermost = (box.call(inside=[outer.job]) for _ in range(2))
    granted(inner)
    granted(innermost)
    outer.do("release")
    after = box.call(gpus=1)
    after.await_("waiting")
    if is_killed:
        box.crash()
        box.start()
    inner.kill()
    innermost.say("status")
    innermost.await_("status")
    assert waits(after)
    innermost.do("release")
    granted(after)
    until(lambda: box.files("leases") == [after.job], "only that one is left")


# K2, L1: nothing but a lease that one holds oneself, without a scope, can be kept
def test_a_request_inside_what_is_over_is_refused(box: BrokerBox) -> None:
    over, scope = box.call(gpus=1), box.call(gpus=1, binding="scope")
    granted(over)
    granted(scope)
    over.do("release")
    until(lambda: box.files("leases") == [scope.job], "it is over")
    for outer in (over, scope):
        told = box.call(inside=[outer.job]).await_("error")
        assert told["name"] == "BadProcess", told


def test_the_order_is_priority_then_arrival(box: BrokerBox) -> None:  # L2
    holder = box.call(**CPU)
    granted(holder)
    low, high, later = (box.call(**CPU, priority=priority) for priority in (0, 5, 5) if _is_told(box))
    until(lambda: waits(low, high, later), "all wait")
    order = []
    current = holder
    for _ in range(3):
        current.do("release")
        left = [each for each in (high, later, low) if each not in order]
        current = until(lambda left=left: next((c for c in left if c.has("granted")), None), "one has it")
        order.append(current)
    assert order == [high, later, low]


def _is_told(box: BrokerBox) -> bool:
    """Each is in the queue before the next one comes."""
    return until(lambda: all(each.look()[1:] for each in box.callers), "all were told something") is not None


def test_who_does_not_wait_is_told_who_holds_it(box: BrokerBox) -> None:  # L3
    holder = box.call(gpus=2, name="train")
    assert len(granted(holder)["gpus"]) == 2  # type: ignore[arg-type]
    hasty = box.call(gpus=1, wait=False)
    error = hasty.await_("error")
    assert error["name"] == "Busy"
    assert error["busy"]["holders"][0]["name"] == "train"
    patient = box.call(gpus=1, max_wait_s=0.1)
    assert patient.await_("error")["name"] == "Busy"
    never = box.call(gpus=3)
    assert never.await_("error")["name"] == "Infeasible"
    until(lambda: not box.files("tickets"), "nobody waits")


def test_only_slots_are_given_to_who_has_waited_too_long(box: BrokerBox) -> None:  # L3
    holder = box.call(**CPU, gpus=2)
    granted(holder)
    forced = box.call(**CPU, max_wait_s=0.1, runs_anyway=True)
    assert granted(forced)["forced"] == 1
    greedy = box.call(gpus=1, max_wait_s=0.1, runs_anyway=True)
    assert greedy.await_("error")["name"] == "NotAllowed"


def test_slots_that_the_administrator_does_not_count_are_their_users_own(box: BrokerBox) -> None:
    own = box.call(slots={"mine": 1}, slot_limits={"mine": 1})
    assert granted(own)["slots"] == {"mine": 1}
    assert f"SLOTS=u{os.getuid()}.mine=1" in (box.run / "leases" / own.job).read_text()
    next_one = box.call(slots={"mine": 1}, slot_limits={"mine": 1})
    assert next_one.await_("waiting")["busy"]["slot"] == "mine"
    counted = [box.call(slots={"license": 1}, slot_limits={"license": 99}) for _ in range(3)]
    until(lambda: sorted(until_told(each) for each in counted) == [False, True, True], "two of three")


def test_leases_are_for_all_to_read_and_commands_are_not(box: BrokerBox) -> None:
    caller = box.call(**CPU, command="train --token geheim")
    assert granted(caller)["command"] == "train --token geheim"
    lease = box.run / "leases" / caller.job
    assert "geheim" not in lease.read_text()
    assert lease.stat().st_mode & 0o777 == 0o644
    assert (box.run / "leases").stat().st_mode & 0o777 == 0o755
    for folder in ("commands", "tickets"):
        assert (box.run / folder).stat().st_mode & 0o777 == 0o700
    assert (box.run / "commands" / caller.job).stat().st_mode & 0o777 == 0o600


def test_a_stopped_waiter_lets_others_pass_and_keeps_its_place(box: BrokerBox) -> None:
    holder = box.call(**CPU)
    granted(holder)
    stopped = box.call(**CPU)
    stopped.await_("waiting")
    stopped.process.send_signal(signal.SIGSTOP)
    other = box.call(**CPU)
    other.await_("waiting")
    holder.do("release")
    granted(other)
    stopped.process.send_signal(signal.SIGCONT)
    other.do("release")
    granted(stopped)


# -- faults --------------------------------------------------------------------------------------------------

POINTS = ("broker-loaded", "broker-claimed", "broker-leased", "broker-ticketed", "broker-lease-unlinked")


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_loses_and_doubles_nothing(box: BrokerBox, point: str) -> None:
    holder = box.call(**CPU)
    granted(holder)
    box.crash()
    box.start(point)
    waiters = [box.call(**CPU, command=str(number)) for number in range(3)]
    is_early = point in ("broker-loaded", "broker-ticketed")
    if not is_early:
        until(lambda: waits(*waiters), "all wait")
        holder.say("release")
    until(box.stopped, f"it comes to {point}")
    box.crash()
    assert sum(caller.has("granted") for caller in waiters) == 0
    box.start()
    if is_early:
        until(lambda: waits(*waiters), "all wait")
        holder.say("release")
    left = list(waiters)
    while left:
        now = until(lambda left=left: [each for each in left if each.has("granted")], "one has it")
        assert len(now) == 1
        assert box.files("leases") == [now[0].job]
        left.remove(now[0])
        now[0].do("release")
    until(lambda: not box.files("leases") and not box.files("tickets") and not box.files("commands"), "empty")


def test_two_hundred_waiters_keep_their_places_and_arrivals_through_kills(box: BrokerBox) -> None:
    holder, crowd = Crowd(box, 1), Crowd(box, 200)
    until(lambda: len(box.files("tickets")) == 200, "all wait")
    arrived = {job: (box.run / "tickets" / job).read_text() for job in crowd.jobs}
    served: list[str] = []
    for number in range(24):
        if number % 10 == 3:
            box.crash()
            box.start()
        (crowd if served else holder).release_one()
        served.append(crowd.next_granted())
        assert box.files("leases") == [served[-1]]
    assert served == crowd.jobs[:24]
    left = box.files("tickets")
    assert sorted(left) == sorted(crowd.jobs[24:])
    assert all((box.run / "tickets" / job).read_text() == arrived[job] for job in left)
    holder.close()
    crowd.close()


def test_who_does_not_come_back_holds_nobody_up(box: BrokerBox) -> None:
    holder = box.call(**CPU)
    granted(holder)
    dead, deaf, alive = box.call(**CPU), box.call(**CPU, deaf=True), None
    for each in (dead, deaf):
        each.await_("waiting")
    alive = box.call(**CPU)
    alive.await_("waiting")
    box.crash()
    dead.kill()  # while nobody looks
    holder.kill()
    box.start()
    granted(alive)
    assert box.files("leases") == [alive.job]
    assert dead.job not in box.files("tickets")


def test_a_reused_pid_is_somebody_else(box: BrokerBox) -> None:
    holder = box.call(**CPU)
    granted(holder)
    box.crash()
    lease = box.run / "leases" / holder.job
    text = lease.read_text()
    start = next(line for line in text.splitlines() if line.startswith("PID_START="))
    lease.write_text(text.replace(start, "PID_START=1"))
    box.start()
    granted(box.call(**CPU))
    assert holder.job not in box.files("leases")


def test_a_job_id_is_its_process_own(box: BrokerBox) -> None:
    holder = box.call(**CPU)
    granted(holder)
    assert box.call(**CPU, job=holder.job).await_("error")["name"] == "JobExists"
    waiter = box.call(**CPU)
    waiter.await_("waiting")
    assert box.call(**CPU, job=waiter.job).await_("error")["name"] == "JobExists"
    assert box.files("tickets") == [waiter.job]


def test_a_bad_policy_gives_nothing_out_and_a_mended_one_does(box: BrokerBox) -> None:
    box.crash()
    policy = box.etc / "policy.toml"
    policy.write_text("[default]\nmax_gpus = 'many'\n")
    box.start()
    error = box.call(**CPU).await_("error")
    assert error["name"] == "Broken"
    policy.write_text("[default]\nmax_gpus = 1\n")
    granted(box.call(**CPU))
    policy.write_text("[default]\nmax_gpus = 'many'\n")  # the last good one stays in force
    box.call(gpus=1).await_("granted")
    until(lambda: "many" in box.log(), "it is told")
    box.crash()  # W30: also for the next broker
    box.start()
    box.call(gpus=1).await_("granted")
