"""``slicer history``: the table in 80 columns, one job in full, and the data for scripts."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slicer.broker import accounts
from slicer.broker.accounts import AccountRow
from slicer.broker.server.accounts import Accounts
from slicer.cli import app
from slicer.cli.history import details, ended, table
from slicer.cli.job_register import outcomes_of
from slicer.job.find import AmbiguousJob
from slicer.model import Outcome, Usage
from slicer.outcome.history import append
from slicer.outcome.outcome_file import outcome_json
from slicer.record import as_dict, replace
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
STARTED      JOB       ENDED     WALL  GPU  CPU  MEMORY  VRAM  WAITED  NAME: COMMAND
2025-10-17   9b1c22d0  exit 3     7ms  -      -       -     -       -  sh -c 'exit 3'
11-21 02:45  3f2a9c01  oom-kill  2m3s  0,3   1m   24.0G  9.1G    4.1s  train: python 'a b.py' '\\xff'
"""
DETAILS = """\
job           3f2a9c01b7de
name          train
command       python 'a b.py' \\xff
ended         oom-kill, exit code 137, SIGKILL, by slicer stop
attempt 1     gave way after 1.5s, from 2026-11-21 02:45:37 +0000
started       2026-11-21 02:45:37 +0000
waited        4.1s
wall time     2m3s
paused        for 1.5s of it
held          GPU GPU-1, GPU GPU-2, 1 CPU slot
GPU memory    8.0G declared, peak 9.1G, 512.0M
CPU time      1m2s (user -, system -)
memory peak   24.0G
memory kills  1
leftovers     2 ended
profile       gpu
user          54321 (54321)
unit          slicer-3f2a9c01b7de.scope in gpu.slice
backend       systemd, system manager
code          main at 5a3c9f01, changed (diff 0c1d2e3f)
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
    job = replace(OUTCOME, usage=USED, gpu_indices=(3, 0))
    shown = "".join(f"{line.text}\n" for line in table([QUICK, job], NOW))
    assert shown == TABLE
    assert shown.index("train: ") - shown.rindex("\n", 0, shown.index("train: ")) < 80  # the rest may be cut


def test_the_last_lines_of_its_log_are_told_as_they_ended(tmp_path: Path) -> None:  # W20
    log, fifo = tmp_path / "log", tmp_path / "fifo"
    log.write_bytes(b"one\n 1%\r 2%\r100%\n\x1b[2J\xff" + b"x" * 1000 + b"\n\nCUDA out of memory\n")
    os.mkfifo(fifo)

    def shown(path: Path) -> list[str]:
        lines = [line.text for line in details(replace(OUTCOME, log=str(path)))]
        end = next(no for no, line in enumerate(lines) if line.startswith("attempt 1"))
        return [line[14:] for line in lines[4:end]]

    assert [line[:8] for line in shown(log)] == ["100%", "\\x1b[2J\ufffd", "CUDA out"]
    assert max(map(len, shown(log))) <= 220
    for path in (fifo, tmp_path / "gone", tmp_path):  # another may have put it there since
        assert shown(path) == []


USED = Usage(cpu_s=60.0, memory_peak_bytes=24 << 30, oom_kills=1)


def test_what_slicer_said_of_a_job_stands_in_the_column_of_the_rest() -> None:  # W20
    first, *_, said = [line.text for line in details(OUTCOME, [("slicer said", "no")])]
    assert said.index("no") == first.index(OUTCOME.job)


# X2
def test_what_is_not_known_of_gpu_memory_is_not_made_up() -> None:
    def shown(**changes: object) -> str:
        lines = [line.text for line in details(replace(OUTCOME, **changes))]
        found = next((line for line in lines if line.startswith("GPU memory")), "")
        return found.removeprefix("GPU memory").strip()

    assert shown(vram_peak_mib=()) == "8.0G declared, peak -"
    assert shown(vram_peak_mib=(0, 1), vram_mib=None) == "not declared, peak 0, 1.0M"
    assert shown(gpus=(), vram_mib=None, vram_peak_mib=()) == ""


# X3
def test_only_rows_without_anything_to_say_are_left_out() -> None:
    shown = [line.text for line in details(replace(OUTCOME, name="none", directory="-", usage=Usage()))]
    assert {"name          none", "directory     -"} <= {*shown}
    assert not [line for line in shown if line.startswith(("CPU time", "read", "stalled", "memory peak"))]


def test_a_job_that_did_not_wait_for_its_lease_is_marked() -> None:  # A8
    (held,) = [line.text for line in details(replace(OUTCOME, forced=1)) if line.text.startswith("held")]
    assert held.endswith("1 CPU slot (not free: forced)")


def test_a_job_shows_the_indices_of_its_gpus() -> None:  # W11
    lines = [line.text for line in details(replace(OUTCOME, gpu_indices=(3, 0)))]
    assert "held          GPU 3 (GPU-1), GPU 0 (GPU-2), 1 CPU slot" in lines


def test_one_job_in_full() -> None:  # X3
    shown = "".join(f"{line.text}\n" for line in details(replace(OUTCOME, uid=54321)))
    assert shown == DETAILS.replace("'a b.py' \\xff", "'a b.py' '\\xff'")


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
        ("--until 2h", [0, 1, 2]),
        ("--since 4h --until 1h", [1, 2, 3]),
        ("--failed", [0, 1, 2, 3, 4]),
        ("--failed --until 3h", [0, 1]),
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


def at_terminal(cli: Cli, *options: str) -> str:
    """What a person at a terminal reads besides the output."""
    master, terminal = pty.openpty()
    with open(master, "rb", 0) as screen:
        done = cli.popen("history", *options, stdout=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        assert done.wait() == 0
        try:
            return screen.read(4096).decode().replace("\r", "")
        except OSError:  # EIO: nothing was written
            return ""


def test_a_list_that_is_cut_says_so(cli: Cli, past: list[Outcome]) -> None:  # W11
    cut = cli.run("history", "--since", "9h", "-n", "3")
    assert (cut.stdout.count("\n"), cut.stderr) == (4, "")  # nobody reads it
    assert at_terminal(cli, "-n", "3") == "slicer: the last 3 of 5; -n 0 shows all\n"
    assert at_terminal(cli, "-n", "3", "--since", "4h") == "slicer: the last 3 of 4; -n 0 shows all\n"
    assert at_terminal(cli, "-n", "1", "twin*") == "slicer: the last 1 of 2; -n 0 shows all\n"
    assert at_terminal(cli, "-n", "1", "--by", "name") == (
        "slicer: the first 1 of 4, and the sum of all; -n 0 shows all\n"
    )
    assert at_terminal(cli, "-n", "5") == ""
    assert at_terminal(cli, "-n", "3", "--json") == ""
    assert cli.json("history", "-n", "3")["has_more"] is True
    assert cli.json("history", "-n", "5")["has_more"] is False


def test_only_jobs_that_failed(cli: Cli) -> None:  # X8, U15
    ends: list[dict[str, Any]] = [
        {"exit_code": 0, "reason": "exited", "signal": None},
        {"exit_code": 143, "reason": "stopped", "signal": 15, "ended_by": "slicer stop"},
        {"exit_code": 3, "reason": "exited", "signal": None},
        {"exit_code": 0, "reason": "oom-kill", "signal": None},
        {"exit_code": 124, "reason": "timeout", "signal": 15},
        {"exit_code": 143, "reason": "signal", "signal": 15},
        {"exit_code": 137, "reason": "unknown", "signal": 9},
    ]
    jobs = [
        replace(OUTCOME, **{"job": f"{number:012x}", "ended_by": "", **end})
        for number, end in enumerate(ends)
    ]
    for job in jobs:
        append(job, str(cli.history))
    failed = [each["job"] for each in cli.json("history", "--failed")["outcomes"]]
    assert failed == [each.job for each in jobs[2:]]
    assert cli.json("history", "--by", "user")["total"]["failed"] == 5


SUMS = """\
NAME       RUNS  FAILED  GPU HOURS  CPU HOURS  WAITED  LONGEST  VRAM  OF VRAM
b             1       1       4.00          -       -        -  2.0G      25%
a             2       -       2.00       1.00    1m5s       2m  4.0G      50%
-             1       -          -          -       -        -     -        -
zz\\x1b[2J     1       -          -          -       -        -     -        -
all           5       1       6.00       1.00       -       2m  4.0G      50%
"""


def test_sums_by_name(cli: Cli) -> None:  # X8, S11
    ok = made_up.outcome(started_at=NOW, waited_s=0.0)
    gpu = replace(ok, gpus=("GPU-1",), vram_mib=8192, wall_s=3600.0)
    for number, job in enumerate((
        replace(gpu, name="a", waited_s=10.0, vram_peak_mib=(4096,), usage=Usage(cpu_s=3600.0)),
        replace(gpu, name="a", waited_s=120.0, vram_peak_mib=()),
        replace(gpu, name="b", gpus=("GPU-1", "GPU-2"), wall_s=7200.0, vram_peak_mib=(1, 2048), exit_code=1),
        replace(ok, name=""),
        replace(ok, name="zz\x1b[2J"),
    )):  # fmt: skip
        append(replace(job, job=f"{number:012x}"), str(cli.history))
    assert cli.run("history", "--by", "name").stdout == SUMS
    found = cli.json("history", "--by", "name", "-n", "2")
    assert [each["of"] for each in found["sums"]] == ["b", "a"]
    assert found["has_more"] is True
    assert found["sums"][1] == {
        "of": "a", "runs": 2, "failed": 0, "gpu_s": 7200.0, "cpu_s": 3600.0, "waited_median_s": 65.0,
        "waited_longest_s": 120.0, "vram_peak_mib": 4096, "vram_mib": 8192, "vram_part": 0.5,
    }  # fmt: skip
    assert (found["total"]["runs"], found["total"]["gpu_s"]) == (5, 21600.0)
    assert cli.json("history", "--by", "user")["sums"][0]["of"] == 1000
    assert cli.run("history", "--by", "day", "--since", "1h").stdout == "No such jobs.\n"


def test_a_job_removes_what_its_configuration_does_not_keep(cli: Cli, past: list[Outcome]) -> None:  # X8
    append(replace(OUTCOME, job="0" * 11 + "9", started_at=time.time() - 3 * 86400), str(cli.history))
    folder = cli.root / "config" / "slicer"
    folder.mkdir(parents=True)
    for keep, left in (("forever", 7), ("2d", 7)):
        (folder / "config.toml").write_text(f"[history]\nkeep = '{keep}'\n")
        cli.run("run", "--backend", "plain", "--", "true")
        assert len(cli.json("history")["outcomes"]) == left


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
    assert "\nunit " not in shown
    assert "MemoryMax (by a guard that checks 4 times a second)" in shown
    assert "\nnot enforced  MemoryHigh, IOWeight\n" in shown


# -- of all users -------------------------------------------------------------------------------------------


@pytest.fixture
def everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root looks at the accounts of four jobs of two users, which began an hour apart."""
    folder = str(tmp_path / "lib")
    Accounts(lambda: 1e6, directory=folder, warn=lambda _: None).close()
    gpu = AccountRow(
        "", "", 1000, 100, "a", "python a.py", "gpu", "GPU-1 GPU-2", 900, "", NOW, 3600.0, 10.0, 2.0, 2000,
        60.0, 1 << 30, "exited", 0,
    )  # fmt: skip
    rows = [
        gpu,
        replace(gpu, uid=1001, gpus="GPU-1", vram_mib=8000, vram_peak_mib=2000, held_s=1800.0, exit_code=3),
        replace(gpu, uid=1001, name="b", gpus="", vram_mib=0, vram_peak_mib=None, profile="light"),
        replace(gpu, name="c", gpus="", vram_mib=0, vram_peak_mib=None, exit_code=None, reason="unknown"),
    ]
    with closing(sqlite3.connect(f"{folder}/usage.db")) as connection, connection:
        for number, row in enumerate(rows):
            made = replace(row, job=f"{number:012x}", grant_key=str(number), granted_at=NOW + number * 3600)
            connection.execute(accounts.INSERT_JOB, (*as_dict(made).values(), 0.0))
    monkeypatch.setattr(accounts, "PATH", f"{folder}/usage.db")
    monkeypatch.setattr("slicer.cli.history.default_path", lambda: str(tmp_path / "none.db"))
    monkeypatch.setattr("os.geteuid", lambda: 0)


def everybody(capfd: pytest.CaptureFixture[str], *options: str) -> Any:
    assert app.main(["history", "--all-users", "--json", *options]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.usefixtures("everybodys")
def test_root_filters_the_jobs_of_all_users(capfd: pytest.CaptureFixture[str]) -> None:  # W11, X8
    def jobs(*options: str) -> list[int]:
        return [int(each["job"]) for each in everybody(capfd, *options)["jobs"]]

    assert jobs() == [0, 1, 2, 3]
    assert jobs("--failed") == [1]  # nobody told how the last one ended
    assert jobs("--since", "2026-11-21 04:00", "--until", "2026-11-21 06:00") == [1, 2]


@pytest.mark.usefixtures("everybodys")
def test_root_sums_up_the_jobs_of_all_users(capfd: pytest.CaptureFixture[str]) -> None:  # X8, L5
    found = everybody(capfd, "--by", "user")
    assert [(each["of"], each["runs"], each["failed"], each["gpu_s"]) for each in found["sums"]] == [
        (1000, 2, 0, 7200.0), (1001, 2, 1, 1800.0),
    ]  # fmt: skip
    assert (found["total"]["runs"], found["total"]["gpu_s"], found["total"]["cpu_s"]) == (4, 9000.0, 240.0)
    (gpu, light) = everybody(capfd, "--by", "profile")["sums"]
    assert (gpu["of"], light["of"], light["vram_mib"]) == ("gpu", "light", None)
    assert (gpu["vram_peak_mib"], gpu["vram_mib"], gpu["vram_part"]) == (2000, 8000, 0.9)
    one, two = everybody(capfd, "--by", "gpu")["sums"]
    assert (one["of"], one["runs"], one["gpu_s"], one["cpu_s"]) == ("GPU-1", 2, 5400.0, 90.0)
    assert (two["of"], two["runs"], two["gpu_s"], two["cpu_s"]) == ("GPU-2", 1, 3600.0, 30.0)
    assert {each["of"] for each in everybody(capfd, "--by", "day")["sums"]} == {"2026-11-21"}
    assert everybody(capfd, "--by", "name", "-n", "1")["has_more"] is True


# U1: one rule for all commands
def test_a_word_that_is_a_name_and_the_beginning_of_an_id_could_be_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "history.db")
    monkeypatch.setattr("slicer.outcome.history.default_path", lambda: path)
    append(replace(QUICK, job="aa4411223344", name="c"), path)
    append(replace(QUICK, job="0123456789ab", name="aa44"), path)
    with pytest.raises(AmbiguousJob) as caught:
        outcomes_of("aa44")
    assert "aa4411223344" in caught.value.message
    assert "0123456789ab" in caught.value.message
    for word, name in (("aa441", "c"), ("aa4411223344", "c"), ("c", "c"), ("0123", "aa44")):
        assert [each.name for each in outcomes_of(word)] == [name], word
    for word in ("a", "aa4"):  # a typo rather than an id
        assert outcomes_of(word) == []
