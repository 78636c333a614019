"""A box for tests of ``slicer queue``: its jobs file, log directory, events, and a witness of each start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slicer.kernel import proc
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.outcome import history
from slicer.queue.model import JobState
from slicer.queue.state import folding
from slicer.queue.state.journal import Journal
from slicer.state import simulated
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, kill, kill_9, state_dir, state_of, stays_in_poll

# "job NAME [SECONDS [EXIT]]": notes its start and its end in a file that slicer knows nothing of, each with
# one write. "hold NAME [EXIT]": the same, but runs until the test says "let NAME end".
_JOB = """#!/bin/sh
echo "start $1 $$" >>"$LOG"
sleep "${2:-0}"
echo "end $1 $$" >>"$LOG"
exit "${3:-0}"
"""
_HOLD = """#!/bin/sh
echo "start $1 $$" >>"$LOG"
[ -p "$GATES/$1" ] || mkfifo "$GATES/$1"
read said <"$GATES/$1"
echo "end $1 $$" >>"$LOG"
exit "${2:-0}"
"""


class Running:
    """A queue that was started. ``pid`` is the queue's own."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._out = out
        self._err = err

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8", "surrogateescape")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8", "surrogateescape")

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """What it said with ``--json``; only these kinds, if any are named."""
        whole = self.out.rpartition("\n")[0].splitlines()
        found = [json.loads(line) for line in whole]
        return [event for event in found if not kinds or event["event"] in kinds]

    def event(self, kind: str, **said: object) -> dict[str, Any]:
        """Wait for an event of that kind, with these words."""

        def look() -> dict[str, Any]:
            for event in self.events(kind):
                if all(event.get(name) == value for name, value in said.items()):
                    return event
            if self.process.poll() is not None:
                pytest.fail(f"no {kind}: it ended with {self.process.returncode}\n{self.out}\n{self.err}")
            return {}

        return until(look, f"{kind} {said or ''}\n{self.out}\n{self.err}")

    def wait(self, deadline_s: float = LONGEST_S) -> int:
        """Its exit code."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the queue did not end\n{self.out}\n{self.err}")

    def send(self, signo: int) -> None:
        kill(self.pid, signo)

    def kill(self) -> None:
        """kill -9, and not before it is really gone."""
        kill_9(self.pid)
        self.process.wait()


class QueueBox:
    """One jobs file and log directory, in a box."""

    def __init__(self, box: Box, gpus: int = 2, sizes: str = "24G") -> None:
        self.box = box
        self.root = box.root
        self.file = box.root / "jobs.txt"
        self.logs = box.root / "logs"
        self.gpus = gpus
        self.sizes = sizes
        self.gates = box.root / "gates"
        self.gates.mkdir()
        box.env["GATES"] = str(self.gates)
        for name, script in (("job", _JOB), ("hold", _HOLD)):
            path = box.root / "bin" / name
            path.write_text(script)
            path.chmod(0o755)
        simjob = box.root / "bin" / "simjob"
        simjob.write_text(f'#!/bin/sh\nexec "{SLICER[0]}" {SLICER[1]} "{SLICER[2]}" simjob "$@"\n')
        simjob.chmod(0o755)
        self._started: list[Running] = []

    # -- the jobs file -----------------------------------------------------------------------------------

    def write(self, *lines: str) -> None:
        """Save the jobs file as a careful program does: whole, by a rename."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.rename(self.file)

    def append(self, *lines: str) -> None:
        with self.file.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def config(self, text: str) -> None:
        """What SLICER_CONFIG says."""
        path = self.root / "config.toml"
        path.write_text(text)
        self.box.env["SLICER_CONFIG"] = str(path)

    # -- queues ------------------------------------------------------------------------------------------

    def start(
        self, *options: str, env: Mapping[str, str] | None = None, file: str | None = None,
        json: bool = True, prefix: tuple[str, ...] = (), **popen: Any,
    ) -> Running:  # fmt: skip
        """Start ``slicer queue jobs.txt``; options that are given twice are the last."""
        number = len(self._started)
        out, err = self.root / f"out{number}", self.root / f"err{number}"
        command = [
            *self.box.prefix, *prefix, *SLICER, "queue", file or self.file.name, "--backend", "plain",
            "--sim", str(self.gpus), "--sim-vram", self.sizes, "--poll", "0.1", "--log-dir", self.logs.name,
            *(("--json",) if json else ()), *options,
        ]  # fmt: skip
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command, env={**self.box.env, **(env or {})}, cwd=self.root,
                **{"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr, **popen},
            )  # fmt: skip
        self.box.adopt(process)
        self._started.append(Running(process, out, err))
        return self._started[-1]

    def run(self, *options: str, **more: Any) -> Running:
        """Run the queue to its end."""
        queue = self.start(*options, **more)
        queue.wait()
        return queue

    def asleep(self, queue: Running) -> None:
        """Wait until the queue has nothing to do but to wait, and does not look all the time, either."""

        until(lambda: stays_in_poll(queue.pid), f"the queue sleeps\n{queue.out}")

    # -- what happened -----------------------------------------------------------------------------------

    def journal(self) -> dict[str, JobState]:
        """What the journal says of each job, by its command."""
        records = Journal.peek(str(self.logs)) or ()
        return {state.command: state for state in folding.fold(records).values()}

    def statuses(self) -> dict[str, tuple[str, int]]:
        """How each job ended: status and exit code, by its command."""
        return {command: (state.status, state.exit_code) for command, state in self.journal().items()}

    def starts(self) -> Counter[str]:
        """How often each job was started, says the witness."""
        return Counter(line.split()[1] for line in self.box.lines() if line.startswith("start "))

    def started(self, *names: str) -> None:
        """Wait until these jobs run."""
        until(lambda: set(names) <= set(self.starts()), f"{names} run")

    def ended(self, *names: str) -> None:
        """Wait until the commands of these jobs say that they end."""
        until(lambda: all(f"end {name} " in "\n".join(self.box.lines()) for name in names), f"{names} end")

    def let(self, *names: str) -> None:
        """Let the holding jobs of these names end."""
        for name in names:
            path = self.gates / name

            def try_to_open(path: Path = path) -> int:
                try:
                    return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError:
                    return 0

            fd = until(try_to_open, f"{name} waits at its gate")
            os.write(fd, b"\n")
            os.close(fd)

    def log(self, command: str) -> str:
        """What the job's last attempt printed."""
        return (self.logs / self.journal()[command].log).read_text(errors="surrogateescape")

    def keeper(self, name: str) -> int:
        """The keeper of the job of that name, which runs."""
        pid = int(self.box.started(name))
        while Path(f"/proc/{pid}/comm").read_text() != "slicer-keeper\n":
            stat = Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat[stat.rindex(")") + 2 :].split()[1])
            assert pid > 1, f"{name} has no keeper"
        return pid

    def slicers(self, name: str) -> tuple[int, int]:
        """The job's supervisor and keeper."""
        keeper = self.keeper(name)
        return proc.parent(keeper), keeper

    def named(self, comm: str) -> list[int]:
        """The processes that are called so: "slicer-keeper", "slicer-run"."""
        found = []
        for pid in self.box.processes():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == f"{comm}\n":
                    found.append(pid)
        return found

    def snapshot(self) -> Snapshot:
        """The simulated machine's ledger as slicer sees it; cleans up after dead owners."""
        machine = self.box.state / f"sim-{simulated.spec_of(self.gpus, self.sizes)}"
        ledger = Ledger(state_dir(machine), pytest.fail)
        try:
            return ledger.snapshot()
        finally:
            ledger.close()

    def assert_clean(self) -> None:
        """Nothing runs, nothing is held, nothing lies about (files of killed owners go with a look)."""
        until(lambda: not self.box.processes(), f"no process is left; {self.box.describe()}", 5.0)
        assert self.snapshot() == Snapshot((), ())
        kept = ("lock", "version", history.KEPT)  # outcomes stay until somebody looks at the history
        assert [name for name in self.box.state_files() if not name.endswith(kept)] == []
        if (self.logs / "attempts").exists():
            assert os.listdir(self.logs / "attempts") == []

    # -- faults ------------------------------------------------------------------------------------------

    def faults(self, *points: str) -> dict[str, str]:
        """What makes a queue, and the keepers of its jobs, stop at these points."""
        return {"SLICER_FAULTS": f"{self.box.state}:{','.join(points)}"}

    def stopped(self) -> list[int]:
        return [pid for pid in self.box.processes() if state_of(pid) == "T"]

    def go_on(self) -> None:
        """Let all go on who stand still at a point, now and from now on."""
        self.box.state.with_suffix(".go").touch()
        for pid in self.stopped():
            kill(pid, signal.SIGCONT)

    def arm(self, *points: str) -> None:
        """Stop at these points from now on, whoever was started with :meth:`faults`."""
        path = self.box.state.with_suffix(".armed")
        path.with_suffix(".new").write_text(" ".join(points))
        path.with_suffix(".new").rename(path)
