"""The life of a command: all orders of what may happen to it, in a world that obeys, ignores or forbids."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.job.life import Event, Life, Terms, beside_containers, due_s, step
from slicer.job.stop_rule import StopRule
from slicer.kernel.signals import signal
from slicer.record import replace

RULE = StopRule("", signal.SIGTERM, 5.0, 10.0)
QUICK = StopRule("", signal.SIGINT, 1.0, 2.0)
STOPS = (
    Event("stop", by="slicer run", rule=RULE),
    Event("stop", by="slicer stop", rule=QUICK),
    Event("stop", by="caller"),
    Event("systemd", by="systemd", rule=RULE),
    Event("systemd", reason="timeout", rule=RULE),
    Event("exceeds", reason="oom-kill"),
)
EVENTS = (
    *STOPS, Event("ended"), Event("time"), Event("passed", signal.SIGINT),
    Event("direct", signal.SIGINT, "terminal"), Event("direct", signal.SIGTERM, "shutdown"),
)  # fmt: skip


class World:
    """A command with one process that it leaves, and a clock. ``obeys``: they end at whatever they get.

    ``monitor_s``: what watches a container lives on that long behind it, unless it is killed.
    """

    def __init__(
        self, terms: Terms, *, obeys: bool = False, is_foreign: bool = False, monitor_s: float = 0.0
    ) -> None:
        self.terms, self._obeys, self._is_foreign = terms, obeys, is_foreign
        self._monitor_s = monitor_s
        self.watches_until_s: float | None = None
        self.was_monitor_killed = False
        self.now_s = 100.0
        self.life = Life(self.now_s, terms.stop)
        self.runs = self.has_left = True
        self.done: list[tuple[float, str]] = []

    def happens(self, event: Event) -> None:
        if event.name == "ended":
            if not self.runs:
                return
            self.runs = False
        before, had_ended = self.life, self.life.ended_s is not None
        self.life, actions = step(before, event, self.now_s, self.terms)
        assert before.reason in (None, self.life.reason), "an end that was decided stays as it was said"
        for action in actions:
            assert action != "send" or not had_ended, "nothing is sent to a command that has ended"
            self.done.append((self.now_s, action))
            self._act(action)

    def _act(self, action: str) -> None:
        if action == "kill":
            self.happens(Event("spared" if self._is_foreign else "killed"))
            if not self._is_foreign:
                self.end_all()
            if self.watches and self.life.beside_s == 0.0:
                self.watches_until_s, self.was_monitor_killed = None, True
        elif action != "report" and self._obeys:
            self.end_all()

    @property
    def watches(self) -> bool:
        return self.watches_until_s is not None and self.now_s < self.watches_until_s

    def end_all(self) -> None:
        if self.has_left and self._monitor_s:
            self.watches_until_s = self.now_s + self._monitor_s
        self.has_left = False
        self.happens(Event("ended"))

    def passes(self, most: int = 50) -> None:
        """Time passes until nothing is due any more."""
        for _ in range(most):
            if not self.runs and not self.has_left and not self.watches:
                return
            if not self.runs and self.watches and not self.has_left:
                self.happens(Event("left", is_beside=self.life.beside_s != 0.0))
            at = due_s(self.life, self.terms)
            if at is None:
                return
            self.now_s = max(self.now_s, at)
            self.happens(Event("time"))
            if not self.runs and self.has_left:
                self.happens(Event("left"))
        raise AssertionError(f"something is always due: {self.life}")


def terms(*, linger: bool = False, timeout_s: float | None = None, has_scope: bool = True) -> Terms:
    return Terms(RULE, linger, timeout_s, has_scope)


ALL_TERMS = [
    terms(linger=a, timeout_s=b, has_scope=c)
    for a in (False, True)
    for b in (None, 3.0)
    for c in (False, True)
]


# F4, F6: in whichever order, a job that is to end ends, and is said to have ended by the first reason.
@pytest.mark.parametrize("each", ALL_TERMS, ids=str)
def test_in_every_order_of_events_what_is_to_end_ends(each: Terms) -> None:
    for length in (1, 2, 3):
        for events in itertools.product(EVENTS, repeat=length):
            for obeys in (False, True):
                world = World(each, obeys=obeys)
                for event in events:
                    world.happens(event)
                    world.now_s += 0.3
                world.passes()
                is_to_end = world.life.reason is not None or not (world.runs or each.linger)
                assert not (is_to_end and (world.runs or world.has_left)) or _asked_of_session(world), events


def _asked_of_session(world: World) -> bool:
    """Whether all that ends the job is the end of its session, which systemd ends."""
    return world.life.asked_s is None and world.life.ended_by == "shutdown"


@given(
    st.sampled_from(ALL_TERMS), st.booleans(),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0.0, 4.0)), max_size=12),
)  # fmt: skip
def test_no_order_keeps_the_keeper_busy_or_moves_the_kill_away(
    each: Terms, is_foreign: bool, events: list[tuple[Event, float]]
) -> None:  # F6
    world = World(each, is_foreign=is_foreign)
    for event, pause_s in events:
        kill_s = world.life.kill_s
        world.happens(event)
        has_killed = any(action == "kill" for _, action in world.done)
        assert has_killed or kill_s is None or kill_s >= (world.life.kill_s or 0.0)
        world.now_s += pause_s
    world.passes()


@pytest.mark.parametrize("event", [event for event in STOPS if event.rule is not None], ids=str)
def test_who_ignores_it_is_asked_and_then_killed_before_systemd_does(event: Event) -> None:  # F6
    world = World(terms())
    world.happens(event)
    assert event.rule is not None
    world.passes()
    kinds = [action for _, action in world.done if action != "report"]
    assert kinds == ["ask", "ask", "kill"], "the command, then all others, then whoever is left"
    killed_s = world.done[-1][0] - 100.0
    assert event.rule.grace_s < killed_s < event.rule.total_s


def test_helpers_of_a_command_have_a_moment_to_notice_its_end() -> None:  # E4
    world = World(terms())
    world.happens(Event("ended"))
    world.happens(Event("left"))
    assert world.done == []
    world.passes()
    assert world.done[0][1] == "ask"
    assert world.life.reason is None, "it counts as the command ended"


def test_what_a_lingering_command_leaves_is_waited_for() -> None:  # E4
    world = World(terms(linger=True))
    world.happens(Event("ended"))
    world.happens(Event("left"))
    world.passes()
    assert (world.done, world.has_left) == ([], True)
    world.happens(Event("stop", rule=RULE))
    world.passes()
    assert not world.has_left


@pytest.mark.parametrize(("first", "ends"), [(0.0, True), (0.9, True), (1.1, False)])
def test_a_signal_of_the_terminal_is_not_passed_on_once_more(first: float, ends: bool) -> None:  # R2
    world = World(terms())
    world.happens(Event("direct", signal.SIGINT, "terminal"))
    world.now_s += first
    world.happens(Event("passed", signal.SIGINT))
    assert (world.done == []) is ends
    world.happens(Event("passed", signal.SIGUSR1))
    assert world.done[-1][1] == "send", "only the same signal is the same"


def test_a_limit_that_is_kept_here_counts_from_the_commands_start() -> None:  # F4
    world = World(terms(timeout_s=3.0))
    assert due_s(world.life, world.terms) == 103.0
    world.passes()
    assert (world.life.reason, world.done[0]) == ("timeout", (103.0, "ask"))


def test_who_may_not_be_killed_is_waited_for_without_haste() -> None:  # E4: sudo in a job
    world = World(terms(), is_foreign=True)
    world.happens(Event("stop", rule=replace(RULE, grace_s=0.0)))
    world.passes()
    assert due_s(world.life, world.terms) is None
    assert world.done[-1][1] == "kill"


# U5: podman takes note of the end of a container that slicer ends, and is not ended for that.
@pytest.mark.parametrize("event", [Event("ended"), *STOPS], ids=str)
def test_what_watches_a_container_has_time_to_tell_podman_of_its_end(event: Event) -> None:
    world = World(terms(), monitor_s=0.4)
    world.happens(event)
    if event.name != "ended":
        world.happens(Event("ended"))  # podman ends with its container
    world.passes()
    assert not world.was_monitor_killed
    assert not world.watches


@pytest.mark.parametrize("event", [Event("ended"), *STOPS], ids=str)
def test_what_watches_a_container_and_hangs_is_ended_as_well(event: Event) -> None:  # U5, F6
    world = World(terms(), monitor_s=1000.0)
    world.happens(event)
    world.happens(Event("ended"))
    world.passes(most=200)
    assert not world.watches
    assert world.now_s - 100.0 < 2 * RULE.total_s
    if event.name == "systemd":
        assert world.now_s - 100.0 < RULE.total_s, "before systemd kills the keeper, too"


def test_podmans_own_processes_beside_a_container_are_known_by_name_and_parent() -> None:  # U5
    names = {10: "conmon", 11: "python", 12: "podman", 13: "podman", 14: "pasta.avx2", 15: ".podman-wrapped"}
    parents = {10: 1, 11: 10, 12: 10, 13: 1, 14: 1, 15: 10}
    assert beside_containers(names, parents.__getitem__) == {10, 12, 14, 15}
    del names[10]
    assert beside_containers(names, parents.__getitem__) == frozenset()
