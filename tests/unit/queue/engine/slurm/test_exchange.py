"""The files of attempts, also where something else is in their place. (X9)"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.outcome.outcome_file import write
from slicer.queue.engine.slurm import script
from slicer.queue.engine.slurm.exchange import AttemptResult, Exchange, refuse_if_running
from slicer.queue.state.log_dir import LogDir
from tests.unit import made_up

JOB, OTHER, BATCH = "0123456789ab", "ba9876543210", "aaaabbbbcccc"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def log_dir(logs: Path) -> Iterator[LogDir]:
    made = LogDir(str(logs))
    yield made
    made.close()


@pytest.fixture
def exchange(log_dir: LogDir) -> Iterator[Exchange]:
    made = Exchange(log_dir)
    yield made
    made.close()


def put(logs: Path, name: str, text: str = "") -> None:
    (logs / "slurm" / name).write_text(text)


# X9: whoever takes the order has the attempt
def test_an_attempt_is_the_nodes_or_the_queues(exchange: Exchange, logs: Path) -> None:
    exchange.write(f"{JOB}.order", "true")
    assert exchange.withdraw(JOB)
    assert exchange.withdraw(JOB)  # nobody else has it
    exchange.write(f"{OTHER}.order", "true")
    os.rename(logs / "slurm" / f"{OTHER}.order", logs / "slurm" / f"{OTHER}.begun")
    assert not exchange.withdraw(OTHER)


# X9, E7
def test_batches_are_found_again_and_go_with_their_last_attempt(
    exchange: Exchange, log_dir: LogDir, logs: Path
) -> None:
    exchange.write_batch(BATCH, [JOB, OTHER], script.batch("/logs/slurm", [JOB, OTHER]))
    again = Exchange(log_dir)
    assert again.place(OTHER) == (BATCH, 1)
    assert again.place("000000000000") == ("", 0)
    put(logs, "000000000000.end")
    again.sweep([JOB])
    assert again.files() == {BATCH: {"batch"}}
    again.forget(JOB)
    assert again.files() == {}
    again.close()


def test_what_came_is_heard(exchange: Exchange, logs: Path) -> None:  # X9
    assert exchange.heard() == {}
    put(logs, f"{JOB}.tmp", "x")
    (logs / "slurm" / f"{JOB}.tmp").rename(logs / "slurm" / f"{JOB}.end")
    assert exchange.heard() == {JOB: {"end"}}


# X9: another user cannot write there, but a job of this user can
def test_broken_files_say_nothing(exchange: Exchange, logs: Path) -> None:
    assert exchange.node(JOB) == ("", ())
    for text in ("n1 0,1\n", "n1\n", "n1 \n"):
        put(logs, f"{JOB}.node", text)
        assert exchange.node(JOB) == ("n1", (0, 1) if "," in text else ())
    for text in ("", "a b c", "\x1b[31m 0", "n1 0,x", "n" * 99):
        put(logs, f"{JOB}.node", text)
        assert exchange.node(JOB) == ("", ())
    for text in ("", "{", "[]", "[" * 99999, '{"job": 1}', "99999999"):
        put(logs, f"{JOB}.end", text)
        assert exchange.end(JOB) == AttemptResult(None, None)
    put(logs, f"{JOB}.end", "78\n")
    assert exchange.end(JOB) == AttemptResult(None, 78)
    (logs / "slurm" / f"{JOB}.end").unlink()
    (logs / "slurm" / f"{JOB}.end").symlink_to("/etc/passwd")
    assert exchange.end(JOB) == AttemptResult(None, None)
    (logs / "slurm" / f"{JOB}.end").unlink()
    (logs / "slurm" / f"{JOB}.end").mkdir()
    assert exchange.end(JOB) == AttemptResult(None, None)


def test_an_outcome_counts_for_its_own_attempt_only(exchange: Exchange, logs: Path) -> None:  # X9
    write(made_up.outcome(job=JOB, exit_code=3), str(logs / "slurm" / f"{JOB}.end"))
    found = exchange.end(JOB).outcome
    assert found is not None
    assert found.exit_code == 3
    os.rename(logs / "slurm" / f"{JOB}.end", logs / "slurm" / f"{OTHER}.end")
    assert exchange.end(OTHER) == AttemptResult(None, None)


def test_a_running_attempt_keeps_fresh_away(exchange: Exchange, logs: Path) -> None:  # X9
    refuse_if_running(str(logs))
    put(logs, f"{JOB}.begun")
    with pytest.raises(StateError, match="still run"):
        refuse_if_running(str(logs))
    put(logs, f"{JOB}.end")
    refuse_if_running(str(logs))
    refuse_if_running(str(logs / "nowhere"))
