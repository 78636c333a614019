"""The board that browsers get: what everybody may know, and nothing that changes with the time alone."""

from __future__ import annotations

import json
from typing import Any

from slicer.broker.protocol.messages import PastLease
from slicer.ledger.halted import Halted
from slicer.ledger.status import LedgerStatus
from slicer.model import GpuLoad, Outcome, Reservation, UserStanding
from slicer.outcome.job_files import DetachedJob
from slicer.queue.control.messages import RunningQueue
from slicer.record import replace
from slicer.state.standings import ServerStanding
from slicer.web import board
from tests.unit.cli import made_up_status as made_up
from tests.unit.cli.made_up_status import BACKUP, EVAL, SERVE, TRAIN, A, C
from tests.unit.made_up import outcome

SECRET = "--token=hunter2"
LEASES = tuple(replace(each, command=SECRET, cgroup="/secret.scope") for each in (TRAIN, BACKUP, SERVE))
TICKET = replace(EVAL, command=SECRET, name="")
QUEUE = RunningQueue(
    "/home/anna/secret/sweep.txt", "/home/anna/secret/log", 7, "", "running", 1.0, {"pending": 3}, None, ""
)  # fmt: skip
SERVER = ServerStanding("ollama", "ollama", ("127.0.0.1:11434",), "ready", 500.0, 2, 9, None, "", "", 88)
ZERO_S = 1_700_000_000.25


def status(**changes: Any) -> LedgerStatus:
    seen = made_up.snapshot(made_up.process(A, 1, 500, name="secret-python"))
    return replace(made_up.made(LEASES, (TICKET,), seen, load={A: GpuLoad(37, 61)}), **changes)


def shown(found: LedgerStatus) -> dict[str, Any]:
    return board.board(
        found, (SERVER,), (QUEUE,), ZERO_S, lambda each: "why\n\x1b[2J", lambda each: ["idle"],
        lambda each: f"after {each.after[0]}\n", 54321,
    )  # fmt: skip


def test_no_command_path_or_process_is_on_it() -> None:  # U13
    text = json.dumps(shown(status()))
    assert not any(word in text for word in ("hunter2", "secret", "/home", "4211", "127.0.0.1"))
    assert json.loads(text)["queues"] == [
        {"file": "sweep.txt", "state": "running", "counts": {"pending": 3}, "warning": ""}
    ]


def test_jobs_waiters_and_gpus() -> None:  # U13
    found = shown(status(users=(UserStanding(0, 3, 1, None, 2, 3, 4, 0, 0.123, 0.5),)))
    assert [(each["job"], each["gpus"]) for each in found["jobs"]] == [
        (TRAIN.job, [0, 2]), (BACKUP.job, []), (SERVE.job, [1]),
    ]  # fmt: skip
    assert found["jobs"][0]["since"] == round(ZERO_S + TRAIN.since_s)
    (waiting,) = found["waiting"]
    assert (waiting["name"], waiting["gpus"], waiting["why"]) == ("", 2, "why\\n\\x1b[2J")
    assert waiting["since"] == round(ZERO_S + EVAL.arrived_s)
    first = found["gpus"][0]
    assert (first["name"], first["used_mib"], first["idle"]) == ("H100 80GB HBM3", 500, False)
    assert [each["used_mib"] for each in first["foreign"]] == [500]
    assert (first["utilisation"], first["temperature_c"], first["power_w"]) == (37, 61, None)
    assert [each["name"] for each in first["holders"]] == ["train"]
    assert found["all_users"]
    assert [each["user"] for each in found["users"]] == ["root"]


def test_time_alone_changes_nothing() -> None:  # U13
    later = made_up.NOW_S + 30.4
    before, after = status(halted=(Halted(TRAIN.job, "paused", 3.0),)), status(now_s=later)
    assert shown(before) == shown(replace(after, waits=before.waits))


def test_a_user_s_bars_are_joined_and_cut_to_the_day() -> None:  # U13
    now = 1_000_000.0
    rows = [
        PastLease(0, (A, C), now - 100, 40.0), PastLease(0, (A,), now - 50, 20.0),  # a gap of 10 s
        PastLease(0, (A,), now - 5000, 400.0), PastLease(54321, (A,), now - 4700, 600.0),
        PastLease(0, (A,), now - 90000, 5000.0), PastLease(0, (A,), now - 99999, 500.0),
        PastLease(0, ("GPU-gone",), now - 100, 40.0),
    ]  # fmt: skip
    found = {each["index"]: each["bars"] for each in board.timeline(rows, (), status(), now)["gpus"]}
    assert found == {
        0: [["root", 913600, 915000], ["root", 995000, 995400], ["root", 999900, 999970],
            ["54321", 995300, 995900]],
        1: [], 2: [["root", 999900, 999940]],
    }  # fmt: skip


def test_a_day_of_the_shortest_jobs_is_a_bounded_number_of_bars() -> None:  # U13
    now = 1_000_000.0
    rows = [PastLease(0, (A,), now - 4 * number, 1.0) for number in range(20_000)]
    (bars, *_) = (each["bars"] for each in board.timeline(rows, (), status(), now)["gpus"])
    assert len(bars) == 1


def test_jobs_that_begin_later_are_on_it() -> None:  # U13
    made = DetachedJob(
        "e" * 12, "publish", (SECRET,), "/secret", "light", "/secret/log", 1, 1, "", ("train:ok",), 1.7e9,
    )  # fmt: skip
    found = shown(status(later=(made,)))["later"]
    assert found == [
        {"job": "e" * 12, "name": "publish", "user": "54321", "profile": "light", "since": 1_700_000_000,
         "begins": "after train:ok\\n"}
    ]  # fmt: skip
    assert "secret" not in json.dumps(found)


def test_jobs_that_failed_are_on_it_and_a_sweep_that_fails_in_one_way_is_one_row() -> None:  # U13
    def job(number: int, how: str, name: str) -> tuple[Outcome, str]:
        values = {"job": f"{number:012x}", "name": name, "started_at": 1.7e9 - number, "command": (SECRET,)}
        return outcome(uid=54321, wall_s=5.0, **values), how

    sweep = [job(number, "exit 1", f"jobs.txt#{20 - number}") for number in range(8)]
    jobs = [*sweep, job(8, "SIGSEGV", "jobs.txt#1"), job(9, "exit 1", ""), job(10, "exit 1", "")]
    found = board.timeline((), jobs, status(), 1.7e9)["failed"]
    assert [(each["name"] or each["job"], each["how"], each["jobs"], each["ended"]) for each in found] == [
        ("jobs.txt#20", "exit 1", 8, 1_700_000_005), ("jobs.txt#1", "SIGSEGV", 1, 1_699_999_997),
        ("000000000009", "exit 1", 1, 1_699_999_996), ("00000000000a", "exit 1", 1, 1_699_999_995),
    ]  # fmt: skip
    assert "hunter2" not in json.dumps(found)


def test_reservations_are_on_it() -> None:  # U7, U13
    made = Reservation("a" * 12, 0, (A, C), 1.7e9, 1.7e9 + 60.4)
    (found,) = shown(status(reservations=(made,)))["reservations"]
    assert found == {"user": "root", "gpus": [0, 2], "from": 1_700_000_000, "until": 1_700_000_060}
