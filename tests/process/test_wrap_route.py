"""A wrapped program, all the way: the shim, the route's decision, the job, and what the caller has of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Gate, gone, kill, state_of
from tests.process.route_box import RouteBox, json_lines

TELL = f"""\
#!{sys.executable} -IS
import json, os, sys
print(json.dumps([[os.fsencode(word).hex() for word in sys.argv[1:]], sys.stdin.read()]))
sys.exit(7)
"""


class WrapBox(RouteBox):
    """Its job, ``bin/job``, is wrapped by the route "whisper"; :meth:`call` calls it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.slicer = root / "bin" / "slicer"
        # The machine's own systemd is none of this test's.
        call = f"{shlex.join(SLICER)} route --backend plain"
        self.slicer.write_text(f'#!/bin/sh\n[ "$1" = route ] || exit 99\nshift\nexec {call} "$@"\n')
        self.slicer.chmod(0o755)

    def install(self, path: Path | None = None) -> None:
        line = ("wrap", "install", str(path or self.job), "--route", "whisper", "--slicer", str(self.slicer))
        command = [*self.prefix, *SLICER, *line]
        subprocess.run(command, env=self.env, capture_output=True, timeout=LONGEST_S, check=True)

    def command(self, *arguments: str | bytes, backend: str = "") -> list[str | bytes]:
        """The command line of a caller who knows nothing of slicer."""
        return [*self.prefix, *arguments]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[WrapBox]:
    made = WrapBox(tmp_path)
    try:
        yield made
        made.assert_clean()
    finally:
        made.close()


def test_calls_go_where_the_route_decides_and_the_program_gets_what_was_typed(box: WrapBox) -> None:  # C5
    box.job.write_text(TELL)
    box.install()
    odd = [b"", b" a\nb", b"it's", b"\xff\x81\x88", b"--program", b"*", b"-n"]
    for name, way in (("small", "cuda"), ("large", "cpu")):
        process = box.start("job", name, *odd, stdin=subprocess.PIPE)
        out, err = process.communicate(b"from the caller", timeout=LONGEST_S)
        words, stdin = json.loads(out)
        assert [bytes.fromhex(word) for word in words] == [name.encode(), *odd, b"--device", way.encode()]
        assert (stdin, process.returncode) == ("from the caller", 7), err
    assert box.results() == ["started gpu", "started cpu"]


def test_the_name_of_the_call_is_the_programs(box: WrapBox) -> None:  # C5
    shutil.copy(shutil.which("bash") or "/bin/bash", box.job)
    (box.job.parent / "other").symlink_to("job")
    box.install()
    for name in ("job", "other"):
        done = box.run(name, "-c", "tr '\\0' '|' </proc/$$/cmdline; :", "small")
        assert done.stdout.startswith(f"{box.job.parent / name}|-c|"), done


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_call_reaches_the_program(box: WrapBox, signo: signal.Signals) -> None:  # C5
    box.install()
    gate = Gate(box.root / "gate")
    env = {"GATE": str(gate.path), "DO": ""}
    process = box.start("job", "a", "small", env=env)
    until(lambda: box.started("a") or process.poll() is not None, "it runs")
    process.send_signal(signo)
    assert process.wait(LONGEST_S) in (128 + signo, -signo)
    assert box.results() == ["started gpu"]


def test_a_call_when_all_is_busy_fails_as_the_route_says(box: WrapBox) -> None:  # C5
    box.configure(gpu="max_jobs = 1\nexit_code = 9")
    box.install()
    gate = Gate(box.root / "gate")
    holder = box.start("job", "holder", "small", env={"GATE": str(gate.path), "DO": ""})
    until(lambda: box.started("holder") or holder.poll() is not None, "it runs")
    blocked = box.run("job", "b", "small", env={"DO": ""})
    assert blocked.returncode == 9
    assert len(json_lines(blocked.stderr)) == 1
    gate.open()
    assert holder.wait(LONGEST_S) == 0
    assert box.ways() == ["holder gpu"]


def test_a_program_that_calls_itself_by_its_name_is_one_job(box: WrapBox) -> None:  # C5
    """Through the shim, by the path and by a link; and so do its children, with one place for all."""
    box.configure(gpu="max_jobs = 1")
    (box.job.parent / "nick").symlink_to("job")
    box.install()
    inner = f"unset DO; job inner large; {box.job} inner2 large; nick inner3 large"
    done = box.run("job", "outer", "small", env={"DO": inner})
    assert done.returncode == 0, done
    assert box.ways() == ["outer gpu", "inner gpu", "inner2 gpu", "inner3 gpu"]
    assert box.results() == ["started gpu"]


def test_unwrapped_in_the_middle_of_a_job_it_goes_on(box: WrapBox) -> None:  # C5
    box.install()
    gate = Gate(box.root / "gate")
    process = box.start("job", "a", "small", env={"GATE": str(gate.path), "DO": "exit 5"})
    until(lambda: box.started("a") or process.poll() is not None, "it runs")
    command = [*box.prefix, *SLICER, "wrap", "remove", str(box.job)]
    subprocess.run(command, env=box.env, capture_output=True, timeout=LONGEST_S, check=True)
    gate.open()
    assert process.wait(LONGEST_S) == 5
    assert not os.path.exists(f"{box.job}-real")
    assert box.run("job", "b", "small", env={"DO": ""}).returncode == 0
    assert box.results() == ["started gpu"]  # the second call was none of the route's


def test_a_call_that_is_killed_takes_the_program_along(box: WrapBox) -> None:  # C5, N7
    """As ``subprocess.run(timeout=…)`` kills it. The caller's next call does not run beside the first."""
    box.configure(gpu="max_jobs = 1")
    box.install()
    stubborn = """trap "" TERM HUP; sleep 1000 & echo "start child $! gpu" >>"$LOG"; wait"""
    process = box.start("job", "a", "small", env={"DO": stubborn})
    until(lambda: box.started("child") or process.poll() is not None, "it runs, and a child of it")
    process.kill()
    process.wait(LONGEST_S)
    program, child = (int(line.split()[2]) for line in box.lines())
    until(lambda: gone(program) and gone(child), "all of the job is gone")
    until(lambda: [outcome.ended_by for outcome in box.outcomes()] == ["caller"], "the outcome is kept")
    assert box.run("job", "b", "small", env={"DO": ""}).returncode == 0
    assert box.ways() == ["a gpu", "child gpu", "b gpu"]


@pytest.mark.parametrize(
    "point", ["supervisor-forked", "keeper-forked", "supervisor-let-go", "keeper-ordered", "keeper-spawned"]
)
def test_a_call_that_is_killed_at_the_programs_start_leaves_nothing(box: WrapBox, point: str) -> None:  # N7
    """Whoever stands still there, of slicer's two processes, goes on once the caller has killed the call."""
    box.install()
    place = box.env["SLICER_STATE_DIR"]
    env = {"DO": "sleep 1000", "SLICER_FAULTS": f"{place}:{point}"}
    process = box.start("job", "a", "small", env=env)
    still = until(lambda: [pid for pid in box.processes() if state_of(pid) == "T"], "it has come that far")
    process.kill()
    process.wait(LONGEST_S)
    Path(f"{place}.go").touch()
    for pid in still:
        kill(pid, signal.SIGCONT)
    until(lambda: not box.processes(), "nobody is left")
    assert not [line for line in box.lines() if line.startswith("end")]
