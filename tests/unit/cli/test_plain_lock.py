"""Scripts that flock a file, side by side with slicer's GPU jobs: each excludes the other. (A5)"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.model import Lease
from tests.fake_nvml import FakeNvml
from tests.patience import LONGEST_S, until
from tests.process.harness import is_waited_for
from tests.unit.program import Cli

pytestmark = pytest.mark.both_pythons

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]

RUN = ("run", "--backend", "plain", "-q")
TRY = 'flock -n "$GPU_LOCK_PATH" true && echo free || echo taken'


@pytest.fixture
def path(cli: Cli, fake_nvml: FakeNvml) -> Path:
    cli.environ |= {**fake_nvml.env, "GPU_LOCK_PATH": str(cli.root / "gpu.lock")}
    return cli.root / "gpu.lock"


@pytest.fixture
def script(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A script that holds the lock until its input ends."""
    pipe = subprocess.PIPE
    command = ["flock", str(path), "sh", "-c", "echo held; exec cat"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.communicate(timeout=LONGEST_S)


@pytest.mark.parametrize("wanted", [("--gpus", "1"), ("--vram", "1G")])
@pytest.mark.parametrize("program", [RUN, ("hold", "-q")])
def test_a_job_with_a_gpu_excludes_scripts(
    cli: Cli, path: Path, program: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    assert cli.run(*program, *wanted, "--", "sh", "-c", TRY).stdout == "taken\n"
    assert subprocess.run(["flock", "-n", path, "true"], check=False).returncode == 0


def test_a_job_without_one_does_not(cli: Cli, path: Path) -> None:
    assert cli.run(*RUN, "-p", "heavy", "--", "sh", "-c", TRY).stdout == "free\n"


def test_the_configuration_names_the_file_too(cli: Cli, path: Path) -> None:
    config = Path(cli.environ["XDG_CONFIG_HOME"], "slicer", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'compat_gpu_lock = "{cli.root}/other.lock"\n')
    lock = {"GPU_LOCK_PATH": "", "OTHER": f"{cli.root}/other.lock"}
    tried = TRY.replace("GPU_LOCK_PATH", "OTHER")
    assert cli.run(*RUN, "--gpus", "1", "--", "sh", "-c", tried, env=lock).stdout == "taken\n"


def test_a_script_excludes_jobs(cli: Cli, script: subprocess.Popen[str]) -> None:
    done = cli.run(*RUN, "--gpus", "1", "--no-wait", "--", "echo", "ran", code=75)
    assert done.stdout == ""
    assert json.loads(done.stderr.splitlines()[-1])["error"] == "gpu-busy"
    cli.run(*RUN, "--gpus", "1", "--max-wait", "50ms", "--", "echo", "ran", code=75)
    assert (
        cli.run(*RUN, "--gpus", "1", "--max-wait", "50ms", "--then", "run", "--", "echo", "ran").stdout
        == "ran\n"
    )
    assert not cli.entries("leases", Lease)


def test_a_job_waits_for_the_script(cli: Cli, path: Path, script: subprocess.Popen[str]) -> None:
    with cli.popen(*RUN, "--gpus", "1", "--", "echo", "ran", stdout=subprocess.PIPE, text=True) as job:
        until(lambda: is_waited_for(path), "the job waits for the lock")
        script.communicate(timeout=LONGEST_S)
        assert job.communicate(timeout=LONGEST_S)[0] == "ran\n"
