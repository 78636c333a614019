"""``--outcome FILE``: the whole outcome or nothing, wherever the user points it."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.model import Git, Outcome, PastAttempt, Sharing, Usage
from slicer.outcome.outcome_file import outcome_json, write
from slicer.record import replace
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

OUTCOME = Outcome(
    job="3f2a9c01b7de",
    name="train",
    command=("python", "a b.py", "\udcff"),
    profile="gpu",
    backend="systemd",
    manager="system",
    unit="slicer-3f2a9c01b7de.scope",
    slice="gpu.slice",
    gpus=("GPU-1", "GPU-2"),
    vram_mib=8192,
    vram_peak_mib=(9318, 512),
    forced=0,
    cpu_slots=1,
    slots={"cpu": 1},
    uid=1000,
    reason="oom-kill",
    exit_code=137,
    signal=9,
    started_at=1795229137.5641468,
    waited_s=4.1,
    wall_s=123.4567891,
    leftovers=2,
    enforced=("MemoryMax",),
    not_enforced=("IOWeight",),
    paused_s=1.5,
    ended_by="slicer stop",
    changed=("CPUQuota=50%",),
    sharing=Sharing(
        wants="both", mode="yield", processes=2, gated=5000, passed=3, turns=7, held_s=9.2512345678, waits=4,
        waited_s=1.5, longest_wait_s=0.5, undrained=1, allocations=40, refused=2, uncounted=1,
        peak_mib=(6000, 0), overhead_mib=(512, 0), got_past_cap=1, troubles=("mps",),
    ),
    git=Git("5a3c9f01", "main", 1, "0c1d2e3f"),
    attempts=(PastAttempt(1, "exited", 3, None, "gave way", 1795229137.5641468, 1.5, ("GPU-1",)),),
    usage=Usage(cpu_s=61.5, memory_peak_bytes=24 << 30, oom_kills=1),
)

# The contract of docs/json.md: a change here is a change of VERSION, except for a new field.
FIELDS = {
    "job": "3f2a9c01b7de",
    "name": "train",
    "command": ["python", "a b.py", "\udcff"],
    "profile": "gpu",
    "backend": "systemd",
    "manager": "system",
    "unit": "slicer-3f2a9c01b7de.scope",
    "slice": "gpu.slice",
    "gpus": ["GPU-1", "GPU-2"],
    "vram_mib": 8192,
    "vram_peak_mib": [9318, 512],
    "forced": False,
    "cpu_slots": 1,
    "slots": {"cpu": 1},
    "uid": 1000,
    "reason": "oom-kill",
    "exit_code": 137,
    "signal": 9,
    "started_at": 1795229137.564147,
    "waited_s": 4.1,
    "wall_s": 123.456789,
    "usage": {
        "cpu_s": 61.5,
        "cpu_user_s": None,
        "cpu_system_s": None,
        "throttled_s": None,
        "memory_peak_bytes": 24 << 30,
        "io_read_bytes": None,
        "io_write_bytes": None,
        "oom_kills": 1,
        "pressure_cpu_s": None,
        "pressure_memory_s": None,
        "pressure_io_s": None,
    },
    "leftovers": 2,
    "enforced": ["MemoryMax"],
    "not_enforced": ["IOWeight"],
    "paused_s": 1.5,
    "ended_by": "slicer stop",
    "changed": ["CPUQuota=50%"],
    "changed_outside": [],
    "directory": "",
    "log": "",
    "gpu_indices": [],
    "git": {"commit": "5a3c9f01", "branch": "main", "dirty": True, "diff": "0c1d2e3f"},
    "attempts": [
        {
            "number": 1,
            "reason": "exited",
            "exit_code": 3,
            "signal": None,
            "ended_by": "gave way",
            "started_at": 1795229137.564147,
            "wall_s": 1.5,
            "gpus": ["GPU-1"],
        }
    ],
    "sharing": {
        "wants": "both",
        "mode": "yield",
        "processes": 2,
        "gated": 5000,
        "passed": 3,
        "turns": 7,
        "held_s": 9.251235,
        "waits": 4,
        "waited_s": 1.5,
        "longest_wait_s": 0.5,
        "undrained": 1,
        "allocations": 40,
        "refused": 2,
        "uncounted": 1,
        "peak_mib": [6000, 0],
        "overhead_mib": [512, 0],
        "got_past_cap": True,
        "driver_cap": False,
        "troubles": ["mps"],
    },
}


def test_the_contract() -> None:  # X3
    assert outcome_json(OUTCOME) == FIELDS
    assert outcome_json(replace(OUTCOME, unit=""))["unit"] is None


def test_every_field_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
    usage, sharing = FIELDS["usage"], FIELDS["sharing"]
    assert isinstance(usage, dict)
    assert isinstance(sharing, dict)
    for name in (*FIELDS, *usage, *sharing):
        assert f"`{name}`" in text or f"`{name}[]`" in text, name


def test_the_file_is_ascii_with_a_version_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old and longer" * 1000)
    write(OUTCOME, str(path))
    assert path.read_bytes().isascii()
    assert json.loads(path.read_text()) == {"version": 1, **FIELDS}
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))  # for files as a full disk would be
    try:
        with pytest.raises(StateError, match="cannot be written: File too large") as caught:
            write(OUTCOME, str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.where == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "out.json"
    link.symlink_to("there/real.json")
    write(OUTCOME, str(link))
    assert link.is_symlink()
    assert json.loads((tmp_path / "there" / "real.json").read_text())["version"] == 1


def test_what_is_no_file_is_written_into_and_stays(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(OUTCOME, str(fifo))
        assert json.loads(os.read(reader, 65536))["version"] == 1
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    write(OUTCOME, "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="No such file or directory"):
        write(OUTCOME, str(tmp_path / "no" / "out.json"))


def test_run_writes_it_where_it_was_started(cli: Cli) -> None:  # X3
    cli.run(
        "run",
        "--backend",
        "plain",
        "-q",
        "--name",
        "x",
        "--outcome",
        "o.json",
        "--",
        "sh",
        "-c",
        "cd /; exit 3",
        code=3,
    )
    found = json.loads((cli.root / "o.json").read_text())
    assert (found["version"], found["name"], found["exit_code"], found["unit"]) == (1, "x", 3, None)
    (kept,) = cli.json("history")["outcomes"]
    assert {"version": 1, **kept} == found


def test_run_writes_it_to_stdout_even_when_that_is_a_file(cli: Cli) -> None:
    line = ("run", "--backend", "plain", "-q", "--outcome", "/dev/stdout", "--", "echo", "hi")
    said = cli.run(*line).stdout
    assert said.startswith("hi\n{")
    with (cli.root / "log").open("w") as log, cli.popen(*line, stdout=log) as process:
        assert process.wait() == 0
    assert (cli.root / "log").read_text().startswith("hi\n{")


@pytest.mark.parametrize("path", ["no/out.json", "."])
def test_run_refuses_a_place_that_cannot_be_before_anything_runs(cli: Cli, path: str) -> None:
    done = cli.run("run", "--backend", "plain", "--outcome", path, "--", "touch", "ran", code=2)
    assert done.stderr == f"slicer: --outcome {path}: cannot be written there (name a file of your own)\n"
    assert not (cli.root / "ran").exists()
