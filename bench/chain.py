"""A chain: jobs that queue for one lock or slot, and the time from one's end to the next's first instruction.

The first job holds until its gate opens; the others are started behind it, and the gate opens once all of
them sleep. What is measured is written by the jobs themselves (``mark.c``), after the fact, so nothing runs
beside them but what the tool itself runs.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Protocol

SCRATCH = Path("/tmp/bench")
MARK = SCRATCH / "mark"
# Long enough for any tool's own pauses, short enough that its start-up is not mistaken for them.
QUIET_S = 0.3
START_DEADLINE_S = 240.0
HANDOFF_DEADLINE_S = 60.0


class Stuck(Exception):
    """A tool did not do its part within the deadline."""


class Tool(Protocol):
    """One way to queue jobs for a single slot."""

    name: str

    def begin(self, directory: Path) -> None:
        """Get ready (a daemon), with the directory for whatever it leaves behind."""

    def add(self, jobs: Sequence[list[str]]) -> None:
        """Queue the jobs behind those that were added before."""

    def waiters(self) -> list[int]:
        """The processes that ought to sleep before the gate opens."""

    def end(self) -> None:
        """End everything that still runs."""


def build_mark() -> None:
    """Compile the job. It is static: a dynamic loader would be a third of a millisecond of each sample."""
    SCRATCH.mkdir(exist_ok=True)
    source = Path(__file__).with_name("mark.c")
    subprocess.run(["gcc", "-O2", "-static", "-o", MARK, source], check=True)


_directories = iter(range(1 << 30))


def handoffs_ms(tool: Tool, waiters: int, hold_ms: int, wanted: int | None = None) -> list[float]:
    """The first ``wanted`` hand-offs (default: all) of a chain with that many jobs behind the first one.

    Each job holds the slot for ``hold_ms``. Raises Stuck when the tool does not get there.
    """
    directory = SCRATCH / f"chain{next(_directories)}"
    directory.mkdir()
    log, gate = directory / "log", directory / "gate"
    log.touch()
    os.mkfifo(gate)
    wanted = wanted or waiters
    with _used(tool, directory):
        tool.add([[str(MARK), str(log), "first", "0", str(gate)]])
        writer = _wait_for_reader(gate, tool)
        try:
            tool.add([[str(MARK), str(log), f"job{number}", str(hold_ms)] for number in range(waiters)])
            _wait_until_quiet(tool)
        finally:
            os.close(writer)
        _wait_for_lines(log, 1 + wanted, tool)
    return gaps_ms(log.read_text())[:wanted]


@contextmanager
def _used(tool: Tool, directory: Path) -> Iterator[None]:
    try:
        tool.begin(directory)
        yield
    finally:
        tool.end()


def gaps_ms(text: str) -> list[float]:
    """From each job's end to the next one's start, out of their log. Raises Stuck when two ran at once."""
    runs = sorted((int(start), int(end)) for _, start, end in (line.split() for line in text.splitlines()))
    gaps = [(later[0] - earlier[1]) / 1e6 for earlier, later in pairwise(runs)]
    if any(gap < 0 for gap in gaps):
        raise Stuck(f"two jobs ran at once: {min(gaps):.3f} ms from one's end to the next one's start")
    return gaps


def _wait_for_reader(gate: Path, tool: Tool) -> int:
    """The gate's writing end, once the first job has opened it."""
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            time.sleep(0.01)
    raise Stuck(f"{tool.name}: the first job did not start within {START_DEADLINE_S:.0f} s")


def _wait_until_quiet(tool: Tool) -> None:
    """Until all waiting processes sleep and used no measurable time (ticks of 10 ms) for QUIET_S."""
    deadline = time.monotonic() + START_DEADLINE_S
    before: list[tuple[str, int]] = []
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        seen = [_state_and_ticks(pid) for pid in tool.waiters()]
        if seen == before and all(state == "S" for state, _ in seen):
            return
        before = seen
    raise Stuck(f"{tool.name}: its waiting processes did not come to rest within {START_DEADLINE_S:.0f} s")


def _state_and_ticks(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise Stuck(f"process {pid} ended instead of waiting") from None
    return fields[0], int(fields[11]) + int(fields[12])


def _wait_for_lines(log: Path, lines: int, tool: Tool) -> None:
    """Until so many jobs have run. A look costs 20 µs and there are ten a second."""
    least = lines * len("job0 1000000000 1000000000\n")
    deadline, size = time.monotonic() + HANDOFF_DEADLINE_S, 0
    while True:
        if (now := log.stat().st_size) != size:
            deadline, size = time.monotonic() + HANDOFF_DEADLINE_S, now
        if size >= least and log.read_text().count("\n") >= lines:
            return
        if time.monotonic() > deadline:
            ran = log.read_text().count("\n")
            raise Stuck(f"{tool.name}: {ran} of {lines} jobs ran, and none for {HANDOFF_DEADLINE_S:.0f} s")
        time.sleep(0.1)
