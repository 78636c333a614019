"""A lease inside another one: the GPU stays held as long as anybody uses it, whoever ends first."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
import textwrap

import pytest

from slicer.model import Lease
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate, children, gone, kill_9
from tests.process.test_client import CLIENT, program
from tests.process.test_run_detach import slicer

pytest_plugins = ["tests.fake_nvml"]

RUN = (*SLICER, "run", "--backend", "plain", "-q", "--gpus", "1", "--no-wait")

# What an outer program does with its lease: it starts the inner one, tells that it has, and waits for a line.
API = """
    with slicer.acquire("outer", gpus=1) as lease:
        os.environ.update(lease.env)
        begin()
    ended()
"""
OUTER = {
    "api": API,
    "api without its variables": API.replace("os.environ.update(lease.env)", "pass"),
    "client": """
    import slicer_client
    with slicer_client.acquire("outer", gpus=1):
        begin()
    ended()
""",
    "run": "begin()",
    "hold": "begin()",
}
AROUND = {"run": RUN, "hold": (*SLICER, "hold", "-q", "--gpus", "1")}
# How it starts the inner one, which holds until its gate opens.
INNER = {
    "run": "subprocess.Popen([*RUN, '--', 'sh', '-c', INNER_RUNS])",
    "api": "subprocess.Popen([sys.executable, '-c', INNER_ACQUIRES])",
    "forked": "os.fork() or inner()",
}
PRELUDE = """
import os, shlex, subprocess, sys
import slicer
RUN, GATE, LOG = {run!r}, {gate!r}, os.environ["LOG"]
INNER_RUNS = f'echo "start inner $$" >>"$LOG"; read x <{{GATE}}'
INNER_ACQUIRES = '''
import os, slicer
with slicer.acquire("inner", gpus=1) as lease:
    assert not lease.is_own
    with open(os.environ["LOG"], "a") as log:
        print("start inner", os.getpid(), file=log)
    open({gate!r}).read()
'''
def inner():
    exec(INNER_ACQUIRES)
    os._exit(0)
def begin():
    {inner}
    sys.stdin.readline()
def ended():
    print("ended", flush=True)
    sys.stdin.readline()
"""


def start(box: Box, gate: Gate, outer: str, inner: str) -> subprocess.Popen[bytes]:
    """The outer program, once the inner one holds its GPU."""
    code = PRELUDE.format(run=RUN, gate=str(gate.path), inner=INNER[inner]) + textwrap.dedent(OUTER[outer])
    around = (*AROUND[outer], "--") if outer in AROUND else ()
    path = os.pathsep.join((str(CLIENT.parent), box.env["PYTHONPATH"]))
    made = subprocess.Popen(
        [*around, sys.executable, "-c", code], env={**box.env, "PYTHONPATH": path}, cwd=box.root,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    box.adopt(made)
    until(lambda: box.started("inner") or made.poll() is not None, "the inner one runs")
    assert made.poll() is None
    return made


def say(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def give_back(process: subprocess.Popen[bytes]) -> None:
    """Let the outer program give its lease back, and go on."""
    say(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ended\n"


def held(box: Box) -> Lease:
    """The one lease on a GPU. Nobody else gets that GPU, and status shows it."""
    (lease,) = (lease for lease in box.snapshot().leases if lease.gpus)
    assert box.run("-q", "--gpus", "2", "--no-wait", "--", "true").returncode == 75
    assert lease.job in slicer(box, "status", "--json").stdout
    return lease


NESTED = [
    *itertools.product(("api", "client"), INNER),
    ("api without its variables", "forked"),  # the others cannot know of it
]


@pytest.fixture
def box(box: Box, gpus: None) -> Box:
    program(box, f'exec {shlex.join(SLICER)} "$@"')
    return box


# A3, K2
@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_the_gpu_is_held_until_the_inner_one_ends(box: Box, gate: Gate, outer: str, inner: str) -> None:
    process = start(box, gate, outer, inner)
    job = held(box).job
    give_back(process)
    assert held(box).job == job
    waiter = box.wait_in_line("waiter", options=("--gpus", "2"))
    gate.open()
    assert waiter.wait(LONGEST_S) == 0
    say(process)
    assert process.wait(LONGEST_S) == 0
    box.assert_clean()


# A3, K2
@pytest.mark.parametrize(("outer", "inner"), [*NESTED, *itertools.product(AROUND, INNER)])
def test_the_gpu_is_held_until_the_outer_one_ends(box: Box, gate: Gate, outer: str, inner: str) -> None:
    process = start(box, gate, outer, inner)
    job = held(box).job
    gate.open()
    until(lambda: gone(int(box.started("inner"))), "the inner one has ended")
    assert held(box).job == job
    waiter = box.wait_in_line("waiter", options=("--gpus", "2"))
    if outer in AROUND:
        say(process)
    else:
        give_back(process)
    assert waiter.wait(LONGEST_S) == 0
    if outer not in AROUND:
        say(process)
    assert process.wait(LONGEST_S) == 0
    box.assert_clean()


# A3, K2
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", AROUND)
def test_a_job_that_ends_first_ends_what_runs_inside_it(
    box: Box, gate: Gate, outer: str, inner: str
) -> None:
    process = start(box, gate, outer, inner)
    held(box)
    say(process)
    assert process.wait(LONGEST_S) == 0
    until(lambda: gone(int(box.started("inner"))), "the inner one has ended")
    box.assert_clean()


# A3, K2: the kernel knows who holds it
@pytest.mark.parametrize("inner", INNER)
def test_a_killed_inner_one_frees_the_gpu(box: Box, gate: Gate, inner: str) -> None:
    process = start(box, gate, "api", inner)
    give_back(process)
    waiter = box.wait_in_line("waiter", options=("--gpus", "2"))
    if inner == "run":
        (supervisor,) = children(process.pid)
        (keeper,) = children(supervisor)
        kill_9(supervisor, keeper)
        held(box)  # by the command
    kill_9(int(box.started("inner")))
    assert waiter.wait(LONGEST_S) == 0
    say(process)
    assert process.wait(LONGEST_S) == 0
    box.assert_clean()


# A3, K2
def test_stop_ends_what_holds_a_lease_that_its_owner_gave_back(box: Box, gate: Gate) -> None:
    process = start(box, gate, "api", "run")
    give_back(process)
    slicer(box, "stop", "-q", held(box).job)
    assert not box.snapshot().leases
    assert process.poll() is None
    say(process)
    assert process.wait(LONGEST_S) == 0
    box.assert_clean()


# A3: it may wait for this job, and that for it
def test_a_job_is_told_that_the_program_above_it_has_what_it_waits_for(box: Box) -> None:
    code = f"""
import slicer, subprocess
with slicer.acquire("outer", gpus=2) as lease:
    child = subprocess.Popen({[word for word in RUN if word != "--no-wait"]!r} + ["--", "true"], stderr=-1)
    while b"started this job holds it" not in (line := child.stderr.readline()):
        assert line, child.wait()
assert child.wait() == 0
"""
    process = subprocess.Popen([sys.executable, "-c", code], env=box.env, cwd=box.root)
    box.adopt(process)
    assert process.wait(LONGEST_S) == 0
    box.assert_clean()
