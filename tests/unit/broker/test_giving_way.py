"""The broker has users' preemptible jobs give way, whatever their processes do. No test waits for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.broker.protocol import messages
from slicer.broker.server.broker import IDLE_S
from slicer.broker.server.giving_way import LATER_S, LOOK_S
from slicer.model import PREEMPTIBLE
from tests.unit.broker.programs import Programs
from tests.unit.broker.within import Caller, acquire, within


class Machine(Programs):
    """Two GPUs, and programs that hold both, and say that they give way."""

    look_s = LOOK_S

    def hold(self, **wish: object) -> str:
        return super().hold(**{"gpus": 2, "priority": PREEMPTIBLE, "stop_s": 20.0, **wish})

    def wait(self, **wish: object) -> Caller:
        caller, asked = self.inside.dial(), acquire(**{"gpus": 1, "name": "eval", **wish})
        assert isinstance(caller.ask(asked, more=True), messages.Waiting)
        return caller


Make = Callable[..., Machine]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Machine] = []
    contexts = []

    def machine(policy: str = "") -> Machine:
        contexts.append(within(tmp_path, monkeypatch, policy=policy))
        made.append(Machine(contexts[-1].__enter__()))
        return made[-1]

    yield machine
    for each in made:
        each.close()
    for context in contexts:
        context.__exit__(None, None, None)


def test_the_lease_says_to_whom_and_a_supervisor_has_time_to_act(make: Make) -> None:  # U8, L1
    machine = make()
    machine.hold(min_run_s=30.0)
    machine.wait()
    machine.pass_(28.0)
    assert machine.lease().gives_way_to == ""
    machine.pass_(5.0)
    found = machine.lease()
    assert (found.gives_way_to, found.min_run_s, found.stop_s) == ("eval", 30.0, 20.0)
    machine.pass_(20.0 + LATER_S - 5.0)
    assert not machine.is_told
    machine.pass_(10.0)
    machine.inside.run(lambda: machine.is_told)  # it does not act, and is ended


def test_who_has_been_asked_ends_though_the_waiter_leaves_and_the_broker_is_started_anew(  # U8, L1
    make: Make,
) -> None:
    machine = make()
    job = machine.hold()
    waiter = machine.wait()
    machine.pass_(2.0)
    before = machine.lease()
    waiter.sock.close()
    machine.inside.stop()
    machine.inside.start()
    machine.pass_(2.0)
    assert machine.lease() == before, "it is asked once"
    assert sum(f"{job} gives way" in line for line in machine.inside.log) == 1
    assert machine.inside.broker is not None
    turns: list[int] = []

    def is_enough() -> bool:
        turns.append(0)
        if len(turns) == 2:
            machine.inside.clocks.pass_(IDLE_S + 1.0)
        return machine.is_told

    machine.inside.broker.run(is_enough)  # it stays for that
    machine.inside.run(lambda: machine.is_told)


def test_a_stopped_supervisor_keeps_nobody_waiting(make: Make) -> None:  # U8, L1
    machine = make()
    machine.hold()
    os.kill(machine.pids[0], signal.SIGSTOP)
    os.waitpid(machine.pids[0], os.WUNTRACED)
    machine.wait()
    machine.pass_(2.0)
    assert any("has to give way: SIGTERM" in line for line in machine.inside.log)


# U8, L1: a client may lie; it gains no time and no GPU by that
@pytest.mark.parametrize(
    ("wish", "least_s"), [({"min_run_s": 1e9, "stop_s": 1e9}, 3600.0), ({"stop_s": None}, 0.0)]
)
def test_no_word_of_a_client_keeps_it_longer_than_the_policy_allows(
    make: Make, wish: dict[str, float | None], least_s: float
) -> None:
    machine = make("preemptible_free = true\n")
    machine.hold(**wish)
    found = machine.lease()
    assert (found.priority, found.min_run_s) == (PREEMPTIBLE, least_s)
    assert found.stop_s is not None
    assert found.stop_s <= 300.0
    machine.wait()
    machine.inside.clocks.pass_(least_s)
    machine.pass_(2.0)
    assert machine.lease().gives_way_to == "eval"


def test_a_request_that_comes_back_as_another_stays_what_it_was(make: Make) -> None:  # U8, L1
    machine = make("preemptible_free = true\n")
    holder = acquire(gpus=2)
    first = machine.inside.dial()
    first.ask(holder, more=True)
    asked = acquire(gpus=1, priority=PREEMPTIBLE, min_run_s=5.0)
    ordinary = acquire(gpus=1)
    callers = [machine.inside.dial() for _ in range(4)]
    callers[0].ask(asked, more=True)
    callers[1].ask(ordinary, more=True)
    for caller, job, other in ((callers[2], asked, ordinary), (callers[3], ordinary, asked)):
        wish = {"priority": other.priority, "min_run_s": other.min_run_s}
        caller.ask(acquire(job=job.job, gpus=1, **wish), more=True)
    first.ask(messages.Release(holder.job))
    leases = {}
    machine.inside.run(lambda: len(machine.inside.files("leases")) == 2)
    for each in machine.inside.dial().ask(messages.Status()).leases:
        leases[each.job] = (each.priority, each.min_run_s)
    assert leases == {asked.job: (PREEMPTIBLE, 0.0), ordinary.job: (0, None)}


def test_a_job_gives_way_to_none_of_its_like_nor_to_one_over_its_cap(make: Make) -> None:  # U8, L1, L3
    machine = make(f"preemptible_free = true\n[users.{os.getuid()}]\nmax_gpus = 0\n")
    machine.hold()
    machine.wait(priority=PREEMPTIBLE)
    assert machine.inside.dial().ask(acquire(gpus=1), more=True) == "NotAllowed"
    machine.pass_(5.0)
    assert machine.lease().gives_way_to == ""
