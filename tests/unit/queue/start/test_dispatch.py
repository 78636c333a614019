"""When the queue tries again what it could not start."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.errors import BackendError, BrokerError, RefusedError, SlicerError
from slicer.kernel import sleep
from slicer.model import Profile
from slicer.queue.file import jobs_file
from slicer.queue.model import Entry, JobState
from slicer.queue.start import dispatch
from slicer.queue.start.dispatch import Dispatch
from slicer.queue.state import folding
from slicer.queue.state.journal import Record
from slicer.record import record
from tests.unit import made_up

NOT_PAUSED = SimpleNamespace(is_paused=lambda: False)


def set_clock(monkeypatch: pytest.MonkeyPatch, now: Callable[[], float]) -> None:
    """The queue's own: other threads of this process tell the time, too."""
    for place in (dispatch, sleep):
        monkeypatch.setattr(place, "time", SimpleNamespace(monotonic=now, time=now))


def test_a_pause_that_ends_between_two_looks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:  # E13
    now = [100.0]
    set_clock(monkeypatch, lambda: now[0])
    asked: list[int] = []
    register: Any = SimpleNamespace(states={}, problem="", log_dir=NOT_PAUSED)
    engine: Any = SimpleNamespace(is_here=True, keep=lambda kinds: None, refresh=lambda: asked.append(1))
    nobody: Any = None
    plans: Any = SimpleNamespace(gpu_needs=None, broker="", octaves=lambda: lambda entry: None)
    queue = Dispatch(register, plans, engine, nobody, str, nobody)
    assert queue.left_s() is None
    queue.pause()
    now[0] += 0.999
    queue.start()  # a timer may wake us a little early
    assert not asked
    now[0] += 0.002  # it is over before we sleep again
    assert queue.left_s() == 0
    queue.start()
    assert asked
    assert queue.left_s() is None


@record
class FakePlan:
    entry: Entry
    missing: Profile
    broker: str


