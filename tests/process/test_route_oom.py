"""When the GPU runs out of memory a job runs once more, on the CPU, and never where it must not. (C8)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import until
from tests.process.harness import Gate, kill, kill_9, state_of
from tests.process.route_box import OOM, RouteBox
from tests.systemd.helpers.terminal import BASH, CTRL_C, CTRL_Z, PROMPT, Terminal

pytestmark = pytest.mark.both_pythons

FALLS_BACK = "on_gpu_oom = 'cpu'"
BOTH = ["a gpu", "a cpu"]
CAREFUL = f"{FALLS_BACK}\nidempotent = false"


@pytest.fixture
def routes(routes: RouteBox) -> RouteBox:
    routes.configure(FALLS_BACK)
    return routes


def test_out_of_gpu_memory_it_runs_once_more_on_the_cpu(routes: RouteBox) -> None:
    done = routes.route(do=f"echo $where; {OOM}; echo done >&2; exit 5")
    assert (done.returncode, done.stdout) == (5, "gpu\ncpu\n")
    assert routes.ways() == BOTH
    assert "CUDA out of memory.\n" in done.stderr
    assert "slicer: whisper: out of GPU memory on gpu: cpu\n" in done.stderr
    second, first = routes.outcomes()
    assert (first.exit_code, second.exit_code) == (3, 5)
    assert [(row.result, row.destination, row.job, row.after) for row in routes.decisions()] == [
        ("started", "gpu", first.job, ""),
        ("fallback", "cpu", second.job, first.job),
    ]
    assert first.command[-1] == "cuda"
    assert second.command[-1] == "cpu"
    routes.assert_clean()


def test_it_does_not_run_a_third_time(routes: RouteBox) -> None:
    done = routes.route(do="echo 'CUDA out of memory' >&2; exit 3")
    assert done.returncode == 3
    assert routes.ways() == BOTH


@pytest.mark.parametrize(
    "do",
    ["echo 'CUDA out of memory' >&2", "echo oops >&2; exit 3", "kill -9 $$", "exec 2>&-; exit 3"],
    ids=["copes", "fails otherwise", "is killed", "closes stderr"],
)
def test_any_other_end_is_its_end(routes: RouteBox, do: str) -> None:
    routes.route(do=do)
    assert routes.ways() == ["a gpu"]


def test_without_the_routes_word_it_fails(routes: RouteBox) -> None:
    routes.configure()
    assert routes.route(do=OOM).returncode == 3
    assert routes.ways() == ["a gpu"]


def test_a_busy_cpu_blocks_it_and_the_caller_may_try_again(routes: RouteBox) -> None:
    routes.configure(FALLS_BACK, cpu="max_jobs = 1\nexit_code = 42")
    holder = routes.start("whisper", "--", "job", "holder", "large", env={"DO": "sleep 99"})
    until(lambda: routes.started("holder"), "the CPU is taken")
    done = routes.route(do=OOM)
    assert done.returncode == 42
    assert routes.results() == ["started cpu", "started gpu", "blocked cpu"]
    assert routes.decisions()[-1].after == routes.decisions()[1].job
    again = routes.route(do=OOM)  # N6: it waits for the CPU, and does not run out of GPU memory once more
    assert again.returncode == 42
    assert routes.results()[3:] == ["blocked cpu"]
    assert routes.ways() == ["holder cpu", "a gpu"]
    kill(holder.pid, signal.SIGTERM)
    holder.wait()


def test_what_ran_out_of_gpu_memory_goes_to_the_cpu_when_it_is_called_again(routes: RouteBox) -> None:  # N6
    routes.route(do=f"{OOM}; exit 5")
    again = routes.route(do=OOM)
    assert "whisper: ran out of GPU memory " in again.stderr
    assert again.stderr.partition(" ago: ")[2].startswith("cpu\n")
    assert routes.ways() == [*BOTH, "a cpu"]
    assert routes.results() == ["started gpu", "fallback cpu", "started cpu"]
    (routes.root / "other").write_bytes(b"x" * 100)
    assert routes.route(input="other").returncode == 0  # as large, but another input
    (routes.root / "small").write_bytes(b"x" * 99)
    assert routes.route().returncode == 0  # the same name, and something else in it
    assert routes.ways()[3:] == ["a gpu", "a gpu"]


def test_with_more_gpu_memory_it_is_tried_there_again(routes: RouteBox) -> None:  # N6
    routes.route(do=OOM)
    config = Path(routes.env["SLICER_CONFIG"])
    config.write_text(config.read_text().replace('vram = "2G"', 'vram = "3G"'))
    assert routes.route().returncode == 0
    assert routes.ways() == [*BOTH, "a gpu"]


@pytest.mark.parametrize("sends", ["file", "pipe"])
def test_both_attempts_read_the_same_stdin(routes: RouteBox, sends: str) -> None:
    routes.configure(FALLS_BACK + ("\ninput = 'stdin'" if sends == "pipe" else ""))
    (routes.root / "text").write_bytes(b"head\nbody\n")
    env = {"DO": f"cat; {OOM}"}
    with (routes.root / "text").open("rb") as file:
        if sends == "file":
            file.seek(5)
            done = routes.run("whisper", "-q", "--", "job", "a", "small", stdin=file, env=env)
            assert done.stdout == "body\n" * 2
        else:
            process = routes.start("whisper", "-q", "--", "job", "a", stdin=subprocess.PIPE, env=env)
            assert process.communicate(b"body\n")[0] == b"body\n" * 2
    assert routes.ways() == BOTH


# -- never again after output ------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("stdout", ["pipe", "file", "null", "same"])
def test_a_job_that_is_not_idempotent_runs_again_only_if_it_wrote_nothing(
    routes: RouteBox, writes: bool, stdout: str
) -> None:
    routes.configure(CAREFUL)
    path = routes.root / "out"
    path.write_text("before\n")
    with path.open("a") as file:
        streams: dict[str, Any] = {
            "pipe": {},
            "file": {"stdout": file},
            "null": {"stdout": subprocess.DEVNULL},
            "same": {"stderr": subprocess.STDOUT},
        }[stdout]
        done = routes.route("-q", do=f"{'echo result;' if writes else ''} {OOM}", **streams)
    again = not writes or stdout == "null"
    assert routes.ways() == (BOTH if again else BOTH[:1])
    assert done.returncode == (0 if again else 3)
    if stdout == "file":
        assert path.read_text() == "before\nresult\n" * writes or not writes
    if writes and stdout == "pipe":
        assert done.stdout == "result\n"


def test_why_it_is_not_run_again_is_said(routes: RouteBox) -> None:
    routes.configure(CAREFUL)
    said = routes.route(do=f"echo result; {OOM}").stderr
    assert "it has written to stdout (idempotent = false): not run again" in said


# -- what it writes ----------------------------------------------------------------------------------------


def test_stdout_and_stderr_in_one_pipe_keep_their_order(routes: RouteBox) -> None:
    do = "for n in $(seq 300); do echo out $n; echo err $n >&2; done"
    done = routes.route("-q", do=do, stderr=subprocess.STDOUT)
    assert done.stdout.splitlines() == [f"{way} {n}" for n in range(1, 301) for way in ("out", "err")]


def test_bytes_arrive_as_they_were(routes: RouteBox) -> None:
    env = {"DO": r"printf '\377\0\r\n\033' >&2"}
    process = routes.start("whisper", "-q", "--", "job", "a", "small", env=env)
    assert process.communicate()[1] == b"\xff\0\r\n\x1b"


def test_who_keeps_stderr_open_hangs_nobody_and_is_heard(routes: RouteBox, gate: Gate) -> None:
    env = {"DO": "echo early >&2", "GATE": str(gate.path)}
    process = routes.start("whisper", "-q", "--", "job", "a", "small", env=env)
    job = int(until(lambda: routes.started("a"), "it runs"))
    with open(f"/proc/{job}/fd/2", "w") as theirs:
        gate.open()
        assert process.wait() == 0
        theirs.write("late\n")
    assert process.stderr is not None
    assert process.stderr.read() == b"early\nlate\n"


def test_a_reader_that_goes_ends_the_writer(routes: RouteBox) -> None:
    """As without slicer: SIGPIPE."""
    process = routes.start("whisper", "-q", "--", "job", "a", "small", env={"DO": "exec yes >&2"})
    until(lambda: routes.started("a"), "it writes")
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait() == 128 + signal.SIGPIPE


def test_kill_9_of_slicer_loses_no_output_and_no_outcome(routes: RouteBox) -> None:
    fifo = routes.root / "go"
    os.mkfifo(fifo)
    do = f"echo one >&2; read x <{fifo}; echo two >&2; {OOM}"
    process = routes.start("whisper", "-q", "--", "job", "a", "small", env={"DO": do})
    until(lambda: routes.started("a"), "it runs")
    kill_9(process.pid)
    with fifo.open("w") as go:
        go.write("\n")
    assert process.stderr is not None
    assert process.stderr.read().startswith(b"one\ntwo\ntorch.OutOfMemoryError")
    routes.assert_clean()
    assert routes.ways() == BOTH[:1]
    (outcome,) = routes.outcomes()
    assert outcome.exit_code == 3


def test_a_killed_relay_is_no_reason_to_run_again(routes: RouteBox) -> None:
    do = "kill -9 $(pgrep -P $(ps -o ppid= $PPID) slicer-relay); sleep 0.1; trap '' PIPE; exit 3"
    done = routes.route(do=do)
    assert done.returncode == 3, done
    assert routes.ways() == BOTH[:1]
    assert "what the job wrote is unknown" in done.stderr


# -- killed between the attempts: nothing runs twice ------------------------------------------------------


POINTS = [
    "route-recorded", "supervisor-heard-end", "ending-released", "route-attempt-ended", "route-falls-back",
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_killed_before_the_second_attempt_the_job_has_run_at_most_once(routes: RouteBox, point: str) -> None:
    faults = {"SLICER_FAULTS": f"{routes.env['SLICER_STATE_DIR']}:{point}"}
    process = routes.start("whisper", "-q", "--", "job", "a", "small", env={"DO": OOM, **faults})
    until(lambda: state_of(process.pid) == "T", f"it stands at {point}")
    Path(f"{routes.env['SLICER_STATE_DIR']}.go").touch()  # for the keeper, which may come there, too
    kill_9(process.pid)
    routes.assert_clean()
    assert routes.ways() == (BOTH[:1] if point != "route-recorded" else [])
    assert len(routes.outcomes()) == len(routes.ways())
    assert routes.results() == ["started gpu"]


def test_killed_during_the_second_attempt_it_goes_on_and_is_not_lost(routes: RouteBox) -> None:
    fifo = routes.root / "go"
    os.mkfifo(fifo)
    do = f"{OOM}; read x <{fifo}; exit 6"
    process = routes.start("whisper", "-q", "--", "job", "a", "small", env={"DO": do})
    until(lambda: routes.ways() == BOTH, "the second attempt runs")
    kill_9(process.pid)
    with fifo.open("w") as go:
        go.write("\n")
    routes.assert_clean()
    assert [outcome.exit_code for outcome in routes.outcomes()] == [6, 3]


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_ends_slicer_between_the_attempts_has_his_way(routes: RouteBox, signo: int) -> None:
    faults = {"SLICER_FAULTS": f"{routes.env['SLICER_STATE_DIR']}:route-attempt-ended"}
    process = routes.start("whisper", "-q", "--", "job", "a", "small", env={"DO": OOM, **faults})
    until(lambda: state_of(process.pid) == "T", "the first attempt is over")
    kill(process.pid, signo)
    Path(f"{routes.env['SLICER_STATE_DIR']}.go").touch()
    kill(process.pid, signal.SIGCONT)
    assert process.wait() == 3  # the job's own
    assert routes.ways() == BOTH[:1]


# -- at a terminal -----------------------------------------------------------------------------------------


def at_terminal(routes: RouteBox) -> Terminal:
    terminal = Terminal(*BASH, env=routes.env, cwd=routes.root)
    terminal.expect(PROMPT)
    return terminal


def typed(terminal: Terminal, routes: RouteBox, do: str, *options: str) -> None:
    """The command line of a job, typed; what is echoed of it is taken off."""
    script = routes.root / "line.sh"
    script.write_text(f"exec {routes.shell_line('whisper', *options, '--', 'job', 'a', 'small')}")
    (routes.root / "do").write_text(do)
    terminal.line('DO="$(cat do)" bash ./line.sh')
    terminal.expect("line.sh\n")


def test_at_a_terminal_stdout_and_stderr_are_terminals_of_its_size(routes: RouteBox) -> None:
    with at_terminal(routes) as terminal:
        terminal.resize(33, 111)
        tests = "test -t 0 && test -t 1 && test -t 2 && stty size <&2 && stty size <&1"
        typed(terminal, routes, f"{tests}; {OOM}")
        shown = terminal.expect(PROMPT)
    assert shown.count("33 111\n") == 4
    assert "CUDA out of memory.\n" in shown
    assert routes.ways() == BOTH


def test_progress_bars_stay_in_their_line(routes: RouteBox) -> None:
    with at_terminal(routes) as terminal:
        typed(terminal, routes, r"printf '50%%\r100%%\r\n' >&2", "-q")
        assert terminal.expect(PROMPT) == f"50%\r100%\r\n{PROMPT}"


def test_ctrl_c_ends_the_job_and_there_is_no_second_attempt(routes: RouteBox) -> None:
    do = "echo 'CUDA out of memory' >&2; echo ready; exec sleep 1000"
    with at_terminal(routes) as terminal:
        typed(terminal, routes, do)
        terminal.expect("ready\n")
        terminal.type(CTRL_C)
        terminal.expect(PROMPT)
        terminal.line("echo code=$?")
        terminal.expect("echo code=$?\n")
        assert "code=130" in terminal.expect(PROMPT)
    assert routes.ways() == BOTH[:1]
    routes.assert_clean()


def test_ctrl_z_stops_the_job_and_fg_takes_it_up(routes: RouteBox) -> None:
    with at_terminal(routes) as terminal:
        typed(terminal, routes, f"echo ready >&2; read x; {OOM}; echo on the CPU >&2; exit 8")
        terminal.expect("ready\n")
        terminal.type(CTRL_Z)
        terminal.expect("Stopped")
        terminal.expect(PROMPT)
        job = int(routes.started("a"))
        until(lambda: state_of(job) == "T", "the job is stopped")
        terminal.line("fg")
        until(lambda: state_of(job) != "T", "it goes on")
        terminal.line("")  # it reads from the real terminal
        terminal.expect("ready\n")
        terminal.line("")
        terminal.expect("on the CPU\n")
        terminal.expect(PROMPT)
        terminal.line("echo code=$?")
        terminal.expect("echo code=$?\n")
        assert "code=8" in terminal.expect(PROMPT)
    assert routes.ways() == BOTH
    routes.assert_clean()


def test_a_new_size_of_the_terminal_is_the_jobs(routes: RouteBox) -> None:
    with at_terminal(routes) as terminal:
        do = "trap 'stty size <&2' WINCH; echo ready; while :; do sleep 0.05; done"
        typed(terminal, routes, do)
        terminal.expect("ready\n")
        terminal.resize(40, 100)
        terminal.expect("40 100\n")
        terminal.type(CTRL_C)
        terminal.expect(PROMPT)


REAPER = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans are ours
code = subprocess.run(sys.argv[1:]).returncode
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    sys.exit(code)
sys.exit("a process was left to us")
"""


def test_it_leaves_no_process_for_others_to_reap(routes: RouteBox) -> None:
    """The first process of a container may not do that."""
    line = [str(word) for word in routes.command("whisper", "-q", "--", "job", "a", "small")]
    env = {**routes.env, "DO": OOM}
    done = subprocess.run([sys.executable, "-c", REAPER, *line], env=env, cwd=routes.root, check=False)
    assert done.returncode == 0
    assert routes.ways() == BOTH
