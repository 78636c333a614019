"""``slicer history``: the table in 80 columns, one job in full, and the data for scripts."""

from __future__ import annotations

import time

import pytest

from slicer.cli.history import details, ended, table
from slicer.model import Outcome, Usage
from slicer.outcome.history import append
from slicer.outcome.outcome_file import outcome_json
from slicer.record import replace
from tests.unit import made_up
from tests.unit.outcome.test_outcome_file import OUTCOME
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

NOW = 1795230000.0  # 2026-11-21 03:00:00 UTC
QUICK = made_up.outcome(
    job="9b1c22d0aa31", name="", command=("sh", "-c", "exit 3"), profile="light", backend="plain",
    manager="user", unit="", slice="cpu.slice", uid=0, exit_code=3, started_at=NOW - 400 * 86400,
    waited_s=0.02, wall_s=0.0071, not_enforced=("MemoryMax", "IOWeight"),
)  # fmt: skip

TABLE = """\
STARTED      JOB       ENDED     WALL  CPU  MEMORY  VRAM  WAITED  NAME: COMMAND
2025-10-17   9b1c22d0  exit 3     7ms    -       -     -       -  sh -c 'exit 3'
11-21 02:45  3f2a9c01  oom-kill  2m3s   1m   24.0G  9.1G    4.1s  train: python 'a b.py' '\\udcff'
"""
DETAILS = """\
job           3f2a9c01b7de
name          train
command       python 'a b.py' \\udcff
profile       gpu
user          54321 (54321)
unit          slicer-3f2a9c01b7de.scope in gpu.slice
backend       systemd, system manager
held          GPU GPU-1, GPU GPU-2, 1 CPU slot
GPU memory    8.0G declared, peak 9.1G, 512.0M
started       2026-11-21 02:45:37 +0000
waited        4.1s
ended         oom-kill, exit code 137, SIGKILL, by slicer stop
wall time     2m3s
paused        for 1.5s of it
CPU time      1m2s (user -, system -)
throttled     -
memory peak   24.0G
memory kills  1
read          -
written       -
stalled       - for CPU, - for memory, - for IO
leftovers     2 ended
directory     -
log           -
enforced      MemoryMax
not enforced  IOWeight
changed       CPUQuota=50% (slicer set)
sharing       lock and cap (yield), 2 processes
turns         7, held for 9.3s; waited 4 times, 1.5s in all, 500ms at most; 1 passed on undrained
GPU work      5000 gated, 3 of it without a turn
allocations   40 charged, peak 5.9G and 0B, contexts 512.0M and 0B; 2 refused; 1 not counted; got past the cap
trouble       no lock, because MPS is running
"""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_the_table_in_80_columns() -> None:
    shown = "".join(f"{line.text}\n" for line in table([QUICK, replace(OUTCOME, usage=USED)], NOW))
    assert shown == TABLE
    assert shown.index("train: ") - shown.rindex("\n", 0, shown.index("train: ")) < 80  # the rest may be cut


USED = Usage(cpu_s=60.0, memory_peak_bytes=24 << 30, oom_kills=1)


# X2
def test_what_is_not_known_of_gpu_memory_is_not_made_up() -> None:
    def shown(**changes: object) -> str:
        lines = [line.text for line in details(replace(OUTCOME, **changes))]
        return (
            next(line for line in lines if line.startswith("GPU memory")).removeprefix("GPU memory").strip()
        )

    assert shown(vram_peak_mib=()) == "8.0G declared, peak -"
    assert shown(vram_peak_mib=(0, 1), vram_mib=None) == "not declared, peak 0B, 1.0M"
    assert shown(gpus=(), vram_mib=None, vram_peak_mib=()) == "-"


def test_a_job_that_did_not_wait_for_its_lease_is_marked() -> None:  # A8
    (held,) = [line.text for line in details(replace(OUTCOME, forced=1)) if line.text.startswith("held")]
    assert held.endswith("1 CPU slot (not free: forced)")


def test_one_job_in_full() -> None:  # X3
    shown = "".join(f"{line.text}\n" for line in details(replace(OUTCOME, uid=54321)))
    assert shown == DETAILS.replace("'a b.py' \\udcff", "'a b.py' '\\udcff'")


