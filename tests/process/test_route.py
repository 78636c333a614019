"""``slicer route`` from its command line to the job's end, with a simulated GPU and without systemd."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap

import pytest

from slicer.kernel.users import user_name
from tests.patience import until
from tests.process.harness import SLICER, Gate, kill, sleeps_in
from tests.process.route_box import RouteBox, json_lines

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize(
    ("input", "way", "why"),
    [("small", "gpu", "size 100B ≤ 1K: gpu"), ("large", "cpu", "size 4.9K > 1K: cpu")],
)
def test_the_input_decides_and_one_line_says_why(routes: RouteBox, input: str, way: str, why: str) -> None:
    """C1, C2, C6"""
    done = routes.route(input=input, do='echo "$@"; exit 9')
    assert done.returncode == 9
    assert done.stdout == f"a {input} --device {'cuda' if way == 'gpu' else 'cpu'}\n"
    assert routes.ways() == [f"a {way}"]
    assert [line for line in done.stderr.splitlines() if "whisper: " in line] == [f"slicer: whisper: {why}"]
    (row,) = routes.decisions()
    (outcome,) = routes.outcomes()
    assert (row.route, row.destination, row.mode, row.result, row.job) == (
        "whisper", way, way, "started", outcome.job,
    )  # fmt: skip
    assert row.command == ("job", "a", input)
    assert outcome.name == f"whisper:{input}"
    routes.assert_clean()


def test_quietly_it_says_nothing(routes: RouteBox) -> None:
    assert routes.route("-q").stderr == ""
    assert routes.ways() == ["a gpu"]


def test_options_stand_before_or_after_the_route(routes: RouteBox) -> None:
    for line in ("-q --name x whisper --", "whisper -q --name=x --", "-q whisper --name x"):
        words = line.split()
        done = routes.run(*words, "job", "a", "small")
        assert (done.returncode, done.stderr) == (0, "")
    assert {outcome.name for outcome in routes.outcomes()} == {"x"}


# -- when it is busy ---------------------------------------------------------------------------------------


def test_a_blocked_job_fails_at_once_with_the_routes_code_and_one_line_of_json(
    routes: RouteBox, gate: Gate
) -> None:
    """C3"""
    routes.configure(gpu="max_jobs = 1\nexit_code = 42")
    holder = routes.hold_way(gate)
    done = routes.route()
    assert done.returncode == 42
    assert done.stderr.count("\n") == 1, done.stderr
    (told,) = json_lines(done.stderr)
    assert told["holder"].pop("held_for") >= 0
    assert told == {
        "version": 1,
        "error": "blocked",
        "route": "whisper",
        "input": "small",
        "metrics": [{"probe": "size", "value": 100.0, "at_least": False, "bound": 1024.0}],
        "destination": "gpu",
        "mode": "gpu",
        "tried": ["gpu"],
        "exit_code": 42,
        "busy": told["busy"],
        "slot": "whisper-gpu",
        "holder": {
            "name": "holder",
            "pid": holder.pid,
            "user": user_name(os.geteuid()),
            "unit": None,
            "expected_remaining": None,
            "command": "job holder small --device cuda",
        },
    }
    assert routes.route(input="large").returncode == 0  # the other way is free
    gate.open()
    assert holder.wait() == 0
    assert routes.ways() == ["holder gpu", "a cpu"]
    assert routes.results() == ["started gpu", "blocked gpu", "started cpu"]
    assert "blocked: " in routes.decisions()[1].reason
    routes.assert_clean()


def test_what_is_busy_may_go_another_way(routes: RouteBox, gate: Gate) -> None:
    """C3"""
    routes.configure("on_busy = 'other'", gpu="max_jobs = 1")
    holder = routes.hold_way(gate)
    done = routes.route()
    assert done.returncode == 0
    assert "slicer: whisper: size 100B ≤ 1K: gpu, which is busy: cpu\n" in done.stderr
    assert routes.results() == ["started gpu", "started cpu"]
    gate.open()
    assert holder.wait() == 0


def test_all_busy_is_blocked_with_the_first_ones_code(routes: RouteBox, gate: Gate) -> None:
    """C3"""
    routes.configure("on_busy = 'other'", gpu="max_jobs = 1\nexit_code = 7", cpu="max_jobs = 1")
    holders = [routes.hold_way(gate), routes.hold_way(gate, "large", name="second")]
    done = routes.route()
    assert done.returncode == 7
    (told,) = json_lines(done.stderr)
    assert (told["destination"], told["tried"]) == ("gpu", ["gpu", "cpu"])
    until(lambda: gate.open_if_awaited() or all(holder.poll() is not None for holder in holders), "both end")
    assert [holder.wait() for holder in holders] == [0, 0]
    assert routes.ways() == ["holder gpu", "second cpu"]


def test_a_route_may_wait(routes: RouteBox, gate: Gate) -> None:
    routes.configure("on_busy = 'wait'", gpu="max_jobs = 1")
    holder = routes.hold_way(gate)
    waiting = routes.start("whisper", "--name", "next", "--", "job", "next", "small", env={"DO": ""})
    until(lambda: any(ticket.name == "next" for ticket in routes.tickets()), "it waits")
    gate.open()
    assert (holder.wait(), waiting.wait()) == (0, 0)
    assert routes.ways() == ["holder gpu", "next gpu"]
    said = (waiting.stderr.read() if waiting.stderr else b"").decode()
    assert said.index("whisper: size 100B ≤ 1K: gpu") < said.index("waiting for")  # why comes first
    routes.assert_clean()


def test_who_has_waited_long_enough_is_blocked_and_never_runs_beside(routes: RouteBox, gate: Gate) -> None:
    """C2: max_jobs is a promise, whatever the profile says of jobs that have waited."""
    routes.configure(cpu="max_jobs = 1\n[profiles.light]\nthen = 'run'")
    holder = routes.hold_way(gate, "large")
    done = routes.route("--on-busy", "wait", "--max-wait", "0", input="large")
    assert done.returncode == 75
    assert json_lines(done.stderr)[0]["error"] == "blocked"
    gate.open()
    assert holder.wait() == 0
    assert routes.ways() == ["holder cpu"]


# -- what does not run -------------------------------------------------------------------------------------


def test_a_probe_that_fails_may_have_a_declared_way(routes: RouteBox) -> None:
    """C4"""
    routes.configure("on_probe_error = 'cpu'")
    assert routes.run("whisper", "job", "a", "-").returncode == 0
    (row,) = routes.decisions()
    assert (row.destination, row.result, row.metrics) == ("cpu", "started", ())


def test_nothing_decided_is_lost_where_the_history_cannot_be_written(routes: RouteBox) -> None:
    """C6: history stops no job."""
    blocker = routes.root / "not-a-directory"
    blocker.write_text("")
    (routes.var_lib / "slicer").write_text("")  # root's
    done = routes.route(env={"XDG_STATE_HOME": str(blocker)})
    assert done.returncode == 0
    assert routes.ways() == ["a gpu"]
    assert "cannot be" in done.stderr or "history" in done.stderr


# -- inside a route ----------------------------------------------------------------------------------------


def test_inside_its_own_route_a_command_is_executed_at_once(routes: RouteBox) -> None:
    """C5: a wrapped binary that starts itself again."""
    inner = shlex.join([*SLICER, "route", "whisper", "--program", sys.executable, "--", "whisper-name", "-c"])
    code = 'import os, sys; print(sys.orig_argv[0], os.environ["SLICER_ROUTE"], os.getppid())'
    done = routes.run("whisper", "-q", "--", "sh", "-c", f"echo $$; {inner} '{code}'; exit $?", "sh", "small")
    assert done.returncode == 0, done
    shell, told = done.stdout.splitlines()
    assert told == f"whisper-name whisper {shell}"  # the shell's own child: slicer became it
    assert routes.results() == ["started gpu"]
    assert len(routes.outcomes()) == 1


@pytest.mark.parametrize("about", ["--help", "-h", "--version", "-V"])
def test_a_program_that_is_only_asked_about_itself_answers(routes: RouteBox, about: str) -> None:
    """C5: wrapped it has the help that it had."""
    done = routes.run("whisper", "--", "echo", "-n", about)
    assert done.returncode == 125  # with anything else it is a job
    done = routes.run("whisper", "--program", str(routes.root / "bin" / "args"), "--", "whisper", about)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{about}\n", "")
    assert routes.results() == ["probe-error"]


def test_the_program_may_be_another_than_its_name(routes: RouteBox) -> None:
    """C5"""
    done = routes.run(
        "whisper", "-q", "--program", sys.executable, "--", "whisper", "-c",
        "import sys; print(sys.orig_argv[0], sys.argv[1:])", "small",
    )  # fmt: skip
    assert done.stdout == "whisper ['small', '--device', 'cuda']\n"
    (outcome,) = routes.outcomes()
    assert outcome.command[0] == "whisper"


def test_a_program_that_is_not_there_is_said(routes: RouteBox) -> None:
    for env in ({}, {"SLICER_ROUTE": "x,whisper"}):
        done = routes.run("whisper", "--program", "/nonexistent/x", "--", "job", "a", "small", env=env)
        assert (done.returncode, routes.lines()) == (127, [])
        assert "/nonexistent/x: command not found" in done.stderr


# -- standard input ----------------------------------------------------------------------------------------

STDIN = "input = 'stdin'"


@pytest.mark.parametrize(("size", "way"), [(100, "gpu"), (5000, "cpu")])
def test_what_comes_through_a_pipe_is_measured_and_arrives_whole(
    routes: RouteBox, size: int, way: str
) -> None:
    """C1"""
    routes.configure(STDIN)
    tmp = routes.root / "tmp"
    tmp.mkdir()
    process = routes.start(
        "whisper", "-q", "--", "job", "a", stdin=subprocess.PIPE, env={"DO": "cat; ls", "TMPDIR": str(tmp)}
    )
    out, err = process.communicate(b"x" * size)
    assert (process.returncode, err) == (0, b"")
    assert out.startswith(b"x" * size)
    assert routes.ways() == [f"a {way}"]
    assert list(tmp.iterdir()) == []


def test_a_file_is_measured_and_read_from_where_it_was(routes: RouteBox) -> None:
    """C1"""
    routes.configure(STDIN)
    with (routes.root / "large").open("rb") as file:
        file.seek(4990)
        file.flush()
        done = routes.run("whisper", "-q", "--", "job", "a", stdin=file, env={"DO": "cat"})
    assert done.stdout == "x" * 10
    assert routes.ways() == ["a gpu"]


# -- deciding only -----------------------------------------------------------------------------------------


def test_explained_nothing_runs_and_nothing_is_kept(routes: RouteBox, gate: Gate) -> None:
    routes.configure("on_gpu_oom = 'cpu'", gpu="max_jobs = 1")
    done = routes.route("--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first == "whisper: size 100B ≤ 1K: gpu"
    assert any("free now" in line for line in rest)
    assert any("job a small --device cuda" in line for line in rest)
    told = json.loads(routes.route("--dry-run", "--json").stdout)
    assert (told["version"], told["destination"], told["on_gpu_oom"]) == (1, "gpu", "cpu")
    assert [each["free"] for each in told["attempts"]] == [True]
    holder = routes.hold_way(gate)
    (attempt,) = json.loads(routes.route("--dry-run", "--json").stdout)["attempts"]
    assert (attempt["free"], attempt["slot"]) == (False, "whisper-gpu")
    assert (attempt["busy"]["error"], attempt["busy"]["holder"]["name"]) == ("slot-busy", "holder")
    gate.open()
    assert holder.wait() == 0
    assert routes.results() == ["started gpu"]
    assert routes.ways() == ["holder gpu"]


def test_explained_before_the_program_is_installed(routes: RouteBox) -> None:  # C1, N9
    done = routes.run("whisper", "--dry-run", "--", "not-installed", "large")
    assert done.returncode == 0
    assert "size 4.9K > 1K: cpu" in done.stdout
    assert "not known: not-installed: command not found" in done.stdout


# -- signals -----------------------------------------------------------------------------------------------


def test_a_signal_during_the_probe_ends_it(routes: RouteBox) -> None:
    config = """\
        [routes.whisper]
        probe = "command"
        probe_command = ["sh", "-c", "echo probing >>$LOG; sleep 99; echo 1"]
        [routes.whisper.cpu]
        """
    (routes.root / "config.toml").write_text(textwrap.dedent(config))
    process = routes.start("whisper", "--", "job", "a", "small")
    until(lambda: "probing" in routes.lines(), "the probe runs")
    kill(process.pid, 15)
    assert process.wait() == -15
    routes.assert_clean()


def test_a_signal_while_a_pipe_is_read_ends_it(routes: RouteBox) -> None:
    routes.configure(STDIN)
    process = routes.start("whisper", "--", "job", "a", stdin=subprocess.PIPE)
    until(lambda: process.poll() is not None or _reads_stdin(process.pid), "it reads")
    kill(process.pid, 2)
    assert process.wait() == -2
    routes.assert_clean()


def _reads_stdin(pid: int) -> bool:
    return sleeps_in(pid) in ("0", "63")  # read(2), by its numbers
