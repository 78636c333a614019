"""``slicer status``: what a person reads in 80 columns, and what a script reads."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from slicer.cli import output
from slicer.cli.status import lines, status_json
from slicer.model import Gpu, Lease, Ticket
from slicer.record import replace
from slicer.status import Status
from tests.fake_nvml import FakeNvml
from tests.unit.cli import Cli

pytest_plugins = ["tests.unit.cli", "tests.fake_nvml"]

H100 = "NVIDIA H100 80GB HBM3"
GPUS = (
    Gpu(0, "GPU-aaaa", H100, 81559, "00000000:01:00.0", 0),
    Gpu(1, "GPU-bbbb", H100, 81559, "00000000:02:00.0", 1),
    Gpu(2, "GPU-cccc", H100, 81559, "00000000:03:00.0", 2),
)
TRAIN = Lease(
    job="3f2a9c01b7de",
    name="train",
    command="python train.py --epochs 90",
    pid=4211,
    pid_start=1,
    keeper=4212,
    boot_id="b",
    uid=0,
    backend="systemd",
    manager="system",
    unit="slicer-3f2a9c01b7de.scope",
    cgroup="/gpu.slice/slicer-3f2a9c01b7de.scope",
    gpus=("GPU-aaaa", "GPU-cccc"),
    cpu_slots=1,
    since_s=280.0,
    expect_s=900.0,
)
BACKUP = replace(
    TRAIN,
    job="9b1c22d0aa31",
    name="",
    command="tar cJf backup.txz /srv",
    pid=88123,
    uid=54321,
    manager="user",
    unit="slicer-9b1c22d0aa31.scope",
    gpus=(),
    cpu_slots=2,
    since_s=990.0,
    expect_s=5.0,
)
LIGHT = replace(
    BACKUP, job="c0ffee112233", backend="plain", unit="", cpu_slots=0, since_s=999.7, expect_s=None, uid=0
)
EVAL = Ticket(
    job="77aa00bb11cc",
    name="eval",
    command="python eval.py",
    pid=4300,
    pid_start=1,
    boot_id="b",
    uid=0,
    priority=0,
    arrived_s=757.0,
    gpus=2,
    cpu_slots=1,
    expect_s=60.0,
)
FULL = Status(
    directory="/run/slicer",
    shared=True,
    leases=(TRAIN, BACKUP, LIGHT),
    tickets=(EVAL,),
    gpus=GPUS,
    free_gpus=("GPU-bbbb",),
    no_gpus="",
    cpu_slots=4,
    free_cpu_slots=1,
    now_s=1000.0,
)
IDLE = Status(
    directory="/tmp/state",
    shared=False,
    leases=(),
    tickets=(),
    gpus=(),
    free_gpus=(),
    no_gpus="there is no NVIDIA driver here",
    cpu_slots=3,
    free_cpu_slots=3,
    now_s=1000.0,
)

FULL_TEXT = """\
JOB           NAME   HOLDS                USER     PID  FOR     LEFT
3f2a9c01b7de  train  GPU 0,2, 1 CPU slot  root    4211  12m       3m
  slicer-3f2a9c01b7de.scope: python train.py --epochs 90
9b1c22d0aa31  -      2 CPU slots          54321  88123  10s  overdue
  slicer-9b1c22d0aa31.scope (--user): tar cJf backup.txz /srv
c0ffee112233  -      -                    root   88123   0s        -
  no scope: tar cJf backup.txz /srv

WAITING       NAME  WANTS                  USER   PID   FOR
77aa00bb11cc  eval  2 GPUs and 1 CPU slot  root  4300  4m3s
  python eval.py

CPU slots: 1 of 4 free
GPUs: 1 of 3 free
 0  NVIDIA H100 80GB HBM3  79.6G  3f2a9c01b7de train
 1  NVIDIA H100 80GB HBM3  79.6G  free
 2  NVIDIA H100 80GB HBM3  79.6G  3f2a9c01b7de train
