"""``slicer status --watch``, apart from its terminal (tests/process/test_status_watch.py)."""

from __future__ import annotations

import json
import os
import pty
import subprocess

from tests.patience import LONGEST_S, until
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]


def test_each_change_is_one_line_for_scripts(cli: Cli) -> None:
    cli.running("--name", "first")
    with cli.popen("top", "--json", "--interval", "3600", stdout=subprocess.PIPE) as process:
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
        "top", env={"TERM": "dumb"}, stdin=inner, stdout=inner, stderr=subprocess.PIPE
    ) as it:
        _, said = it.communicate(timeout=LONGEST_S)
    os.close(inner)
    os.close(outer)
    assert (it.returncode, b"TERM=dumb" in said) == (2, True)
