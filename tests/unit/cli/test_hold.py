"""``slicer hold``: the lease of ``slicer run`` without its scope."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.model import Lease
from tests.fake_nvml import FakeNvml
from tests.patience import LONGEST_S, until
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]

SLOT = ("--cpu-slots", "1")
@pytest.fixture
def held(cli: Cli) -> Iterator[Lease]:
    """A CPU slot that a ``slicer hold`` has, until its input ends."""
    pipe = subprocess.PIPE
    with cli.popen("hold", "-q", *SLOT, "--name", "by-hand", "--", "cat", stdin=pipe, stdout=pipe) as process:
        yield until(lambda: next(iter(cli.entries("leases", Lease)), None), "a lease")
        process.communicate(timeout=LONGEST_S)
        assert process.returncode == 0


def test_the_lease_is_held_while_the_command_runs_and_no_longer(cli: Cli) -> None:  # A1
    names = 'ls "$SLICER_STATE_DIR/leases"; echo "$SLICER_LEASE"'
    lease, marker = cli.run("hold", *SLOT, "--", "sh", "-c", names).stdout.split()
    assert lease == marker
    assert not cli.entries("leases", Lease)


def test_others_wait_for_it(cli: Cli, held: Lease) -> None:  # B1
    assert (held.name, held.slots, held.unit) == ("by-hand", {"cpu": 1}, "")
    for program in (("run", "--backend", "plain"), ("hold",)):
        done = cli.run(*program, "-q", *SLOT, "--no-wait", "--", "true", code=75)
        assert json.loads(done.stderr)["holder"]["name"] == "by-hand"


def test_a_wait_with_an_end_fails_or_goes_without(cli: Cli, held: Lease) -> None:  # A8
    done = cli.run("hold", *SLOT, "--max-wait", "0", "--then", "fail", "--", "echo", "ran", code=75)
    assert done.stdout == ""
    assert cli.run("hold", *SLOT, "--max-wait", "0", "--", "echo", "ran").stdout == "ran\n"


def test_the_exit_code_is_the_commands(cli: Cli) -> None:  # A9
    cli.run("hold", *SLOT, "--", "sh", "-c", "exit 7", code=7)
    cli.run("hold", *SLOT, "--", "sh", "-c", "kill -TERM $$", code=143)
    cli.run("hold", *SLOT, "--", "no-such-program", code=127)


@pytest.fixture
def profile(cli: Cli) -> str:
    """A profile that wants a CPU slot, and has limits."""
    path = Path(cli.environ["XDG_CONFIG_HOME"], "slicer", "config.toml")
    path.parent.mkdir(parents=True)
    limits = "cpu_quota = '50%'\ntimeout = '1ms'\nthreads = 1\nenv.X = '1'\n"
    path.write_text(f"[profiles.p]\ncpu_slots = 1\n{limits}")
    return "p"


def test_a_profiles_limits_do_not_act(cli: Cli, profile: str) -> None:
    cli.run("hold", "-p", profile, "--", "sleep", "0.1")  # longer than it could have taken, were it timed
    cli.run("hold", "-p", profile, "--timeout", "1ms", "--", "sleep", "1000", code=124)


def test_nothing_but_the_lease_is_in_the_environment(cli: Cli, profile: str) -> None:
    done = cli.run("hold", "-p", profile, "--", "env")
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    added = set(found) - set(cli.environ) - {"PWD", "SHLVL", "_", "LC_CTYPE"}
    assert added == {"SLICER_LEASE"}


def test_the_gpus_are_in_the_environment(cli: Cli, fake_nvml: FakeNvml) -> None:
    cli.environ |= fake_nvml.env
    done = cli.run("hold", "--gpu", "1", "--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $GPU_LOCK_HELD"')
    assert done.stdout == "GPU-11111111-1111-1111-1111-111111111111 1\n"


def test_without_a_command_it_is_a_shell(cli: Cli) -> None:
    shell = {"SHELL": "/bin/sh"}
    pipe = subprocess.PIPE
    with cli.popen("hold", *SLOT, env=shell, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        out, err = process.communicate('echo "in $SLICER_LEASE"\nexit 7\n', timeout=LONGEST_S)
    assert process.returncode == 7
    assert len(out.split()[1]) == 12
    assert err.splitlines()[0] == "slicer: this shell holds 1 CPU slot; exit gives it back"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ([*SLOT, "--", "true"], "starts no command, so it cannot be combined with a command"),
        ([*SLOT, "--timeout", "1h"], "starts no command, so it cannot be combined with --timeout"),
        ([], "nothing to hold"),
        (["-p", "nope"], "unknown profile 'nope'"),
    ],
)
def test_the_protocols_last_line_says_what_cannot_be(cli: Cli, line: list[str], told: str) -> None:  # U2
    hello, error = map(json.loads, cli.run("hold", "--protocol", "1", *line, code=2).stdout.splitlines())
    assert (hello["event"], hello["protocol"]) == ("hello", 1)
    assert (error["event"], error["message"]) == ("error", told)
