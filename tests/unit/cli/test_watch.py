"""``slicer status --watch``, apart from its terminal (tests/process/test_status_watch.py)."""

from __future__ import annotations

import json
import os
import pty
import subprocess

import pytest

from slicer.cli.status_text import sections
from slicer.cli.watch import fit
from slicer.record import replace
from tests.patience import until
from tests.unit.cli.made_up_status import (
    EVAL,
    LIGHT,
    made,
    snapshot,
    text,
)
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]


def test_each_change_is_one_line_for_scripts(cli: Cli) -> None:
    cli.running("--name", "first")
    with cli.popen("status", "--watch", "--json", "--interval", "3600", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [job["name"] for job in json.loads(process.stdout.readline())["jobs"]] == ["first"]
        lease = cli.running("-p", "heavy", "--name", "second")
        names: list[str] = []
        while "second" not in names:
            names = [job["name"] for job in json.loads(process.stdout.readline())["jobs"]]
        cli.run("stop", lease.job)
        while "second" in names:
            names = [job["name"] for job in json.loads(process.stdout.readline())["jobs"]]
        assert names == ["first"]
        process.stdout.close()  # it notices without having to write
        until(lambda: process.poll() is not None, "it leaves")


def test_a_terminal_that_cannot_be_drawn_on_is_refused(cli: Cli) -> None:
    outer, inner = pty.openpty()
    with cli.popen(
        "status", "--watch", env={"TERM": "dumb"}, stdin=inner, stdout=inner, stderr=subprocess.PIPE
    ) as it:
        _, said = it.communicate(timeout=30)
    os.close(inner)
    os.close(outer)
    assert (it.returncode, b"TERM=dumb" in said) == (2, True)


LONG = made(
    tuple(replace(LIGHT, job=f"{i:012x}", since_s=float(i)) for i in range(30)),
    tuple(replace(EVAL, job=f"{i:012x}") for i in range(100, 140)),
    snapshot(),
)


@pytest.mark.parametrize("height", [200, 60, 40, 24, 12, 5, 1])
def test_what_does_not_fit_the_screen_is_counted(height: int) -> None:
    shown = [line.text for line in fit(sections(LONG), height)]
    assert len(shown) <= height
    if height == 200:
        assert shown == text(LONG).splitlines()
    if height == 24:
        jobs = sum(row.startswith("0000000000") and "GPU" not in row for row in shown)
        waiting = sum(row.startswith("0000000000") and "GPU" in row for row in shown)
        assert f"… {30 - jobs} more jobs" in shown
        assert f"… {40 - waiting} more waiting" in shown
        assert sum(row.startswith(" ") and "H100" in row for row in shown) == 3  # a few lines are not cut