"""
IDLE_TEXT = """\
No job runs.

CPU slots: 3 of 3 free
No GPUs: there is no NVIDIA driver here

Only jobs that share /tmp/state are seen here.
"""


def text(status: Status) -> str:
    return "".join(f"{line.text}\n" for line in lines(status))


@pytest.mark.parametrize(("status", "expected"), [(FULL, FULL_TEXT), (IDLE, IDLE_TEXT)])
def test_the_text_in_80_columns(status: Status, expected: str) -> None:  # B3
    shown = text(status)
    assert shown == expected
    assert max(map(len, shown.splitlines())) <= 80


def test_a_terminal_gets_columns_that_fit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    long = replace(
        TRAIN,
        name="a name as long as names of jobs should never be",
        gpus=tuple(f"GPU-{i}" for i in range(8)),
    )
    status = replace(FULL, leases=(long,))
    assert long.name in text(status)  # whoever reads a pipe gets all
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    rows = text(status).splitlines()
    assert rows[1].startswith("3f2a9c01b7de  a name as long as…  GPU ?,?,?,?,?,?,?,?…")
    assert all(len(row) <= 80 for row in rows if not row.startswith("  "))


def test_names_cannot_break_out_of_their_line() -> None:
    evil = replace(TRAIN, name="a\nb\x1b[2J", command="c\u202ed \udcff")
    shown = text(replace(FULL, leases=(evil,)))
    assert "a\\nb\\x1b[2J" in shown
    assert ": c\\u202ed \\udcff\n" in shown


def test_a_broken_configuration_hides_no_job() -> None:
    shown = text(replace(FULL, cpu_slots=None, free_cpu_slots=None))
    assert "CPU slots: unknown\n" in shown
    assert "train" in shown


def test_the_contract() -> None:  # B3
    def gpu(index: int, letter: str) -> dict[str, object]:
        return {"index": index, "uuid": f"GPU-{letter * 4}", "name": H100, "memory_mib": 81559}

    assert status_json(replace(FULL, leases=(TRAIN, LIGHT), gpus=GPUS[:2])) == {
        "state": {"directory": "/run/slicer", "shared": True},
        "jobs": [
            {
                "job": "3f2a9c01b7de",
                "name": "train",
                "pid": 4211,
                "unit": "slicer-3f2a9c01b7de.scope",
                "held_for": 720.0,
                "expected_remaining": 180.0,
                "command": "python train.py --epochs 90",
                "uid": 0,
                "user": "root",
                "backend": "systemd",
                "manager": "system",
                "cgroup": "/gpu.slice/slicer-3f2a9c01b7de.scope",
                "cpu_slots": 1,
                "gpus": [gpu(0, "a"), {"index": None, "uuid": "GPU-cccc", "name": None, "memory_mib": None}],
            },
            {
                "job": "c0ffee112233",
                "name": "tar cJf backup.txz /srv",
                "pid": 88123,
                "unit": None,
                "held_for": 0.3,
                "expected_remaining": None,
                "command": "tar cJf backup.txz /srv",
                "uid": 0,
                "user": "root",
                "backend": "plain",
                "manager": "user",
                "cgroup": "/gpu.slice/slicer-3f2a9c01b7de.scope",
                "cpu_slots": 0,
                "gpus": [],
            },
        ],
        "waiting": [
            {
                "job": "77aa00bb11cc",
                "name": "eval",
                "pid": 4300,
                "uid": 0,
                "user": "root",
                "priority": 0,
                "gpus": 2,
                "cpu_slots": 1,
                "waited": 243.0,
                "expected": 60.0,
                "command": "python eval.py",
            },
        ],
        "gpus": {"total": 2, "free": [gpu(1, "b")], "all": [gpu(0, "a"), gpu(1, "b")], "why_none": None},
        "cpu_slots": {"total": 4, "free": 1},
    }


def test_nothing_ran_yet(cli: Cli) -> None:  # B3
    found = cli.json("status")
    assert found.pop("gpus")["total"] >= 0
    assert found == {
        "version": 1,
        "state": {"directory": None, "shared": False},
        "jobs": [],
        "waiting": [],
        "cpu_slots": {"total": 1, "free": 1},
    }


def test_jobs_that_run_and_wait(cli: Cli, fake_nvml: FakeNvml) -> None:  # B2, B3
    cli.environ |= fake_nvml.env
    gpu = cli.running("--gpus", "1", "--name", "train", "--expect", "1h")
    heavy = cli.running("-p", "heavy")
    light = cli.running("-p", "light", "--name", "small")
    ticket = cli.waiting("-p", "heavy", "--name", "next")
    found = cli.json("status")
    jobs = {job["job"]: job for job in found["jobs"]}
    assert set(jobs) == {gpu.job, heavy.job, light.job}
    assert [held["index"] for held in jobs[gpu.job]["gpus"]] == [0]
    assert 3500 < jobs[gpu.job]["expected_remaining"] < 3600
    assert (jobs[gpu.job]["name"], jobs[gpu.job]["pid"]) == ("train", gpu.pid)
    assert (jobs[heavy.job]["name"], jobs[heavy.job]["cpu_slots"]) == ("sleep 1000", 1)
    assert jobs[light.job]["gpus"] == []
    assert jobs[light.job]["cpu_slots"] == 0
    assert [(waiting["job"], waiting["cpu_slots"]) for waiting in found["waiting"]] == [(ticket.job, 1)]
    assert (found["gpus"]["total"], [free["index"] for free in found["gpus"]["free"]]) == (2, [1])
    assert found["cpu_slots"] == {"total": 1, "free": 0}
    shown = cli.run("status").stdout
    assert re.search(rf"^{gpu.job}  train  GPU 0       \S+ +{gpu.pid} +\d+s +(59m\d+s|1h)$", shown, re.M), (
        shown
    )
    assert f"\n  no scope: sleep 1000\n{light.job}" in shown
    assert f"\nGPUs: 1 of 2 free\n 0  {H100}  79.6G  {gpu.job} train\n 1  {H100}  79.6G  free\n" in shown


def test_a_broken_configuration_is_said_and_stops_nothing(cli: Cli) -> None:
    lease = cli.running("--name", "x")
    config = Path(cli.environ["XDG_CONFIG_HOME"], "slicer", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text("slots = 3\n")
    done = cli.run("status")
    assert str(config) in done.stderr
    assert done.stderr.count("\n") == 1
    assert lease.job in done.stdout
    assert "CPU slots: unknown" in done.stdout


def on_terminal(cli: Cli, *arguments: str, columns: int = 80) -> str:
    """What a terminal of that width is sent."""
    outer, inner = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns)}
    with cli.popen(*arguments, env=env, stdin=inner, stdout=inner, stderr=subprocess.PIPE) as process:
        os.close(inner)
        sent = b""
        try:
            while data := os.read(outer, 65536):
                sent += data
        except OSError:  # EIO: the other side is closed
            pass
        os.close(outer)
    assert process.returncode == 0
    return sent.decode().replace("\r\n", "\n")


def test_a_terminal_gets_style_and_no_line_too_long(cli: Cli) -> None:
    cli.running("-p", "heavy", "--name", "n" * 60, command=("sh", "-c", f"sleep 1000; echo {'x' * 100}"))
    sent = on_terminal(cli, "status")
    assert "\x1b[1mJOB " in sent  # bold
    plain = re.sub(r"\x1b\[[0-9;]*m", "", sent)
    assert max(map(len, plain.splitlines())) <= 80, plain
    assert "…\n" in plain  # the command is cut, and it shows
    assert "\x1b" not in cli.run("status").stdout
