"""``slicer doctor`` as a program: its JSON, its exit code, what it leaves alone, and whom it believes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slicer.doctor.findings import AREAS
from slicer.doctor.kinds import kinds
from tests.fake_nvml import TWO_GPUS, FakeNvml
from tests.patience import LONGEST_S
from tests.process.harness import unprivileged
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]

FINDING = {"id", "area", "severity", "title", "what", "why", "mend"}


def examined(cli: Cli, **env: str) -> dict[str, Any]:
    done = cli.run("doctor", "--json", env=env, code=None)
    said: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if said["well"] else 1), done
    return said


def found(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in said["findings"]}


def tree(root: Path) -> list[tuple[str, int, int]]:
    infos = ((path, path.lstat()) for path in sorted(root.rglob("*")))
    return [(str(path), info.st_mode, info.st_mtime_ns) for path, info in infos]


def test_the_document_has_its_form(cli: Cli) -> None:  # X10
    said = examined(cli)
    assert said["version"] == 1
    assert {"user", "uid", "manager", "well", "findings", "areas", "profiles"} < set(said)
    assert [area["area"] for area in said["areas"]] == list(AREAS)
    for each in said["findings"]:
        assert set(each) == FINDING
        assert each["id"] in kinds()
    assert {profile["profile"] for profile in said["profiles"]} <= {"light", "heavy", "gpu"}


def test_it_changes_nothing(cli: Cli) -> None:  # X10
    config = cli.root / "config" / "slicer" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('default_profile = "heavy"\n')
    before = tree(cli.root)
    code = (
        "from slicer.config import cache; cache._SETTLED_NS = -(10**12)\n"  # new files go into the cache, too
        "from slicer.cli.app import main; main(['doctor', '--json'])"
    )
    subprocess.run([sys.executable, "-c", code], env=cli.environ, check=True, capture_output=True)
    assert tree(cli.root) == before


def test_a_broken_configuration_is_a_problem_with_its_line(cli: Cli) -> None:  # X10
    config = cli.root / "broken.toml"
    config.write_text('default_profile = "light"\nfoo = 1\n')
    said = examined(cli, SLICER_CONFIG=str(config))
    assert not said["well"]
    assert found(said)["configuration-broken"]["what"].startswith(f"{config}:2: unknown key 'foo'")
    assert [area["area"] for area in said["areas"]] == list(AREAS)  # it goes on


def test_a_fifo_in_place_of_a_file_is_not_waited_for(cli: Cli) -> None:
    os.mkfifo(cli.root / "config.fifo")
    cli.state.mkdir(mode=0o700)
    os.mkfifo(cli.state / "version")
    os.mkfifo(cli.state / "lock")
    cli.history.parent.mkdir(parents=True)
    os.mkfifo(cli.history)
    said = examined(cli, SLICER_CONFIG=str(cli.root / "config.fifo"), GPU_LOCK_PATH=str(cli.state / "lock"))
    ids = found(said)
    assert {"configuration-broken", "history-unusable"} <= set(ids)
    assert "look-hangs" not in ids


def test_variables_that_were_left_on_are_told(cli: Cli) -> None:
    said = examined(cli, GPU_LOCK_HELD="1", SLICER_SKIP_GPU_LOCK="1")
    assert {"gpu-lock-claimed", "gpu-lock-skipped"} <= set(found(said))


def test_the_terminal_is_told_nothing_by_a_name(cli: Cli) -> None:
    done = cli.run("doctor", "-v", env={"SLICER_SIM": "\x1b[31mred"}, code=None)
    assert "\x1b" not in done.stdout + done.stderr
    assert r"\x1b[31mred" in done.stdout


def test_a_command_to_paste_is_whole_on_a_narrow_terminal(cli: Cli) -> None:  # X10
    lock = cli.root / ("long-" * 20) / "lock"
    lock.parent.mkdir()
    os.mkfifo(lock)
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0) as screen:
        process = cli.popen(
            "doctor", env={"GPU_LOCK_PATH": str(lock), "COLUMNS": "60", "TERM": "xterm"}, stdout=slave,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: nobody writes any more
            while chunk := screen.read(65536):
                shown += chunk
        process.wait(timeout=LONGEST_S)
    assert f"    ls -ld {lock} {lock.parent}\r\n".encode() in shown


def test_where_no_process_can_be_forked_it_says_so(cli: Cli) -> None:  # X10
    cli.root.chmod(0o777)
    done = subprocess.run(
        [*unprivileged(54321), "prlimit", "--nproc=1", sys.executable, "-m", "slicer", "doctor", "--json"],
        env=cli.environ, capture_output=True, text=True, timeout=LONGEST_S, check=False, cwd="/",
    )  # fmt: skip
    ids = found(json.loads(done.stdout))
    assert "no process for it" in ids["look-failed"]["what"]


# -- GPUs ---------------------------------------------------------------------------------------------------


def test_what_the_driver_says_of_each_gpu(cli: Cli, fake_nvml: FakeNvml) -> None:  # X10
    fake_nvml.add("mig 0 1 1", "setup 1 3 1", f"process 1 {os.getpid()} 1024 compute")
    said = examined(cli, **fake_nvml.env)
    ids = found(said)
    assert "GPU 0" in ids["mig-on"]["what"]
    assert "GPU 1" in ids["exclusive-compute"]["what"]
    assert "-i 1 -c DEFAULT" in ids["exclusive-compute"]["mend"][0]
    assert "GPU 1" in ids["display-on-gpu"]["what"]
    assert f"pid {os.getpid()} " in ids["foreign-process"]["what"]
    (gpus,) = (area for area in said["areas"] if area["area"] == "gpus")
    assert gpus["summary"] == "2 GPUs (H100 80GB HBM3), driver 575.57.08"


def test_a_model_server_outside_of_slicer_is_said_with_the_way_in(cli: Cli, fake_nvml: FakeNvml) -> None:
    """B6. Known by its command, which anybody may choose: so only root's and one's own count."""
    sleep = shutil.which("sleep")
    with subprocess.Popen(["/usr/bin/ollama", "1000"], executable=sleep) as server:
        try:
            fake_nvml.write(TWO_GPUS)
            fake_nvml.add(f"process 1 {server.pid} 6144 compute")
            ids = found(examined(cli, **fake_nvml.env))
        finally:
            server.kill()
    assert ids["server-outside"]["what"] == f"Ollama: pid {server.pid}, 6.0G of GPU 1"
    assert ids["server-outside"]["mend"][-1] == "slicer serve ollama --dry-run"
    assert "foreign-process" not in ids


def test_gpus_that_are_well_are_one_line(cli: Cli, fake_nvml: FakeNvml) -> None:
    fake_nvml.write(TWO_GPUS)
    said = examined(cli, **fake_nvml.env)
    assert not [each for each in said["findings"] if each["area"] == "gpus"]


@pytest.mark.slow
def test_a_driver_that_hangs_is_reported_and_left_behind(cli: Cli, fake_nvml: FakeNvml) -> None:  # X10
    fake_nvml.add("hang nvmlInit")
    code = (
        "import sys; from slicer.doctor import examine; examine.DEADLINE_S = 2.0\n"
        "from slicer.cli.app import main; sys.exit(main(['doctor', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**cli.environ, **fake_nvml.env}, capture_output=True, text=True,
        timeout=LONGEST_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert done.returncode == 1
    assert found(said)["driver-hangs"]["severity"] == "problem"
    assert {area["area"] for area in said["areas"] if area["state"] == "ok"}  # the others were heard


# -- slicer without arguments -------------------------------------------------------------------------------


def test_without_arguments_it_shows_the_state_warnings_and_three_calls(cli: Cli) -> None:  # X10
    lease = cli.running("-p", "heavy", "--name", "mine")
    out = cli.run(env={"SLICER_SIM": ""}).stdout
    assert lease.job in out
    assert "CPU slots: 0 of 1 free; held by mine" in out
    head, _, tries = out.partition("\nTry\n")
    assert len(tries.splitlines()) == 3
    assert all(line.startswith("  slicer ") for line in tries.splitlines())
    assert "Usage:" not in head


def test_without_arguments_simulated_gpus_are_told(cli: Cli) -> None:
    out = cli.run(env={"SLICER_SIM": "2x24G"}).stdout
    assert "GPUs: 2 of 2 free" in out
    assert "slicer run --gpus 1" in out


@pytest.mark.slow
def test_without_arguments_a_driver_that_hangs_is_left_behind(cli: Cli, fake_nvml: FakeNvml) -> None:
    fake_nvml.add("hang nvmlInit")
    done = cli.run(env=fake_nvml.env)
    assert "the state is not known: no answer in time" in done.stderr
    assert "slicer doctor" in done.stdout


def test_without_arguments_nothing_is_made(cli: Cli) -> None:
    before = tree(cli.root)
    cli.run()
    assert tree(cli.root) == before
