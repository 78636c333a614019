"""``slicer queue`` beside its peers: jobs a second, an appended line's way to its start, 100,000 lines.

Runs inside the machine, and takes its figures from outside the queue: from the wall, from what the jobs note
themselves (``mark.c``), and from /proc. Standard library only.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.chain import MARK, SCRATCH, Stuck, build_mark, gaps_ms
from bench.tools import QUIET, TaskSpooler

SCOPE_JOBS, SCOPE_ROUNDS = 500, 3
XARGS = "xargs -P 4 -n 1 systemd-run --scope -q true"
SLICER_SCOPES = "slicer queue -p light -j 4 -q"
PLAIN_JOBS, PLAIN_ROUNDS = 50, 5
SLICER_PLAIN, TSP = "slicer queue --sim 4, plain", TaskSpooler.name
PLAIN = ["--backend", "plain"]
APPENDS, LONG_APPENDS = 50, 10
LINES, KINDS, EVENTS = 100_000, 1000, 300
FEW_LINES = "1,000 lines of one kind, to compare with"
DEADLINE_S = 60.0

_directories = iter(range(1 << 30))


def measure() -> dict[str, Any]:
    """All of it, by section."""
    build_mark()
    found: dict[str, Any] = {}
    for name, section in {"scopes": scopes, "plain": plain, "append": append, "many": many}.items():
        began = time.monotonic()
        found[name] = section()
        print(f"queue, {name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


# -- jobs a second -------------------------------------------------------------------------------------------


def scopes() -> dict[str, list[float]]:
    """Seconds for 500 jobs with real scopes, each tool in turn."""
    samples: dict[str, list[float]] = {XARGS: [], SLICER_SCOPES: []}
    _xargs(20)
    for _ in range(SCOPE_ROUNDS):
        samples[XARGS].append(_xargs(SCOPE_JOBS))
        lines = ["true"] * SCOPE_JOBS
        samples[SLICER_SCOPES].append(_slicer(_directory(), lines, "-p", "light", "-j", "4"))
    return samples


def _xargs(jobs: int) -> float:
    begin = time.perf_counter()
    subprocess.run(["sh", "-c", f"seq {jobs} | {XARGS}"], check=True, **QUIET)  # type: ignore[call-overload]
    return time.perf_counter() - begin


def _slicer(directory: Path, lines: Iterable[str], *options: str) -> float:
    with _queue(directory, lines, *options) as (queue, began):
        code = queue.wait(DEADLINE_S)
        took = time.monotonic_ns() / 1e9 - began
    if code:
        raise Stuck(f"slicer queue exited with {code}")
    return took


def plain() -> dict[str, list[float]]:
    """Without scopes: by tool the seconds until all have ended."""
    samples: dict[str, list[float]] = {SLICER_PLAIN: [], TSP: []}
    for _ in range(PLAIN_ROUNDS):
        directory = _directory()
        lines = [f"[vram=1G] {_mark(directory, number)}" for number in range(PLAIN_JOBS)]
        samples[SLICER_PLAIN].append(_slicer(directory, lines, *PLAIN, "--sim", "4"))
        _wait_for(directory, PLAIN_JOBS)
        samples[TSP].append(_task_spooler())
    return samples


def _task_spooler() -> float:
    """From the first submission (its server is up) to the last job's end."""
    tool, directory = TaskSpooler(4), _directory()
    tool.begin(directory)
    try:
        begin = time.monotonic_ns()
        tool.add([_mark(directory, number).split() for number in range(PLAIN_JOBS)])
        _wait_for(directory, PLAIN_JOBS)
    finally:
        tool.end()
    return (max(end for _, end in _lines(directory).values()) - begin) / 1e9


# -- from an appended line to its start ----------------------------------------------------------------------


def append() -> dict[str, list[float]]:
    """Milliseconds from just before a line is appended to its command's first instruction."""
    return {
        "systemd scopes": _appends(["-p", "light"], ["# none yet"], "", APPENDS),
        "plain, --sim 1": _appends([*PLAIN, "--sim", "1"], ["# none yet"], "[vram=1G] ", APPENDS),
    }


