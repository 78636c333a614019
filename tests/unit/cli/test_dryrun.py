"""``slicer run --dry-run``: the whole plan with its sources, and nothing touched."""

from __future__ import annotations

import re
import sys

import pytest

from tests.fake_nvml import FakeNvml
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]

PLAIN = ("run", "--backend", "plain", "--dry-run")


def plan(cli: Cli, *arguments: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """What is said of each thing, by the first word of its line."""
    out = cli.run(*PLAIN, *arguments, env=env).stdout
    return {line.split()[0]: line.partition(" ")[2].strip() for line in out.splitlines() if line}


def test_the_plan_with_the_source_of_every_value(cli: Cli) -> None:  # K3, K4
    line = ("-p", "heavy", "--name", "x", "--timeout", "2h", "--set", "MemoryMax=8G", "--linger")
    found = plan(cli, *line, "--", "sh", "-c", "exit 3", env={"CPU_RUN_THREADS": "3"})
    assert found["command"] == "sh -c 'exit 3'"
    assert re.fullmatch("/.*/sh", found["program"])
    assert found["profile"] == "heavy (--profile)"
    assert found["lease"] == "1 CPU slot: free now"
    assert found["cpu_slots"] == "1 (built-in heavy)"
    assert {"gpus", "gpu", "vram", "margin", "priority", "max_wait", "then"}.isdisjoint(found)
    assert found["timeout"] == "2h (--timeout)"
    assert found["leftovers"] == "waited for (--linger)"
    assert re.fullmatch(r"8G +by a guard that checks 4 times a second +--set", found["MemoryMax"])
    assert re.fullmatch(r"20 +no +built-in heavy", found["IOWeight"])
    assert re.fullmatch(r"3 +threads: CPU_RUN_THREADS", found["OMP_NUM_THREADS"])
    assert re.fullmatch(r'"" +slice cpu: built-in heavy', found["CUDA_VISIBLE_DEVICES"])
    assert "<id>" in found["SLICER_LEASE"]
    assert not cli.state.exists()


def test_nothing_is_run_and_nothing_made(cli: Cli) -> None:
    cli.run(*PLAIN, "-p", "heavy", "--outcome", "o.json", "--", "touch", "ran")
    assert not list(cli.root.iterdir())


def test_a_lease_that_is_held_names_the_holder(cli: Cli) -> None:
    lease = cli.running("-p", "heavy", "--name", "first")
    busy = rf"1 CPU slot: busy: a CPU slot, held by first \(pid {lease.pid}, for [0-9a-z.]+\)"
    assert re.fullmatch(busy, plan(cli, "-p", "heavy", "--", "true")["lease"])
    cli.waiting("-p", "heavy")
    assert re.fullmatch(f"{busy}, 1 ahead of you", plan(cli, "-p", "heavy", "--", "true")["lease"])


def test_the_gpus_that_it_would_get(cli: Cli, fake_nvml: FakeNvml) -> None:
    cli.environ |= fake_nvml.env
    cli.running("--gpus", "1", "--name", "first")
    found = plan(cli, "-p", "gpu", "--", "true")
    assert found["lease"] == "1 GPU: free now (GPU 1 NVIDIA H100 80GB HBM3)"
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-11111111-1111-1111-1111-111111111111  the lease"
    assert plan(cli, "--gpus", "3", "--", "true")["lease"].startswith("3 GPUs: impossible: ")


def test_what_is_wanted_with_its_sources(cli: Cli, fake_nvml: FakeNvml) -> None:  # E2
    cli.environ |= fake_nvml.env
    wanted = (
        "--vram",
        "8G",
        "--gpu",
        "0,1",
        "--gpus",
        "1",
        "--priority",
        "-5",
        "--max-wait",
        "1h",
        "--then",
        "run",
    )
    found = plan(cli, *wanted, "--", "true")
    assert found["lease"].startswith("8.0G on 1 GPU: free now (GPU ")
    expected = {
        "gpus": "1 (--gpus)", "gpu": "0,1 (--gpu)", "vram": "8G (--vram)", "margin": "512M (built-in)",
        "priority": "-5 (--priority)", "max_wait": "1h (--max-wait)", "then": "run (--then)",
    }  # fmt: skip
    assert found.items() >= expected.items()
    assert "cpu_slots" not in found


def test_a_machine_without_gpus_is_said(cli: Cli) -> None:
    assert plan(cli, "--gpus", "1", "--", "true")["lease"].startswith("1 GPU: impossible: ")


def test_inside_a_job_that_holds_what_it_needs(cli: Cli) -> None:  # A3
    nested = ("run", "--backend", "plain", "-q", "-p", "heavy", "--name", "outer", "--")
    out = cli.run(*nested, sys.executable, "-m", "slicer", *PLAIN, "-p", "heavy", "--", "true").stdout
    assert "\nbackend    no scope of its own: inside a job that holds what it needs\n" in out
    assert "\nlease      nothing more than the job around it holds\n" in out


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("-p", "hevy", "--", "true"), 2, "unknown profile"),
        (("--", "no-such-program"), 127, "command not found"),
        (("--timeout", "x", "--", "true"), 2, "--timeout"),
        (("--vram", "0", "--", "true"), 2, "--vram"),
        (("--max-wait", "1m", "--no-wait", "--", "true"), 2, "--max-wait"),
        ((), 2, "no command given"),
    ],
)
def test_what_cannot_be_is_said_as_run_would_say_it(
    cli: Cli, line: tuple[str, ...], code: int, said: str
) -> None:
    done = cli.run(*PLAIN, *line, code=code)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert (
        cli.run("run", "--backend", "plain", *line, code=code).stderr.splitlines()[-1] == done.stderr.strip()
    )