@pytest.mark.parametrize(
    ("signo", "how"), [(1, "(it was closed)"), (2, "(Ctrl-C)"), (3, "(Ctrl-\\)"), (20, "(a key)")]
)
def test_a_closed_terminal_is_told_from_a_key(signo: int, how: str) -> None:  # W33
    job = replace(OUTCOME, reason="signal", signal=signo, exit_code=128 + signo, ended_by="terminal")
    (line,) = [line.text for line in details(job) if line.text.startswith("ended")]
    assert line.endswith(f"from the terminal {how}")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"exit_code": 0}, "ok"),
        ({"exit_code": 3}, "exit 3"),
        ({"reason": "signal", "signal": 15, "exit_code": 143}, "SIGTERM"),
        ({"reason": "signal", "signal": 50, "exit_code": 178}, "signal 50"),
        ({"reason": "timeout", "signal": 15, "exit_code": 124}, "timeout"),
        ({"reason": "stopped", "exit_code": 0}, "stopped"),
        ({"reason": "unknown", "exit_code": 137, "signal": 9}, "SIGKILL"),
    ],
)
def test_how_it_ended_in_a_word(changes: dict[str, object], word: str) -> None:
    assert ended(replace(QUICK, **changes)) == word


@pytest.fixture
def past(cli: Cli) -> list[Outcome]:
    """Five jobs, the oldest first."""
    path = str(cli.history)
    made = []
    for i in range(5):
        name = f"train {i}" if i % 2 else "twin*" if i else ""
        made.append(
            replace(OUTCOME, job=f"{i:012x}", name=name, started_at=time.time() - (4 - i) * 3600 - 60)
        )
        append(made[-1], path)
    return made


@pytest.mark.parametrize(
    ("line", "jobs"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("-n 2", [3, 4]),
        ("--number 0", [0, 1, 2, 3, 4]),
        ("--name train*", [1, 3]),
        ("--name train*  -n 1", [3]),
        ("--since 2h", [3, 4]),
        ("000000000003", [3]),
        ("slicer-000000000003.scope", [3]),
        ("00000000000", [0, 1, 2, 3, 4]),
        ("twin*", [2, 4]),  # W11: a name as it is, not a pattern
        ("twin* -n 1", [4]),
    ],
)
def test_filters(cli: Cli, past: list[Outcome], line: str, jobs: list[int]) -> None:
    found = cli.json("history", *line.split())
    assert found["outcomes"] == [outcome_json(past[i]) for i in jobs]


def test_a_list_that_is_cut_says_so(cli: Cli, past: list[Outcome]) -> None:  # W11
    cut = cli.run("history", "--since", "9h", "-n", "3")
    told = "slicer: only the last 3 of them are shown; -n 0 shows all\n"
    assert (cut.stdout.count("\n"), cut.stderr) == (4, told)
    assert cli.run("history", "--since", "9h", "-n", "5").stderr == ""
    assert cli.run("history", "-n", "3").stderr == ""
    assert cli.json("history", "-n", "3")["has_more"] is True
    assert cli.json("history", "-n", "5")["has_more"] is False


def test_one_job_is_shown_in_full_and_several_of_a_name_as_a_list(
    cli: Cli, past: list[Outcome]
) -> None:  # W11
    assert cli.run("history", "train 3").stdout.startswith("job           000000000003\n")
    assert cli.run("history", "twin*").stdout.count("\n") == 3


def test_a_job_that_ran_is_found_by_the_beginning_of_its_id(cli: Cli) -> None:  # X3
    cli.run("run", "--backend", "plain", "-p", "heavy", "--name", "a b", "--", "sh", "-c", "exit 7", code=7)
    row = cli.run("history").stdout.splitlines()[1]
    job = row.split()[2]
    assert row.endswith("  a b: sh -c 'exit 7'")
    assert " exit 7 " in row
    shown = cli.run("history", job).stdout
    assert "\nheld          1 CPU slot\n" in shown
    assert "\nended         exit 7, exit code 7\n" in shown
    assert "\nunit          none\n" in shown
    assert "MemoryMax (by a guard that checks 4 times a second)" in shown
    assert "\nnot enforced  MemoryHigh, IOWeight\n" in shown
