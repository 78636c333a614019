"""What `slicer run --share` costs a program that has its GPU for itself: while it starts, and for each call.

The driver is the tests' fake one, in which a kernel takes no time: what the library does is the difference
between two rows. (A launch of a real driver takes some microseconds in all of them.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from bench.markdown import bar, figures, p99, table
from bench.tools import fake_gpus

SCRATCH = Path("/tmp/bench/preload")
LOADS = 300
STARTED = {"`true`": ["/bin/true"], "`python -c pass`": [sys.executable, "-c", "pass"]}
LOAD_BAR_MS = 1.0

TURNS = 10
CALLS = {"launch": 2000, "memory": 200, "context": 2000}
"""In each round; a figure is the mean of a round."""
ROUNDS = 20
BARE, LOCK, IDLE = "without the library", "`--share lock`", "`--share lock`, beside an idle job with it"
ROWS = {
    # by its name: what is shared, and the program's own last arguments
    BARE: ("off", []),
    LOCK: ("lock", []),
    IDLE: ("lock", []),
    "`--share cap`": ("cap", []),
    "`--share both`": ("both", []),
    "a System V semaphore around each call": ("off", ["semaphore", "-"]),
    "flock around each call": ("off", ["flock", str(SCRATCH / "lock")]),
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
    for turn in range(LOADS):
        for name, command in STARTED.items():
            # The second one finds the caches warm: so each is the second one half of the time.
            for at, environ in sorted(environments.items(), reverse=turn % 2 == 0):
                begin = time.perf_counter()
                os.waitpid(os.posix_spawn(command[0], command, environ), 0)
                found[name][at].append(time.perf_counter() - begin)
    return found


def calls() -> dict[str, dict[str, list[float]]]:
    """One program of each row in turn. RuntimeError: one fails, or the library did not do its part."""
    program, environ = built()
    found: dict[str, dict[str, list[float]]] = {what: {} for what in CALLS}
    for _ in range(TURNS):
        for what in CALLS:
            for row, (share, last) in (ROWS if what != "context" else {BARE: ROWS[BARE]}).items():
                with idle(program, environ) if row == IDLE else nullcontext():
                    found[what].setdefault(row, []).extend(one(share, [str(program), what], last, environ))
    return found


def job(share: str, outcome: str = "outcome") -> list[str]:
    """What runs a program."""
    options = ["--vram", "8G", "--share", share, "--outcome", str(SCRATCH / outcome)]
    return ["slicer", "run", "-q", *options, "--"]


def one(share: str, program: list[str], last: list[str], environ: dict[str, str]) -> list[float]:
    """The rounds of one program."""
    what = program[-1]
    words = [*job(share), *program, str(CALLS[what]), str(ROUNDS), *last]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    counter, by = ("gated", "lock") if what == "launch" else ("allocations", "cap")
    if share in (by, "both"):
        counted = json.loads((SCRATCH / "outcome").read_text())["sharing"]
        if counted[counter] < CALLS[what] * ROUNDS:
            raise RuntimeError(f"{' '.join(words)}: less was {counter} than called: {counted}")
    return list(map(float, done.stdout.split()))


@contextmanager
def idle(program: Path, environ: dict[str, str]) -> Iterator[None]:
    """A job that has used the GPU, and may again."""
    command = [*job("lock", "idle"), str(program), "idle"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as beside:
        assert beside.stdin is not None
        assert beside.stdout is not None
        if beside.stdout.readline() != b"idle\n":
            raise RuntimeError("the idle job did not start")
        yield
        beside.stdin.close()


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
    calls = found["calls"]
    asked = median(calls["context"][BARE])
    gated = median(calls["launch"][LOCK]) - median(calls["launch"][BARE]) - asked
    words = f"the gate takes at most {LAUNCH_BAR_NS:.0f} ns of a launch that waits for nobody"
    lines = [
        f"The gate asks the driver which context is current. The fake one takes {asked:.0f} ns for that.",
        "",
        bar(f"without these, {words}", gated <= LAUNCH_BAR_NS, f"{gated:.0f} ns"),
    ]
    return "\n\n".join(
        [
            _load(found["load"]),
            _calls("A launch of a kernel", calls["launch"], lines),
            _calls("An allocation of 1 MiB and its free", calls["memory"], []),
        ]
    )


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


def _calls(title: str, found: dict[str, list[float]], lines: list[str]) -> str:
    base = median(found[BARE])
    return table(
        f"### {title}, over a fake driver",
        ["", "median ns", "p99", "more than without"],
        [
            [name, *figures((median(values), p99(values), median(values) - base), 0)]
            for name, values in found.items()
        ],
        lines,
    )
