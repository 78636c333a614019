"""What it means that Slurm no longer runs an attempt. (X9)"""

from __future__ import annotations

import pytest

from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.engine.slurm import tracking
from slicer.queue.engine.slurm.parsing import SlurmTask
from slicer.queue.engine.slurm.tracking import Tracked


def attempt(state: str = "", node: str = "n1") -> Tracked:
    made = Tracked("k#0", "a1", None)
    made.task = SlurmTask("7", 0, state, "None", node) if state else None
    return made


# X9, E13
@pytest.mark.parametrize(
    ("state", "node", "files", "how", "reason", "code"),
    [
        ("CANCELLED", "", {"order"}, "ended", "stopped", 143),
        ("CANCELLED", "n1", {"order"}, "unbegun", "", 0),  # its node could not start it
        ("CANCELLED", "n1", {"begun"}, "ended", "stopped", 143),
        ("FAILED", "n1", {"order"}, "unbegun", "", 0),
        ("NODE_FAIL", "n1", {"order"}, "unbegun", "", 0),
        ("", "", {"order"}, "unbegun", "", 0),
        ("NODE_FAIL", "n1", {"begun", "node"}, "interrupted", "", 0),
        ("PREEMPTED", "n1", {"begun", "node"}, "interrupted", "", 0),
        ("TIMEOUT", "n1", {"begun", "node"}, "ended", "timeout", 124),
        ("OUT_OF_MEMORY", "n1", {"begun", "node"}, "ended", "oom-kill", 137),
        ("COMPLETED", "n1", {"begun", "node"}, "ended", "exited", 0),
        ("FAILED", "n1", {"begun", "node"}, "ended", "exited", 1),
        ("DEADLINE", "n1", {"begun", "node"}, "lost", "", 0),
        ("", "", {"begun", "node"}, "lost", "", 0),
    ],
)
def test_an_attempt_without_an_end_is_judged_by_its_files_and_slurm(
    state: str, node: str, files: set[str], how: str, reason: str, code: int
) -> None:
    found = tracking.ended_without_word(attempt(state, node), files, "/logs/slurm")
    assert (found.how, found.reason, found.exit_code) == (how, reason, code)
    assert bool(found.why) == (how != "ended")


def test_a_directory_that_a_node_cannot_use_is_named() -> None:  # X9
    found = tracking.ended_without_word(attempt("FAILED"), {"order"}, "/logs/slurm")
    assert found.why == "n1 cannot use /logs/slurm: is it shared?"


def test_a_node_without_slicer_has_run_nothing() -> None:  # X9
    assert tracking.ended_with_code(attempt(), 78, "n1").how == "unbegun"
    assert tracking.ended_with_code(attempt(), 125, "n1").how == "unbegun"  # nor has one without a driver
    found = tracking.ended_with_code(attempt(), 2, "n1")
    assert (found.how, found.reason, found.exit_code) == ("ended", "exited", 2)


# X9: a shell may outlive its child, which got Slurm's SIGTERM first
@pytest.mark.parametrize(
    ("reason", "code", "number", "may"),
    [
        ("stopped", 143, 15, True), ("signal", 143, 15, True), ("exited", 143, None, True),
        ("exited", 1, None, False), ("exited", 0, None, False), ("signal", 137, 9, False),
        ("timeout", 124, 15, False),
    ],
)  # fmt: skip
def test_an_end_by_sigterm_may_be_slurms(reason: str, code: int, number: int | None, may: bool) -> None:
    ended = EndedAttempt("k", "1f", "ended", reason, code, number)
    assert tracking.was_stopped(ended) is may


def test_questions_grow_rare_while_nothing_changes() -> None:  # X9
    waits = [tracking.next_tick_s(0.0, has_changed=True)]
    while len(waits) < 20:
        waits.append(tracking.next_tick_s(waits[-1], has_changed=False))
    assert (waits[0], waits[-1]) == (0.2, 10.0)
    assert sum(wait < 10 for wait in waits) < 12


@pytest.mark.parametrize(
    ("state", "files", "missed", "after_s", "is_over"),
    [
        ("COMPLETED", {"begun"}, 2, 0.3, False), ("", {"begun"}, 5, 3.0, False),
        ("", {"begun"}, 9, 11.0, True), ("COMPLETED", {"begun"}, 1, 60.0, False),
        ("CANCELLED", {"begun"}, 2, 0.3, True), ("FAILED", {"order"}, 2, 0.3, True),
    ],
)  # fmt: skip
def test_an_end_may_be_seen_late(
    state: str, files: set[str], missed: int, after_s: float, is_over: bool
) -> None:  # X9
    """A shared directory shows new files seconds later: until then nobody calls a job lost."""
    made = attempt(state)
    made.missed, made.missed_s = missed, 100.0
    assert tracking.is_over(made, files, 100.0 + after_s) is is_over
