"""A ring: one pytest run in one machine, or in processes of this host, seen from the host test by test."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic  # not what a test in the first thread sets time.monotonic to
from typing import Any

from tests.machines import recipe
from tests.machines.host import MachineError, Unavailable, tail
from tests.machines.inner import RECORD_START, REPORT_FD
from tests.machines.machine import Command, Machine
from tests.machines.namespace import NamespaceMachine
from tests.machines.qemu import QemuMachine
from tests.machines.workers import Workers


@dataclass(frozen=True)
class Target:
    """Where a test runs: a kind of machine and a suite."""

    kind: str
    suite: str

    def __str__(self) -> str:
        return "workers of this host" if self.kind == HOST else f"{self.suite} {self.kind} machine"

    def machine(self) -> Machine:
        suite = recipe.SUITES[self.suite]
        if self.kind == HOST:
            return Workers(suite)
        return QemuMachine(suite) if self.kind == "qemu" else NamespaceMachine(suite)


@dataclass(frozen=True)
class Limits:
    """Deadlines of a ring, in seconds."""

    test_s: int
    silence_s: float
    total_s: float


HOST = "host"
LIMITS = {
    HOST: Limits(test_s=360, silence_s=400, total_s=2400),
    "namespace": Limits(test_s=360, silence_s=400, total_s=2400),
    # Emulated: 10 to 20 times slower than the host.
    "qemu": Limits(test_s=720, silence_s=800, total_s=2400),
}

# The checkout is read-only in there. Properties have had all their examples on this host.
_INNER_ENV = {"HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis", "SLICER_TEST_QUICK": "1"}
_FORWARDED_ENV = ("CI", "PYTEST_ADDOPTS")


class Ring:
    """Runs `node_ids` in `target`: `run` does it, in any thread; `reports` waits for one test's results.

    With `workers`, that many processes do it side by side (pytest-xdist).
    """

    def __init__(
        self, target: Target, node_ids: Sequence[str], options: Sequence[str], workers: int = 0
    ) -> None:
        self.target = target
        self._node_ids = node_ids
        self._options = [*options, f"--numprocesses={workers}", "--dist=worksteal"] if workers else options
        self._reports: dict[str, list[dict[str, Any]]] = {}
        self._finished: set[str] = set()
        self._running: list[str] = []
        self._over: MachineError | None = None
        self._changed = threading.Condition()
        self._machine: Machine | None = None
        self._parser = RecordParser(self._take)
        self._aborted: str | None = None
        self._marks_s: list[float] = []  # begun, booted, over

    def run(self) -> None:
        """Boot the machine, run the tests, end it. Never raises: `reports` tells what went wrong."""
        over: MachineError
        self._marks_s.append(monotonic())
        try:
            if self._aborted is None:
                self._machine = self.target.machine()
                with self._machine as machine:
                    self._marks_s.append(monotonic())
                    over = MachineError(f"pytest in the {self.target} {self._test(machine)}")
            else:
                over = MachineError(self._aborted)
        except Unavailable as reason:
            over = Unavailable(f"no {self.target}: {reason}")
        except MachineError as error:
            over = MachineError(f"the {self.target} failed: {self._aborted or error}")
        except Exception as error:  # a bug in here is every waiting test's failure, not a thread's silent end
            where = traceback.extract_tb(error.__traceback__)[-1]
            over = MachineError(f"the {self.target} failed: {error!r} at {where.filename}:{where.lineno}")
        self._marks_s.append(monotonic())
        with self._changed:
            self._over = over
            self._changed.notify_all()

    def times(self) -> str:
        """How long it took, for those who want it to take less."""
        match self._marks_s:
            case [begun, booted, over]:
                took = f"booted in {booted - begun:.0f} s, ran for {over - booted:.0f} s"
            case _:
                took = "not run to its end"
        return f"{len(self._finished)} of {len(self._node_ids)} tests, {took}"

    def reports(self, node_id: str) -> list[dict[str, Any]]:
        """The test's serialised reports, once it has finished.

        Raises Unavailable if there was no machine, MachineError if the run ended before the test did.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None or node_id in self._finished)
            if node_id in self._finished:
                return self._reports[node_id]
            assert self._over is not None
            if isinstance(self._over, Unavailable):
                raise self._over
            raise MachineError(self._obituary(node_id))

    def ends_itself(self) -> bool:
        """Whether its tests are done, and what is left is for pytest to clean up on this host."""
        return self.target.kind == HOST and len(self._finished) == len(self._node_ids)

    def abort(self, why: str) -> None:
        """End the machine and with it the run."""
        self._aborted = why
        machine = self._machine
        if machine is not None:
            machine.__exit__()

    def _obituary(self, node_id: str) -> str:
        """Why this test has no result; the whole story for the one that ran at the end, or if none did."""
        if self._running and node_id not in self._running:
            return f"not run: {str(self._over).splitlines()[0]}, while {', '.join(self._running)} ran"
        text = tail(self._parser.text(), lines=120)
        return f"{self._over}\nThe last lines of its output:\n{text}" if text else str(self._over)

    def _test(self, machine: Machine) -> str:
        """Run pytest to its end and tell how it ended."""
        if self._aborted is not None:  # while it booted
            raise MachineError(self._aborted)
        limits = LIMITS[self.target.kind]
        heard = [monotonic()]

        def hear(chunk: bytes) -> None:
            heard[0] = monotonic()
            self._parser.feed(chunk)

        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, heard, limits.silence_s), daemon=True)
        watch.start()
        try:
            result = machine.execute(self._command(limits), timeout_s=limits.total_s, on_output=hear)
        finally:
            done.set()
            watch.join()
        self._parser.feed(result.stderr.encode())
        return (
            f"was not done after {limits.total_s:g} s"
            if result.timed_out
            else f"ended with {result.returncode}"
        )

    def _command(self, limits: Limits) -> Command:
        is_here = self.target.kind == HOST
        python = sys.executable if is_here else "/opt/slicer/bin/python"
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider"]
        pytest += ["--continue-on-collection-errors"]
        # A test that hangs ends the run with the stacks of all threads.
        pytest += ["-o", f"faulthandler_timeout={limits.test_s}", "-o", "faulthandler_exit_on_timeout=true"]
        # Thousands of node ids are too many for a command line, and for the journal, which notes it.
        # A worker reads the file anew. Should the shell be killed, the kernel kills pytest.
        listed = 'f=$(mktemp) && trap "rm $f" EXIT && cat >$f'
        script = f'{listed} && setpriv --pdeathsig KILL -- "$@" @$f {REPORT_FD}>&1 2>&1 </dev/null'
        forwarded = {name: os.environ[name] for name in _FORWARDED_ENV if name in os.environ}
        return Command(
            ["sh", "-c", script, "sh", *pytest, *self._options],
            env={**forwarded, **({} if is_here else _INNER_ENV), "SLICER_TEST_REPORTS": "1"},
            input="".join(f"{node_id}\n" for node_id in self._node_ids).encode(),
        )

    def _watch(self, done: threading.Event, heard: list[float], silence_s: float) -> None:
        while not done.wait(1.0):
            if monotonic() - heard[0] > silence_s:
                self.abort(f"silent for {silence_s:g} s")
                return

    def _take(self, record: dict[str, Any]) -> None:
        with self._changed:
            if "started" in record:
                self._running.append(record["started"])
            elif "finished" in record:
                self._running.remove(record["finished"])
                self._finished.add(record["finished"])
                self._changed.notify_all()
            else:
                self._reports.setdefault(record["report"]["nodeid"], []).append(record["report"])


class RecordParser:
    """Parts a stream into records (see inner.py), given to `take`, and all else, kept as text."""

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
        self._take = take
        self._rest = b""
        self._text = bytearray()

    def feed(self, chunk: bytes) -> None:
        self._rest += chunk
        while self._rest:
            before, start, after = self._rest.partition(RECORD_START.encode())
            self._text += before
            record, end, rest = after.partition(b"\n")
            if start and not end:  # the rest of the record is to come
                self._rest = start + after
                return
            if start:
                with suppress(json.JSONDecodeError):  # cut by a crash: the test then counts as not finished
                    self._take(json.loads(record))
            self._rest = rest

    def text(self) -> str:
        return self._text.decode(errors="replace")
