"""Hand-off: from a job's end to the first instruction of the next, side by side and by how many wait."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import product
from typing import Any

from bench import tools
from bench.chain import Stuck, Tool, build_mark, handoffs_ms

WAITERS = 10
ROUNDS = 8
WARM_UP = 1
# How long each job of a chain holds the slot. The kernel moves a process between cgroups under a lock that
# is cheap again within some 20 ms of its last use and takes an RCU grace period (8 to 16 ms) otherwise. Jobs
# that are worth a queue are of the first kind.
HOLDS_MS = {"after jobs of 100 ms": 100, "after jobs of no length": 0}
# How many wait, and how often that is set up in a pass. Only hand-offs with 80 % of them still waiting count.
# All jobs are of 100 ms: one waiter is always served on an idle machine, so the others must be too.
DEPTHS = {1: 20, 10: 6, 100: 1, 500: 1}
PASSES = 2
DEPTH_HOLD_MS = 100


def measure() -> dict[str, Any]:
    """Both tables' samples, in ms, and why a peer is missing."""
    build_mark()
    found, missing = side_by_side()
    depths, failed = by_depth()
    return {"side by side": found, "missing": missing, "by depth": depths, "failed": failed}


def side_by_side() -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """A short chain of each tool in turn, many rounds: samples by how long jobs hold, and by tool."""
    all_tools: list[Tool] = [tools.flock(), tools.slicer_run(), tools.slicer_exec(), tools.sem()]
    all_tools.append(tools.TaskSpooler())
    samples: dict[str, dict[str, list[float]]] = {
        length: {tool.name: [] for tool in all_tools} for length in HOLDS_MS
    }
    missing: dict[str, str] = {}
    for turn, length in product(range(WARM_UP + ROUNDS), HOLDS_MS):
        for tool in all_tools:
            if tool.name in missing:
                continue
            begin = time.monotonic()
            try:
                took = handoffs_ms(tool, WAITERS, HOLDS_MS[length])
            except (Stuck, OSError, subprocess.SubprocessError) as error:
                missing[tool.name] = f"{type(error).__name__}: {error}"
                say(f"{tool.name}: {missing[tool.name]}")
                continue
            if turn >= WARM_UP:
                samples[length][tool.name] += took
            elif turn == 0:
                say(f"{tool.name}: a chain takes {time.monotonic() - begin:.1f} s")
    return samples, missing


def by_depth() -> tuple[dict[str, dict[int, list[float]]], list[str]]:
    """The same for slicer and flock with ever more waiting, again in turns; and what did not work."""
    both = [tools.flock(), tools.slicer_run()]
    samples: dict[str, dict[int, list[float]]] = {tool.name: {depth: [] for depth in DEPTHS} for tool in both}
    failed: list[str] = []
    for _, (depth, rounds) in product(range(PASSES), DEPTHS.items()):
        for _, tool in product(range(rounds), both):
            try:
                samples[tool.name][depth] += handoffs_ms(tool, depth, DEPTH_HOLD_MS, max(1, depth // 5))
            except Stuck as error:
                failed.append(f"{tool.name} with {depth} waiting: {error}")
                say(failed[-1])
    return samples, failed


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
