"""A terminal of 80 columns: what matters is on it. W29"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from slicer.cli import say
from slicer.kernel import SYSROOT
from slicer.kernel.proc import now_s
from slicer.model import Busy
from slicer.outcome.history import append
from slicer.record import replace
from tests.unit import made_up
from tests.unit.cli.test_routes import CONFIG, busy_day, configure, keep
from tests.unit.cli.test_status import on_terminal
from tests.unit.outcome.outcomes import OUTCOME
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]


def plain(sent: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", sent)


def test_the_jobs_of_a_queue_are_told_apart_in_the_history(cli: Cli) -> None:
    for number, rate in enumerate(("0.1", "0.01", "0.001")):
        command = ("python", "train.py", "--data", "/data/imagenet", "--lr", rate, "--epochs", "90")
        changes = {"job": f"{number:012x}", "name": f"jobs.txt#{number}", "command": command}
        started = {"started_at": time.time() - 60 + number, "waited_s": 3.0}
        append(replace(OUTCOME, **started, **changes), str(cli.history))
    head, *rows = plain(on_terminal(cli, "history")).splitlines()
    assert head.split()[:4] == ["STARTED", "JOB", "ENDED", "WALL"]
    assert max(map(len, rows)) <= 80
    commands = [row.partition("#")[2][3:] for row in rows]
    assert len(set(commands)) == len(commands) == 3, rows
    assert all(command.startswith("python tr") for command in commands), rows  # and where they differ
    assert [command.split()[-1].rstrip("…") for command in commands] == ["0.1", "0.01", "0.001"]
    assert "WAITED" in plain(on_terminal(cli, "history", columns=160))


def test_who_waits_sees_when_it_is_to_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((80, 24)))
    monkeypatch.setattr(say, "_has_foreground", lambda: True)
    monkeypatch.setattr(say, "_drawn", False)
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    command = "python train.py --config experiments/long/name.yaml --lr 0.1"
    holder = made_up.lease(name="", command=command, since_s=now_s() - 60, expect_s=1260.5, uid=54321)
    say.Messages(0).still_waiting(Busy("cpu", (holder,), 2, (), "", slot="license-matlab"))
    assert "about 20m left" in capfd.readouterr().err


def test_routes_show_first_where_their_jobs_go_and_how_many_did(cli: Cli) -> None:
    configure(cli, CONFIG)
    keep(cli, busy_day())
    listed, counts = (plain(on_terminal(cli, "routes", *more)) for more in ((), ("stats",)))
    assert max(map(len, [*listed.splitlines()[:3], *counts.splitlines()[:2]])) <= 80
    assert all(each in listed for each in ("gpu ", "cpu ", "up to 1h", "10.0G")), listed
    assert counts.splitlines()[1].split()[:7] == ["whisper", "45", "44", "41", "1", "1", "2"], counts


@pytest.mark.parametrize(
    "line", [("--broker", "--dry-run"), ("--closed-shop", "--dry-run"), ("--dry-run",), ()]
)
def test_what_an_installation_means_is_not_cut(cli: Cli, tmp_path: Path, line: tuple[str, ...]) -> None:
    root = tmp_path / ("a" * 60)
    root.mkdir()
    cli.environ[SYSROOT] = str(root)
    assert "…" not in plain(on_terminal(cli, "install", *line))
