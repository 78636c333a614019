"""What happens next to a server, as a table: events in their order, the state and the actions after each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.record import replace
from slicer.serve.life import Life, LifeTimings, due_s, step

BOUNDS = LifeTimings(idle_s=300.0, min_hold_s=30.0, drain_s=10.0, give_way=True)
READY = ["came 0 waiting acquire", "granted 5 starting", "ready 9 ready admit"]
IDLE = [*READY, "done 20 ready"]

STORIES = {
    "one request, then idle": [*IDLE, "time 319 ready", "time 320 releasing release", "free 322 stopped"],
    "a second one joins the first": ["came 0 waiting acquire", "came 1 waiting", *READY[1:]],
    "the last client goes while it waits": [
        "came 0 waiting acquire", "came 1 waiting", "gave_up 2 waiting", "gave_up 3 stopped withdraw",
    ],
    "a client that goes while it starts stops nothing": [
        *READY[:2], "gave_up 6 starting", "ready 9 ready admit", "time 308 ready",
        "time 309 releasing release",
    ],
    "busy": ["came 0 waiting acquire", "refused 600 stopped refuse"],
    "it does not start, and is tried anew": [
        *READY[:2], "failed 6 releasing refuse release", "came 7 releasing", "free 8 waiting acquire",
    ],
    "it fails again and again, and is left alone for a while": [
        *READY[:2], "failed 6 releasing refuse release", "free 7 stopped", "came 8 waiting acquire",
        "granted 9 starting", "ended 10 releasing refuse release", "came 11 releasing",
        "free 12 stopped refuse",
        "came 13 stopped refuse", "came 14 waiting acquire", "granted 15 starting", "ready 16 ready admit",
        "ended 17 releasing release", "free 18 stopped", "came 18 waiting acquire",
    ],
    "it dies with requests": [*READY, "ended 12 releasing release", "done 13 releasing"],
    "those that wait while it drains do not die with it": [
        *READY, "rivalled 40 draining", "came 41 draining", "ended 42 releasing release",
        "free 43 waiting acquire",
    ],
    "a request during the release waits": [
        *IDLE, "crowded 25 releasing release", "came 26 releasing", "free 27 waiting acquire",
    ],
    "somebody waits while it works": [*READY, "crowded 10 ready", "done 11 releasing release"],
    "nobody waits any more when it is idle": [
        *READY, "crowded 10 ready", "uncrowded 11 ready", "done 12 ready",
    ],
    "the load of a model keeps it, whoever has asked": [
        *READY, "began 10 ready", "done 11 ready", "time 400 ready", "crowded 401 ready",
        "done 402 releasing release",
    ],
    "a rival waits for min_hold, and for the requests": [
        *READY, "rivalled 10 ready", "time 34 ready", "time 35 draining", "came 36 draining",
        "done 40 releasing release", "free 41 waiting acquire",
    ],
    "a rival of an idle one does not wait": [*IDLE, "rivalled 21 releasing release"],
    "it serves those it was started for, although that took longer than min_hold": [
        *READY[:2], "rivalled 6 starting", "ready 50 draining admit", "came 51 draining",
        "done 52 releasing release",
    ],
    "the memory does not come back": [
        *IDLE, "time 320 releasing release", "stuck 350 stuck", "came 351 stuck", "stuck 360 stuck",
        "free 362 waiting acquire",
    ],
    "the end drains": [
        *READY, "close 10 draining", "came 11 draining refuse", "time 19 draining",
        "time 20 releasing release",
        "free 21 stopped", "came 22 stopped refuse",
    ],
    "the end is told once more": [
        *READY, "close 10 draining", "close 11 releasing release", "free 12 stopped",
    ],
    "the end while it waits": ["came 0 waiting acquire", "close 1 stopped refuse withdraw"],
    "the end while it starts": [*READY[:2], "close 6 releasing refuse release", "free 7 stopped"],
    "late news mean nothing": ["granted 1 stopped", "ready 2 stopped", "ended 3 stopped", "free 4 stopped"],
}  # fmt: skip


def told(story: list[str], bounds: LifeTimings = BOUNDS) -> Life:
    """The life at the end of a story, each line of which holds."""
    life = Life()
    for line in story:
        event, at_s, *expected = line.split()
        life, found = step(life, event, float(at_s), bounds)  # type: ignore[arg-type]
        assert [life.state, *found] == expected, line
    return life


@pytest.mark.parametrize("story", STORIES)
def test_what_happens_next(story: str) -> None:  # B6
    told(STORIES[story])


def test_one_that_is_not_to_give_way_does_not() -> None:  # B6
    told([*IDLE, "crowded 25 ready", "time 320 releasing release"], replace(BOUNDS, give_way=False))


def test_an_idle_server_hears_of_the_time_when_it_is_over() -> None:  # B6
    assert due_s(told(IDLE), BOUNDS) == 320.0
    assert due_s(told(READY), BOUNDS) is None
    assert due_s(told([*READY, "rivalled 10 ready"]), BOUNDS) == 35.0
    assert due_s(told([*READY, "close 10 draining"]), BOUNDS) == 20.0


def test_requests_that_a_dead_server_has_not_let_go_of_count_beside_the_new_ones() -> None:  # B6
    died = [*READY, "ended 10 releasing release", "free 11 stopped"]
    again = ["came 12 waiting acquire", "granted 13 starting", "ready 14 ready admit", "done 15 ready"]
    life = told([*died, *again])
    assert life.running == 1


EVENTS = [
    "came", "gave_up", "began", "done", "granted", "refused", "ready", "failed", "ended", "free", "stuck",
    "crowded", "uncrowded", "rivalled", "unrivalled", "time", "close",
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0, 100))))
def test_nothing_is_asked_for_twice_nor_forwarded_to_what_goes(story: list[tuple[str, float]]) -> None:
    life, now_s, holds = Life(), 0.0, False
    for event, later_s in story:
        now_s += later_s
        before = life
        life, actions = step(life, event, now_s, BOUNDS)  # type: ignore[arg-type]
        if before.state in ("releasing", "stuck") and event == "free":
            holds = False
        for action in actions:
            if action == "acquire":
                assert not holds
                holds = True
            elif action == "withdraw":
                assert holds
                holds = False
            elif action == "admit":
                assert before.state in ("starting", "ready")
            elif action == "release":
                assert holds
        assert life.waiting >= 0
        assert life.running >= 0
        holds = holds and life.state != "stopped"  # refused
        assert holds == (life.state != "stopped")
        assert not (life.state == "stopped" and life.waiting)
