"""``slicer queue`` as a test's user starts it, and what it tells with ``--json``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from slicer.model import Outcome
from slicer.outcome import history
from tests.patience import DEADLINE_S, LONGEST_S, until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import SYSTEM_HISTORY, Done, Gate, Job, Slicer

Told = dict[str, Any]


@contextmanager
def wide_open(gate: Gate) -> Iterator[None]:
    """Whoever comes to the gate goes through, however many and whenever."""
    fd = os.open(gate.path, os.O_RDWR)
    try:
        yield
    finally:
        os.close(fd)


class Queue(Job):
    """A running ``slicer queue``."""

    def events(self, kind: str, no: int | None = None) -> list[Told]:
        """The events of a kind so far, of one job or of all."""
        whole = [line for line in self.stdout.splitlines(keepends=True) if line.endswith("\n")]
        told = [json.loads(line) for line in whole]
        return [each for each in told if each["event"] == kind and (no is None or each["job"]["no"] == no)]

    def told(self, kind: str, no: int | None = None, times: int = 1, deadline_s: float = DEADLINE_S) -> Told:
        """Wait until it has told of this so often; the last one."""

        def find() -> Told | None:
            found = self.events(kind, no)
            return found[times - 1] if len(found) >= times else None

        try:
            return until(find, f"{times} x {kind!r} of job {no}", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it said {self.stdout!r} and {self.stderr!r}") from None

    def crash(self) -> None:
        """kill -9."""
        self.kill(signal.SIGKILL)
        self.popen.wait()


class Queues:
    """Starts queues of one jobs file, ``jobs.txt``, in the directory of a test's `slicer`."""

    def __init__(self, slicer: Slicer, via: tuple[str, ...] = (), name: str = "jobs") -> None:
        self._slicer = slicer
        self._via = via
        self._made = 0
        self.name = name
        self.file = slicer.path(f"{name}.txt")
        self.log_dir = slicer.path(f"{name}.logs")

    def write(self, *lines: str) -> None:
        self.file.write_text("".join(f"{line}\n" for line in lines))

    def start(self, *options: str, env: Mapping[str, str] | None = None) -> Queue:
        """``slicer queue jobs.txt --json OPTIONS``, in a session of its own."""
        self._made += 1
        base = self._slicer.path(f"{self.name}-{self._made}")
        command = ("slicer", "queue", str(self.file), "--json", "--log-dir", str(self.log_dir), *options)
        with base.with_suffix(".out").open("wb") as out, base.with_suffix(".err").open("wb") as err:
            popen = subprocess.Popen(
                [*self._via, *command], env=self._slicer.environ(**(env or {})), stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True, cwd=self._slicer.directory,
            )  # fmt: skip
        queue = Queue(popen, base, self._slicer.ledger)
        self._slicer.jobs.append(queue)
        return queue

    def run(
        self, *options: str, env: Mapping[str, str] | None = None, deadline_s: float = LONGEST_S
    ) -> Done:
        """A queue from start to end."""
        return self.start(*options, env=env).end(deadline_s)

    def journal(self, event: str) -> list[Told]:
        """The records of one kind in the queue's own journal."""
        lines = (self.log_dir / "journal.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["event"] == event]

    def job_id(self, no: int, attempt: int = 1) -> str:
        """The id of an attempt, once it is in the journal."""

        def find() -> str | None:
            if not (self.log_dir / "journal.jsonl").exists():
                return None
            keys = [record["key"] for record in self.journal("seen") if record["no"] == no]
            begun = [record for record in self.journal("begun") if record["key"] in keys]
            return next((record["job"] for record in begun if record["attempts"] == attempt), None)

        return until(find, f"attempt {attempt} of job {no}")

    def scope(self, no: int, attempt: int = 1) -> str:
        """The scope of an attempt, once its command runs: "started" is told when the keeper has its order."""
        unit = f"slicer-{self.job_id(no, attempt)}.scope"
        until(lambda: _commands_in(unit), f"a command runs in {unit}")
        return unit

    def log(self, no: int, attempt: int = 1) -> str:
        """What the attempt printed; "" before its keeper has made the file."""
        name = f"job{no:04d}.log" if attempt == 1 else f"job{no:04d}.{attempt}.log"
        path = self.log_dir / name
        return path.read_text(errors="replace") if path.exists() else ""

    def exit_codes(self) -> dict[int, int]:
        """Of the jobs that have ended, by their numbers; each has ended once."""
        numbers = {record["key"]: record["no"] for record in self.journal("seen")}
        ended = self.journal("ended")
        assert len(ended) == len({record["key"] for record in ended}), ended
        return {numbers[record["key"]]: record["exit_code"] for record in ended}

    def outcomes(self, path: str = SYSTEM_HISTORY) -> list[Outcome]:
        """What history has of this queue's attempts, in the order in which they began."""
        ids = [record["job"] for record in self.journal("begun")]
        return [outcome for job in ids for outcome in history.read(path, job=job)]


def _commands_in(unit: str) -> list[int]:
    """The processes in it that are no keeper's, or no longer."""
    inside = [pid for pid in processes.pids() if processes.cgroup(pid).endswith(f"/{unit}")]
    return [pid for pid in inside if processes.read(pid, "comm") not in (b"", b"slicer-keeper\n")]


def cgroup_of(unit: str, prefix: tuple[str, ...] = ("systemctl",)) -> str:
    """Its control group; "" when it has none."""
    return systemctl.show(unit, "ControlGroup", prefix=prefix)["ControlGroup"]


def is_gone(unit: str, prefix: tuple[str, ...] = ("systemctl",)) -> bool:
    return unit not in systemctl.scopes(prefix)


def no_process_says(text: str) -> bool:
    """Whether nobody runs whose command line has this text."""
    wanted = text.encode()
    return not any(wanted in processes.read(pid, "cmdline") for pid in processes.pids() if pid != os.getpid())
