"""What `slicer run --share` costs a program that has its GPU for itself: while it starts, and for each call.

The driver is the tests' fake one, in which a kernel takes no time: what the library does is the difference
between two rows. (A launch of a real driver takes some microseconds in all of them.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.markdown import bar, figures, p99, table
from bench.tools import fake_gpus

SCRATCH = Path("/tmp/bench/sharing")
LOADS = 300
STARTED = {"`true`": ["/bin/true"], "`python -c pass`": [sys.executable, "-c", "pass"]}
LOAD_BAR_MS = 1.0

TURNS = 10
CALLS = {"launch": 2000, "memory": 200}
"""In each round; a figure is the mean of a round."""
ROUNDS = 20
VRAM = ["slicer", "run", "-q", "--vram", "8G"]
BARE, LOCK, CAP, BOTH = "without the library", "`--share lock`", "`--share cap`", "`--share both`"
ROWS: dict[str, tuple[list[str], list[str]]] = {
    # by its name, what runs the program, and the program's own last arguments
    BARE: ([*VRAM, "--share", "off", "--"], []),
    LOCK: ([*VRAM, "--share", "lock", "--"], []),
    CAP: ([*VRAM, "--share", "cap", "--"], []),
    BOTH: ([*VRAM, "--share", "both", "--"], []),
    "a System V semaphore around each call": ([*VRAM, "--share", "off", "--"], ["semaphore", "-"]),
    "flock around each call": ([*VRAM, "--share", "off", "--"], ["flock", str(SCRATCH / "lock")]),
}
LAUNCH_BAR_NS = 50.0


def measure() -> dict[str, Any]:
    """Seconds of a process's life, by program and library; nanoseconds of a call, by row."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return {"load": loads(), "calls": calls()}


def loads() -> dict[str, dict[str, list[float]]]:
    """One process of each in turn."""
    import slicer.share  # the machine's; the other sections do without

    library = Path(slicer.share.__file__).with_name("libslicer-share.so")
    bare = {"PATH": os.defpath}
    environments = {"bare": bare, "preloaded": {**bare, "LD_PRELOAD": str(library)}}
    found: dict[str, dict[str, list[float]]] = {name: {at: [] for at in environments} for name in STARTED}
    for _ in range(LOADS):
        for name, command in STARTED.items():
            for at, environ in environments.items():
                begin = time.perf_counter()
                os.waitpid(os.posix_spawn(command[0], command, environ), 0)
                found[name][at].append(time.perf_counter() - begin)
    return found


def calls() -> dict[str, dict[str, list[float]]]:
    """One program of each row in turn."""
    program, environ = built()
    found: dict[str, dict[str, list[float]]] = {what: {row: [] for row in ROWS} for what in CALLS}
    for _ in range(TURNS):
        for what, number in CALLS.items():
            for row, (before, after) in ROWS.items():
                words = [*before, str(program), what, str(number), str(ROUNDS), *after]
                done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}")
                found[what][row] += map(float, done.stdout.split())
    return found


def built() -> tuple[Path, dict[str, str]]:
    """The program, and the environment in which it finds the fake driver and slicer its GPU."""
    from tests.fake_cuda import build  # needs pytest, which the machine has

    program, environ = SCRATCH / "calls", {**os.environ, **fake_gpus(1)}
    source = Path(__file__).with_name("calls.c")
    subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", "-o", program, source, "-ldl"], check=True)
    fake = {"FAKE_CUDA_SHARED": str(SCRATCH / "gpus"), "FAKE_CUDA_KERNEL_US": "0"}
    libraries = f"{build(SCRATCH / 'cuda')}:{environ['LD_LIBRARY_PATH']}"
    return program, {**environ, **fake, "LD_LIBRARY_PATH": libraries}


def tables(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    return "\n\n".join([_load(found["load"]), *(_calls(what, rows) for what, rows in found["calls"].items())])


def _load(found: dict[str, dict[str, list[float]]]) -> str:
    rows, costs = [], []
    for name, at in found.items():
        bare, preloaded = (median(at[each]) * 1e3 for each in ("bare", "preloaded"))
        # Of pairs, one right after the other: a busy moment meets both.
        more = median(b - a for a, b in zip(at["bare"], at["preloaded"], strict=True)) * 1e3
        costs.append(more)
        rows.append([name, *figures((bare, preloaded, more), 3)])
    worst = max(costs)
    words = f"loading it takes less than {LOAD_BAR_MS:.0f} ms in a process without CUDA"
    return table(
        "### The preloaded library in a process that uses no GPU",
        ["", "median ms", "with the library", "more, by pairs"],
        rows,
        [bar(words, worst < LOAD_BAR_MS, f"{worst * 1e3:.0f} µs")],
    )


def _calls(what: str, found: dict[str, list[float]]) -> str:
    base = median(found[BARE])

    def row(name: str, values: list[float]) -> list[str]:
        return [name, *figures((median(values), p99(values), median(values) - base), 0)]

    title = {"launch": "A launch of a kernel", "memory": "An allocation of 1 MiB and its free"}[what]
    gated = median(found[LOCK]) - base
    words = f"the gate takes at most {LAUNCH_BAR_NS:.0f} ns of a launch that waits for nobody"
    bars = [bar(words, gated <= LAUNCH_BAR_NS, f"{gated:.0f} ns")] if what == "launch" else []
    return table(
        f"### {title}, over a fake driver",
        ["", "median ns", "p99", "more than without"],
        [row(name, values) for name, values in found.items()],
        bars,
    )
