"""Each section of `make bench` runs to its end, with next to nothing to do. Its figures mean nothing here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TINY = """
import json, shutil, sys
from bench import broker, burst, chain, handoff, inside, packing, queue, serve
shutil.rmtree("/tmp/bench", ignore_errors=True)
chain.START_DEADLINE_S = chain.HANDOFF_DEADLINE_S = 10.0  # of a peer that is not here
inside.ROUNDS = handoff.ROUNDS = handoff.PASSES = 1
inside.WARM_UP = handoff.WARM_UP = 0
handoff.WAITERS, handoff.DEPTHS = 2, {1: 1, 2: 1}
packing.JOBS, packing.SEEDS = 120, range(1, 2)
queue.SCOPE_JOBS = queue.PLAIN_JOBS = 4
queue.SCOPE_ROUNDS = queue.PLAIN_ROUNDS = 1
queue.APPENDS = queue.LONG_APPENDS = 2
queue.LINES, queue.KINDS, queue.EVENTS = 200, 10, 5
burst.measure.__defaults__ = (5,)
serve.ANSWERS = serve.STREAMS = serve.ROUNDS = serve.TOKENS = 2
broker.ROUNDS, broker.WARM_UP, broker.HANDOFF_ROUNDS, broker.WAITERS = 2, 0, 1, 2
broker.MANY, broker.SERVED, broker.ASKED, broker.COLD = 4, 3, 2, 2
inside.main([sys.argv[1]])
"""


@pytest.mark.systemd
@pytest.mark.with_ci
@pytest.mark.parametrize(
    "section", ["launch", "handoff", "queue", "burst", "packing", "serve", "broker"]
)
def test_a_section_runs_to_its_end(section: str) -> None:  # Q23
    command = [sys.executable, "-c", TINY, section]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/src", timeout=250)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[section]
