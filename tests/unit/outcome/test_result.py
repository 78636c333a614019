"""What counts as failed: one table for every command."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

import pytest

from slicer.model import Outcome
from slicer.notify.events import events_of
from slicer.outcome import history, sums, totals
from slicer.outcome.result import result_of
from slicer.queue.engine.ended_attempt import from_outcome
from slicer.queue.judge import judging
from slicer.record import replace
from tests.unit.outcome.test_outcome_file import OUTCOME


@pytest.mark.parametrize(
    ("exit_code", "reason", "ended_by", "result"),
    [
        (0, "exited", "", "ok"),
        (3, "exited", "", "failed"),
        (139, "signal", "", "failed"),
        (143, "stopped", "slicer stop", "stopped"),
        (0, "stopped", "slicer stop", "ok"),  # it saved its work, and said so
        (130, "signal", "terminal", "stopped"),  # Ctrl-C
        (1, "exited", "terminal", "stopped"),  # as Python tells of a KeyboardInterrupt
        (129, "signal", "terminal", "stopped"),
        (143, "signal", "slicer run", "stopped"),
        (143, "stopped", "slicer queue", "stopped"),
        (137, "signal", "caller", "stopped"),
        (143, "stopped", "shutdown", "stopped"),
        (143, "stopped", "systemd", "failed"),  # systemctl stop, perhaps by root
        (137, "signal", "outside", "failed"),
        (143, "stopped", "slicer idle", "failed"),
        (143, "stopped", "slicer cap", "failed"),
        (124, "timeout", "", "failed"),
        (124, "timeout", "slicer stop", "failed"),
        (137, "oom-kill", "", "failed"),
        (125, "unknown", "", "failed"),  # killed together with slicer
        (None, "unknown", "", "unknown"),  # a lease of a program
    ],
)
def test_one_table_says_what_has_failed(  # U15
    exit_code: int | None, reason: str, ended_by: str, result: str
) -> None:
    assert result_of(exit_code, reason, ended_by) == result


# U15
def test_history_sums_metrics_notifications_and_queues_agree(tmp_path: object) -> None:
    path, made = f"{tmp_path}/history.db", list[Outcome]()
    reasons = ("exited", "signal", "oom-kill", "timeout", "stopped", "unknown")
    by = ("", "slicer stop", "slicer idle", "slicer queue", "terminal", "systemd", "shutdown", "outside")
    for number, (reason, ended_by, code) in enumerate(itertools.product(reasons, by, (0, 7))):
        outcome = replace(OUTCOME, job=f"{number:012x}", reason=reason, ended_by=ended_by, exit_code=code)
        made.append(outcome)
        history.append(outcome, path)
    results = {each.job: result_of(each.exit_code, each.reason, each.ended_by) for each in made}
    failed = {job for job, result in results.items() if result == "failed"}
    assert {each.job for each in history.read(path, limit=None, failed=True)} == failed
    assert sums.sums(path, "profile")[1].failed == len(failed)
    assert {each.job for each in made if "failed" in events_of(each)} == failed
    counts = {total.result: total.jobs for total in totals.of_history(path)}
    for result, name in (("ok", "succeeded"), ("stopped", "stopped")):
        assert counts[name] == list(results.values()).count(result)
    for each in made:
        ended = from_outcome("key", each.job, each, None)
        if each.exit_code and not judging.why_interrupted(ended):
            judged = judging.judge(ended, judging.Case(None, (), 0, 0.1))
            is_stopped = results[each.job] == "stopped"
            assert (judged.status == "cancelled") is (is_stopped and each.reason == "stopped"), each


def test_sqlite3_alone_can_still_read_the_history(tmp_path: object) -> None:
    path = f"{tmp_path}/history.db"
    history.append(OUTCOME, path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM outcomes").fetchone() == (1,)
