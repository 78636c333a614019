"""``slicer run --dry-run``: the whole plan with its sources, and nothing touched."""

from __future__ import annotations

import re
import sys

from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]

PLAIN = ("run", "--backend", "plain", "--dry-run")


def plan(cli: Cli, *arguments: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """What is said of each thing, by the first word of its line."""
    out = cli.run(*PLAIN, *arguments, env=env).stdout
    return {line.split()[0]: line.partition(" ")[2].strip() for line in out.splitlines() if line}


def test_a_lease_that_is_held_names_the_holder(cli: Cli) -> None:
    lease = cli.running("-p", "heavy", "--name", "first")
    busy = rf"1 CPU slot: busy: a CPU slot, held by first \(pid {lease.pid}, for [0-9a-z.]+\)"
    assert re.fullmatch(busy, plan(cli, "-p", "heavy", "--", "true")["lease"])
    cli.waiting("-p", "heavy")
    assert re.fullmatch(f"{busy}, 1 ahead of you", plan(cli, "-p", "heavy", "--", "true")["lease"])


def test_inside_a_job_that_holds_what_it_needs(cli: Cli) -> None:  # A3
    nested = ("run", "--backend", "plain", "-q", "-p", "heavy", "--name", "outer", "--")
    out = cli.run(*nested, sys.executable, "-m", "slicer", *PLAIN, "-p", "heavy", "--", "true").stdout
    assert "\nbackend    no scope of its own: inside a job that holds what it needs\n" in out
    assert "\nlease      nothing more than the job around it holds\n" in out


def test_when_a_job_would_begin_is_checked_and_shown(cli: Cli) -> None:  # U1
    lease = cli.running("-p", "heavy", "--name", "first")
    out = cli.run(*PLAIN, "--after", "first:any", "--begin", "tomorrow 22:00", "--", "true").stdout
    assert "\nbegins     after first (any)\n" in out
    assert re.search(r"\nbegins     .*22:00\n", out)
    cli.run(*PLAIN, "--detach", "--after", lease.job, "--", "true")
    for wrong in (
        ("--after", "none"), ("--begin", "yesterday-ish"), ("--after", "first", "--exec"), ("--output", "f"),
    ):  # fmt: skip
        done = cli.run(*PLAIN, *wrong, "--", "true", code=2)
        assert done.stdout == ""
        assert wrong[0] in done.stderr


def test_that_containers_leave_the_job_is_shown_where_there_is_podman(cli: Cli) -> None:  # U5
    places = cli.root / "host" / "usr" / "bin"
    assert "podman" not in plan(cli, "--no-container", "--", "true")
    places.mkdir(parents=True)
    (places / "podman").touch(mode=0o755)
    environ = {"PATH": f"{cli.environ['PATH']}:/usr/bin"}
    said = plan(cli, "--no-container", "--", "true", env=environ)
    assert said["podman"] == "containers leave the job: --no-container"
    assert "podman" not in plan(cli, "--", "true", env=environ)  # it has no scope that they could stay in
