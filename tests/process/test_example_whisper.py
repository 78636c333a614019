"""docs/examples/whisper does what it says: long recordings on the CPU, and never too many at a time.

Scaled down from 4,100 recordings (20 of them long) to 12 (2 long, 1 that runs out of GPU memory), so that it
takes seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import wave
from collections import Counter
from pathlib import Path

import pytest

from tests import media
from tests.machines.host import REPO
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]
pytestmark = pytest.mark.with_ci

EXAMPLE = REPO / "docs/examples/whisper"
FILES, LONG, SURROUND = 12, 2, 1
MOST = {"cuda": 2, "cpu": 1}
ROUTE = ("slicer", "route", "whisper", "--backend", "plain", "--", "whisper")
TIMEOUT_S = 600


def python(cli: Cli, script: str, *arguments: str | Path) -> str:
    line = [sys.executable, EXAMPLE / script, *map(str, arguments)]
    done = subprocess.run(
        line, env=cli.environ, cwd=cli.root, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, (done.stdout, done.stderr[-4000:])
    return done.stdout


def hours(path: Path) -> float:
    with wave.open(str(path)) as recording:
        return recording.getnframes() / recording.getframerate() / 3600


def captions(recording: Path) -> str:
    return recording.with_suffix(".srt").read_text()


def test_the_whisper_example_does_what_it_says(cli: Cli) -> None:  # C1, C2, C3, C8
    media.need_tools()
    program = cli.root / "bin" / "slicer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m slicer "$@"\n')
    program.chmod(0o755)
    log = cli.root / "log"
    cli.environ |= {
        "PATH": f"{program.parent}:{EXAMPLE}/bin:{cli.environ['PATH']}", "SLICER_SIM": "2x24G",
        "SLICER_CONFIG": str(EXAMPLE / "slicer.toml"), "WHISPER_LOG": str(log), "WHISPER_SPEED": "10",
    }  # fmt: skip
    recordings = cli.root / "recordings"
    numbers = ("--files", str(FILES), "--long", str(LONG), "--surround", str(SURROUND))
    python(cli, "recordings.py", recordings, *numbers)

    said = python(cli, "runner.py", recordings, "--workers", "5", "--", *ROUTE)

    assert f"{FILES} captioned" in said
    assert " 0 times busy" not in said  # or there was nothing to refuse
    wavs = sorted(recordings.glob("*.wav"))
    devices = {path.stem: re.findall(r" on (\w+)\)", captions(path))[0] for path in wavs}
    is_long = {path.stem for path in wavs if hours(path) > 1}
    on_the_cpu = {name for name, device in devices.items() if device == "cpu"}
    assert len(is_long) == LONG
    assert is_long < on_the_cpu
    assert len(on_the_cpu) == LONG + SURROUND  # these ran out of GPU memory first
    most = most_at_a_time(log)
    assert all(most[device] <= MOST[device] for device in most), most
    assert not list(recordings.glob("*.tmp"))


def most_at_a_time(log: Path) -> dict[str, int]:
    """How many ran at most on each device, as they wrote themselves into one file at start and end."""
    now: Counter[str] = Counter()
    most: dict[str, int] = {}
    for line in log.read_text().splitlines():
        what, device = os.fsdecode(line).split()[:2]
        now[device] += 1 if what == "start" else -1
        most[device] = max(most.get(device, 0), now[device])
    assert not any(now.values()), now
    return most