def _appends(options: list[str], lines: Iterable[str], prefix: str, times: int) -> list[float]:
    directory, pauses = _directory(), random.Random(1)
    with _queue(directory, lines, *options, "--watch"):
        stamps = {}
        for number in range(times + 1):  # the first one shows that the queue is up
            line = f"{prefix}{_mark(directory, number)}\n".encode()
            file = os.open(directory / "jobs", os.O_WRONLY | os.O_APPEND)
            stamps[number] = time.monotonic_ns()
            os.write(file, line)
            os.close(file)
            _wait_for(directory, number + 1)
            time.sleep(pauses.uniform(0.02, 0.12))
        ran = _lines(directory)
    return [(ran[f"job{number}"][0] - stamps[number]) / 1e6 for number in range(1, times + 1)]


# -- 100,000 lines -------------------------------------------------------------------------------------------


def many() -> dict[str, Any]:
    """By how they are: the seconds to the first start, the queue's memory, and from one's end to the next."""
    plain_sim = [*PLAIN, "--sim", "1", "-j", "1"]
    found: dict[str, Any] = {
        "one kind": _backlog(LINES, 1, plain_sim),
        f"{KINDS:,} kinds": _backlog(LINES, KINDS, plain_sim),
        "one kind, systemd scopes": _backlog(LINES, 1, ["--sim", "1", "-j", "1"]),
        FEW_LINES: _backlog(1000, 1, plain_sim),
    }
    # Two GPUs for each of the many, and one of the two is in use: they wait, and what is appended does not.
    blocked = ["[vram=1G] sleep 600", *(f"[gpus=2] true {number}" for number in range(LINES))]
    found["append"] = _appends([*PLAIN, "--sim", "2"], blocked, "[vram=1G] ", LONG_APPENDS)
    return found


def _backlog(lines: int, kinds: int, options: list[str]) -> dict[str, Any]:
    directory = _directory()
    jobs = (f"[vram={1000 + number % kinds}] {_mark(directory, number)}" for number in range(lines))
    with _queue(directory, jobs, *options) as (queue, began):
        _wait_for(directory, EVENTS)
        memory = Path(f"/proc/{queue.pid}/status").read_text()
    text = (directory / "log").read_text()
    first = min(start for start, _ in _lines(directory).values())
    return {
        "start_s": first / 1e9 - began,
        "rss_kib": _field(memory, "VmRSS"),
        "peak_kib": _field(memory, "VmHWM"),
        "gaps_ms": gaps_ms(text)[: EVENTS - 1],
    }


def _field(text: str, name: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name))


# -- what all need -------------------------------------------------------------------------------------------


@contextmanager
def _queue(
    directory: Path, lines: Iterable[str], *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A queue over these lines, with a ledger of its own, and when it was started (CLOCK_MONOTONIC seconds).

    Its end ends the queue with all that it still runs.
    """
    with (directory / "jobs").open("w") as file:
        file.writelines(f"{line}\n" for line in lines)
    env = {
        **os.environ,
        "SLICER_STATE_DIR": str(directory / "state"),
        "XDG_STATE_HOME": str(directory / "xdg"),
    }
    words = ["slicer", "queue", "jobs", "-q", *options]
    with (directory / "words").open("wb") as output:
        began = time.monotonic_ns() / 1e9
        queue = subprocess.Popen(
            words, cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield queue, began
    except Stuck as error:
        raise Stuck(f"{error}: {(directory / 'words').read_text()[-2000:]}") from error
    finally:
        _end(queue)


def _end(queue: subprocess.Popen[bytes]) -> None:
    for _ in range(2):  # asked twice, it ends what runs as well
        if queue.poll() is None:
            queue.send_signal(signal.SIGTERM)
            time.sleep(0.2)
    try:
        queue.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        queue.kill()
        queue.wait()


def _directory() -> Path:
    directory = SCRATCH / f"queue{next(_directories)}"
    directory.mkdir(parents=True)
    (directory / "log").touch()
    return directory


def _mark(directory: Path, number: int) -> str:
    return f"{MARK} {directory / 'log'} job{number} 0"


def _lines(directory: Path) -> dict[str, tuple[int, int]]:
    """Start and end (ns of CLOCK_MONOTONIC) of each job that has run."""
    words = [line.split() for line in (directory / "log").read_text().splitlines()]
    return {name: (int(start), int(end)) for name, start, end in words}


def _wait_for(directory: Path, jobs: int) -> None:
    log, deadline = directory / "log", time.monotonic() + DEADLINE_S
    while log.read_bytes().count(b"\n") < jobs:
        if time.monotonic() > deadline:
            ran = log.read_bytes().count(b"\n")
            raise Stuck(f"{ran} of {jobs} jobs ran within {DEADLINE_S:.0f} s")
        time.sleep(0.01)
