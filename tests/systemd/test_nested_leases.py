"""A lease of a program and what runs inside it, on a real systemd and at the broker (A3, K2)."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import LONGEST_S, until
from tests.process.test_nested_leases import INNER, OUTER, PRELUDE
from tests.systemd.helpers.broker import Broker, leaving_nothing
from tests.systemd.helpers.jobs import Gate, Slicer
from tests.systemd.helpers.users import User

pytest_plugins = [
    "tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures", "tests.fake_nvml",
]  # fmt: skip
pytestmark = pytest.mark.systemd

RUN = ("slicer", "run", "-q", "--gpus", "1", "--no-wait")
ROOT: tuple[str, ...] = ()
REPO = Path(__file__).parents[2]


class Program:
    """A program with a lease, once the inner one holds it, too."""

    def __init__(self, slicer: Slicer, gate: Gate, inner: str, via: tuple[str, ...], **env: str) -> None:
        self.log = slicer.path("log")
        self.log.touch()
        self.log.chmod(0o666)
        code = PRELUDE.format(run=RUN, gate=str(gate), inner=INNER[inner]) + textwrap.dedent(OUTER["api"])
        path = f"PYTHONPATH={REPO / 'src'}"
        self.process = subprocess.Popen(
            [*via, "env", path, sys.executable, "-c", code], env=slicer.environ(LOG=str(self.log), **env),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        until(lambda: self.log.read_text() or self.process.poll() is not None, "the inner one runs")
        assert self.process.poll() is None

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def give_back(self) -> None:
        self.say()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ended\n"

    def end(self) -> None:
        self.say()
        assert self.process.wait(LONGEST_S) == 0
        for pipe in (self.process.stdin, self.process.stdout):  # the inner one may have stdout, too
            assert pipe is not None
            pipe.close()


def held(slicer: Slicer, via: tuple[str, ...], **env: str) -> int:
    """How many GPUs status shows as held."""
    jobs = json.loads(slicer.command("status", "--json", via=via, **env).stdout)["jobs"]
    return sum(len(job["gpus"]) for job in jobs)


@pytest.mark.parametrize("inner", INNER)
def test_the_gpu_is_held_until_the_inner_one_ends(slicer: Slicer, fake_nvml: FakeNvml, inner: str) -> None:
    gate = slicer.gate()
    program = Program(slicer, gate, inner, ROOT, **fake_nvml.env)
    program.give_back()
    assert held(slicer, ROOT, **fake_nvml.env) == 1
    assert slicer.is_busy("-q", "--gpus", "2", env=fake_nvml.env)
    waits = slicer.start("--gpus", "2", "--", "true", env=fake_nvml.env)
    waits.said("waiting for")
    gate.open()
    assert waits.end().code == 0
    program.end()


class TestBroker:
    @pytest.fixture
    def slicer(self, public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
        yield from leaving_nothing(public_slicer, broker)

    @pytest.mark.parametrize("dies", [False, True])
    @pytest.mark.parametrize("inner", INNER)
    def test_the_gpu_is_held_until_the_inner_one_ends(
        self, slicer: Slicer, broker: Broker, ann: User, ben: User, inner: str, dies: bool
    ) -> None:
        gate = slicer.gate()
        program = Program(slicer, gate, inner, ann.via)
        program.give_back()
        if dies:
            program.end()
        broker.kill()
        assert held(slicer, ben.via) == 1
        waits = slicer.start("-g2", "--", "true", via=ben.via)
        waits.said("waiting for")
        gate.open()
        assert waits.end().code == 0
        if not dies:
            program.end()