class Refusing:
    """Has nothing, starts nothing, and keeps what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
        self.now = 100.0
        self.begun: list[str] = []
        self.error: dict[str, SlicerError] = {}
        self.held: dict[str, str] = {}
        set_clock(monkeypatch, lambda: self.now)
        any_: Any = SimpleNamespace
        self.states: dict[str, JobState] = {}
        self.told: list[str] = []
        register = any_(states=self.states, problem="", see=self.see, do=self.do, log_dir=NOT_PAUSED)
        self.broker_error: SlicerError | None = None
        self.broker_now = "/socket"
        self.plans = any_(
            plan=self.plan, gpu_needs=lambda _: (0, None), broker="/socket",
            octaves=lambda: lambda entry: None,
        )  # fmt: skip
        self.engine = any_(
            is_here=True, keep=lambda kinds: None, ask=self.ask, may_add=lambda _: True, refresh=lambda: None,
            start_commands=lambda **_: ((), ()), outdated=lambda _: [],
        )  # fmt: skip
        events = any_(add=lambda kind, *_, **__: self.told.append(kind), warning=self.told.append)
        held_back = any_(groups=set, settle=lambda entries: self.held)
        self.dispatch = Dispatch(
            register, self.plans, self.engine, events, lambda: self.broker_now, held_back
        )
        self.dispatch.load(jobs_file.parse(lines))

    def do(self, record: Record) -> None:
        folding.apply(self.states, record)

    def see(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.states.setdefault(entry.key, JobState(entry.key, entry.number, entry.command))

    def plan(self, entry: Entry, *_: Any) -> FakePlan:
        wants_nothing = entry.attributes.kind.profile == "none"
        return FakePlan(entry, made_up.profile(gpus=int(not wants_nothing)), broker="/socket")

    def ask(self, kind: Any, entry: Entry, plan: FakePlan, *_: Any) -> Any:
        if plan.broker and self.broker_error is not None:
            raise self.broker_error
        return lambda _: self.begin(entry)

    def begin(self, entry: Entry) -> bool:
        self.begun.append(entry.command)
        if entry.command in self.error:
            raise self.error[entry.command]
        return True

    def let_pass(self) -> None:
        """The time until it has something to do."""
        left_s = self.dispatch.left_s()
        assert left_s is not None
        self.now += left_s
        self.dispatch.start()


# Q1
def test_while_nothing_can_be_started_pauses_grow_and_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Refusing(monkeypatch, "a\nb\nc\n")
    queue.error = dict.fromkeys("abc", BackendError("cannot fork"))
    queue.dispatch.start()
    assert queue.begun == ["a", "b"]
    for _ in range(40):
        queue.let_pass()
    assert len(queue.begun) <= 42
    assert queue.now > 100 + 30 * 20
    assert {state.status for state in queue.states.values()} == {"pending"}
    assert queue.told == [queue.dispatch.trouble] == ["cannot fork"]
    queue.error.clear()
    queue.begun.clear()
    for _ in range(5):
        if len(queue.dispatch.pending):
            queue.let_pass()
    assert sorted(queue.begun) == ["a", "b", "c"]


# Q1: one that alone cannot be started keeps nobody else waiting, and has its turn again
def test_a_job_that_cannot_be_started_lets_the_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Refusing(monkeypatch, "a\nb\nc\n")
    queue.error = {"a": BackendError("something odd")}
    queue.dispatch.start()
    assert queue.begun == ["a", "b", "c"]
    for _ in range(3):
        queue.let_pass()
    assert queue.begun[3:] == ["a", "a", "a"]
    queue.error.clear()
    queue.let_pass()
    assert queue.begun[-1] == "a"
    assert queue.dispatch.left_s() is None


# Q1: there is no process for its run now, or for one of Slurm's commands
def test_a_request_that_cannot_be_made_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Refusing(monkeypatch, "a\nb\n")
    queue.broker_error = BackendError("cannot fork")
    queue.dispatch.start()
    assert (queue.begun, queue.told) == ([], ["cannot fork"])
    queue.broker_error = None
    queue.let_pass()
    assert queue.begun == ["a", "b"]


# Q20: the starter of many jobs is killed: that is one failure, and the others have a pause of a second
def test_jobs_that_fail_at_the_same_moment_cause_one_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Refusing(monkeypatch, "".join(f"{n}\n" for n in range(30)))
    queue.dispatch.start()
    assert len(queue.begun) == 30
    for key in queue.states:
        queue.dispatch.put_back(key)
        queue.dispatch.command_never_started(key)
    queue.let_pass()
    assert queue.now == 101
    assert len(queue.begun) == 60


# Q1: what systemd says of the job itself is final
def test_a_job_that_systemd_refuses_is_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Refusing(monkeypatch, "a\nb\n")
    queue.error = {"a": RefusedError("systemd refused x: Invalid argument")}
    queue.dispatch.start()
    assert queue.begun == ["a", "b"]
    assert [state.status for state in queue.states.values()] == ["infeasible", "pending"]


# L1: a broker that fails holds back what it decides about, and nothing else
def test_what_wants_nothing_starts_while_the_broker_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Refusing(monkeypatch, "a\n[profile=none] b\nc\n[profile=none] d\n")
    queue.broker_error = BrokerError("it is silent")
    queue.dispatch.start()
    assert queue.begun == ["b", "d"]
    for _ in range(10):
        queue.dispatch.start_commands(is_saved=True)
        queue.let_pass()
    assert queue.now > 100 + 60  # it is asked less and less often
    assert queue.begun == ["b", "d"]
    assert len(queue.told) == 1
    assert "it is silent; until then" in queue.dispatch.trouble
    queue.broker_error = None
    queue.let_pass()
    assert queue.begun == ["b", "d", "a", "c"]
    assert queue.dispatch.trouble == ""
    assert queue.dispatch.left_s() is None


# L1, W22: what a private ledger gave out beside a broker, the broker would give out again
@pytest.mark.parametrize(
    ("at_first", "by_now", "said"),
    [("", "/socket", "a broker was switched on"), ("/socket", "", "the broker was switched off")],
)
def test_where_others_decide_by_now_nothing_more_is_started(
    monkeypatch: pytest.MonkeyPatch, at_first: str, by_now: str, said: str
) -> None:
    queue = Refusing(monkeypatch, "a\nb\n")
    queue.plans.broker = queue.broker_now = at_first
    queue.broker_error = BrokerError("nobody hears us")
    queue.broker_now = by_now
    queue.dispatch.start()
    queue.dispatch.start()
    assert (queue.begun, queue.dispatch.is_over) == ([], True)
    assert queue.told == [f"{said}: start the queue again"]
    assert {state.status for state in queue.states.values()} == {"pending"}


# X9: a cluster's places are not of this machine, whose broker may come and go
def test_a_broker_here_is_none_of_a_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Refusing(monkeypatch, "a\n")
    queue.engine.is_here = False
    queue.plans.broker = ""
    queue.dispatch.start()
    assert not queue.dispatch.is_over
    assert queue.told == []


# U8, E7: also if the queue was started anew meanwhile, and for no longer than a pause may be
@pytest.mark.parametrize("is_anew", [False, True])
@pytest.mark.parametrize(("again_at", "pause_s"), [(130.0, 30), (1e9, 960)])
def test_a_job_that_failed_runs_again_after_its_pause(
    monkeypatch: pytest.MonkeyPatch, is_anew: bool, again_at: float, pause_s: int
) -> None:
    queue = Refusing(monkeypatch, "a\nb\n")
    a, b = queue.dispatch.pending.entries.values()
    queue.dispatch.start()
    queue.states[a.key].again_at = again_at
    if is_anew:
        queue.states[b.key].status = "ok"
        queue.dispatch.load((a, b))
    else:
        queue.dispatch.put_back(a.key)
    queue.dispatch.start()
    assert queue.begun == ["a", "b"]
    assert queue.dispatch.pending.waits_for(a.key).startswith("again ")
    while queue.begun == ["a", "b"]:
        queue.let_pass()
    assert (queue.begun, queue.now) == (["a", "b", "a"], 100 + pause_s)
