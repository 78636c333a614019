"""The scripts on a node, run by a shell as Slurm would. (X9)"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.queue.engine.slurm import script
from tests.unit import made_up

A, B = "0123456789ab", "ba9876543210"


def run(text: str, task: int = 0) -> int:
    environ = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": str(task), "SLURMD_NODENAME": "n1",
               "SLURM_JOB_GPUS": "0,1"}  # fmt: skip
    return subprocess.run(["sh"], input=text, text=True, env=environ, stderr=subprocess.DEVNULL).returncode


# X9, E7: a task begins its attempt, and that once, whatever Slurm repeats
def test_a_task_begins_its_attempt_once(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    text = script.batch(str(folder), [A, B])
    assert script.jobs_of(text) == [A, B]
    (folder / f"{B}.order").write_text("echo run >> witness; exit 3")
    assert run(text, 0) == 77  # its order was withdrawn
    assert run(text, 1) == 3
    assert (folder / f"{B}.node").read_text() == "n1 0,1\n"
    assert (folder / f"{B}.end").read_text() == "3\n"
    assert run(text, 1) == 77
    assert (folder / "witness").read_text() == "run\n"


# X9, X3: no end is lost
def test_an_end_is_written_once_the_disk_has_room(tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    (tmp_path / f"{A}.order").write_text("exit 7")
    slept = tmp_path / "slept"
    # A disk without room, until the third pause.
    (bin / "sleep").write_text(f'#!/bin/sh\necho >> {slept}\n[ "$(wc -l < {slept})" -lt 3 ] || rm {bin}/mv\n')
    (bin / "mv").write_text(f'#!/bin/sh\n[ "$2" = {A}.order ] || exit 1\nexec {shutil.which("mv")} "$@"\n')
    for each in bin.iterdir():
        each.chmod(0o755)
    text = f"PATH={bin}:$PATH\n" + script.batch(str(tmp_path), [A])
    assert run(text) == 7
    assert (tmp_path / f"{A}.end").read_text() == "7\n"
    assert slept.read_text() == "\n\n\n"


def test_without_the_directory_nothing_begins(tmp_path: Path) -> None:  # X9
    assert run(script.batch(str(tmp_path / "nowhere"), [A])) == 76


def plan(command: str, **profile: Any) -> Any:
    invocation = SimpleNamespace(name="jobs.txt#1", command=("/bin/sh", "-c", command))
    return SimpleNamespace(invocation=invocation, profile=made_up.profile(**profile))


# X9: no character of a line is a shell's
@pytest.mark.parametrize("command", ["echo 'a  b' \"$HOME\"", "printf '\\t%s' $(date)", "true # ;\n"])
def test_an_order_runs_slicer_with_the_line_unchanged(tmp_path: Path, command: str) -> None:
    slicer = tmp_path / "my slicer"
    slicer.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\nexit 5\n")
    slicer.chmod(0o755)
    text = script.order(
        plan(command, name="gpu", gpus=1, vram_mib=2048, timeout_s=90.0), A, slicer=str(slicer),
        directory=str(tmp_path), log=str(tmp_path / "a log"), exchange="/logs/slurm", env=(("SEED", "it's"),),
    )  # fmt: skip
    assert run(text) == 5
    assert (tmp_path / "a log").read_text().split("\0")[:-1] == [
        "run", "--quiet", "--job", A, "--profile", "gpu", "--name", "jobs.txt#1", "--gpus", "1",
        "--max-wait", "0", "--then", "run", "--vram", "2048M", "--margin", "0M", "--timeout", "90.0s",
        "--outcome", f"/logs/slurm/{A}.end", "--", "env", "SEED=it's", "/bin/sh", "-c", command,
    ]  # fmt: skip


def test_a_node_without_slicer_and_a_missing_directory_are_told(tmp_path: Path) -> None:  # X9
    log = tmp_path / "log"
    made = {"log": str(log), "exchange": "/logs/slurm", "env": ()}
    assert run(script.order(plan("true"), A, slicer="/no/slicer", directory="/", **made)) == script.NO_SLICER
    assert log.read_text() == "slicer: there is no /no/slicer on n1\n"
    assert run(script.order(plan("true"), A, slicer="true", directory="/nowhere", **made)) == 126
