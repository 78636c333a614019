"""What the soak's commands wrote down about themselves, read as it grows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Run:
    """One job as its commands logged it. Times in ns of CLOCK_MONOTONIC."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    command: int = 0  # pids
    keeper: int = 0
    child: int = 0


class Logbook:
    """The log, by job."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._rest = b""
        self.runs: dict[str, Run] = {}
        self.violations: list[str] = []

    def close(self) -> None:
        os.close(self._fd)

    def read(self) -> int:
        """Take in what is new; how many jobs have started since the last look."""
        before = sum(1 for run in self.runs.values() if run.starts)
        while data := os.read(self._fd, 1 << 16):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line.decode())
        return sum(1 for run in self.runs.values() if run.starts) - before

    def run(self, name: str) -> Run:
        return self.runs.get(name) or Run()

    def _take(self, line: str) -> None:
        word, name, pid, parent, at_ns = line.split()
        run = self.runs.setdefault(name, Run())
        if word == "start":
            run.starts.append(int(at_ns))
            run.command, run.keeper = int(pid), int(parent)
        elif word == "end":
            run.ends.append(int(at_ns))
        elif word == "child":
            run.child = int(pid)
        else:
            self.violations.append(line)


def most_at_once(runs: list[tuple[int, int, int]]) -> int:
    """The most units held at any moment, by (start, end, units) of the runs."""
    changes = sorted([(end, -units) for _, end, units in runs] + [(start, units) for start, _, units in runs])
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
