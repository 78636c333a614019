"""Leases of the broker in a real systemd: what holds them, and what kills of the broker leave."""

from __future__ import annotations

import os
import signal

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import RUN, SERVICE, SOCKET_UNIT, Broker
from tests.systemd.helpers.processes import in_cgroup
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures"]
pytestmark = pytest.mark.systemd

CPU = {"slots": {"cpu": 1}, "binding": "scope"}
POINTS = ("broker-starting", "broker-asked", "broker-started", "broker-held")


def test_a_scope_holds_its_lease_and_nothing_else_does(broker: Broker, ann: User, ben: User) -> None:  # L1
    holder = broker.call(ann, **CPU, start=True, limits={"TasksMax": "5"})
    started = holder.await_("started")
    unit, keeper = started["unit"], started["keeper"]
    assert started["cgroup"] == f"/_cpu.slice/cpu-{ann.uid}.slice/{unit}"
    assert systemctl.show(unit, "Slice", "TasksMax") == {"Slice": f"cpu-{ann.uid}.slice", "TasksMax": "5"}
    waiter = broker.call(ben, **CPU)
    waiter.await_("waiting")
    holder.kill()  # the keeper goes on
    broker.kill()
    broker.call(ben, slots={}).await_("granted")  # a broker is there again, and knows
    assert broker.lease(holder.job)["UID"] == str(ann.uid)
    assert not waiter.has("granted")
    os.kill(keeper, signal.SIGKILL)
    waiter.await_("granted")
    until(lambda: not systemctl.scopes(), "the scope is gone")


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_on_the_way_to_a_scope_loses_and_doubles_nothing(
    broker: Broker, ann: User, ben: User, point: str
) -> None:
    broker.stop_at(point)
    first = broker.call(ann, **CPU, start=True)
    until(broker.is_stopped, f"it comes to {point}")
    broker.go_on()
    broker.kill()
    second = broker.call(ben, **CPU, start=True)
    unit = first.await_("started")["unit"]  # it asked again
    second.await_("waiting")
    assert systemctl.scopes() == [unit]
    assert broker.leases() == [first.job]
    first.do("end")
    second.await_("started")
    assert broker.leases() == [second.job]
    second.do("end")
    until(lambda: not broker.leases() and not systemctl.scopes(), "all is over")


def test_what_came_out_of_a_job_keeps_its_lease(broker: Broker, ann: User, ben: User) -> None:  # X1
    """A process may have opened a GPU and be taken into another scope: the GPU is free when it ends."""
    inner = {"binding": "scope", "start": True}
    outer = broker.call(ann, gpus=2, binding="scope", slice="gpu", start=True, inner=inner)
    started = outer.await_("started")
    waiter = broker.call(ben, gpus=1)
    waiter.await_("waiting")
    until(lambda: len(broker.leases()) == 2, "the job inside runs")
    until(lambda: not in_cgroup(str(started["cgroup"])), "nobody is left in the outer scope")
    outer.kill()
    broker.kill()
    broker.call(ben).await_("granted")
    assert outer.job in broker.leases()
    assert not waiter.has("granted")
    (left,) = {*systemctl.scopes()} - {started["unit"]}  # systemd may not have seen that it is empty
    systemctl.output("systemctl", "kill", "--signal=KILL", left)
    waiter.await_("granted")
    until(lambda: outer.job not in broker.leases(), "both are over")
    until(lambda: not systemctl.scopes(), "no unit stays")


def test_the_end_of_a_job_is_noticed_although_the_broker_is_gone(broker: Broker, ann: User) -> None:
    job = broker.call(ann, **CPU, start=True)
    job.await_("started")
    systemctl.output("systemctl", "stop", SERVICE)
    assert broker.leases() == [job.job]
    job.do("end")
    until(lambda: not broker.leases(), "somebody woke the broker")


def test_a_reload_of_systemd_loses_no_start(broker: Broker, ann: User, ben: User) -> None:
    broker.configure("[slots]\ncpu = 20\n")
    jobs = [broker.call(who, **CPU, start=True) for who in (ann, ben) * 5]
    for _ in range(3):
        systemctl.output("systemctl", "daemon-reload")
    systemctl.output("systemctl", "daemon-reexec")
    for job in jobs:
        job.await_("started")
    assert broker.leases() == sorted(job.job for job in jobs)
    for job in jobs:
        job.do("end")
    until(lambda: not broker.leases(), "all are over")


def test_a_full_run_refuses_who_comes_and_keeps_who_waits(broker: Broker, ann: User, ben: User) -> None:
    systemctl.output("systemctl", "stop", SERVICE, SOCKET_UNIT)
    RUN.mkdir(exist_ok=True)
    systemctl.output("mount", "-t", "tmpfs", "-o", "size=256k,mode=755", "tmpfs", str(RUN))
    try:
        systemctl.output("systemctl", "start", SOCKET_UNIT)
        holder, waiter = broker.call(ann, **CPU), None
        holder.await_("granted")
        waiter = broker.call(ben, **CPU)
        waiter.await_("waiting")
        filler = RUN / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(1 << 20))
        late = broker.call(ann, **CPU).await_("error")
        assert late["name"] == "Broken"
        assert "No space left" in late["message"]
        holder.do("release")  # a lease can always be given back
        broker.kill()
        filler.unlink()
        waiter.await_("granted")
        assert broker.leases() == [waiter.job]
    finally:
        for caller in broker.callers:
            caller.close()
        systemctl.output("systemctl", "stop", SERVICE, SOCKET_UNIT)
        systemctl.output("umount", "--lazy", str(RUN))
        systemctl.output("systemctl", "start", SOCKET_UNIT)
