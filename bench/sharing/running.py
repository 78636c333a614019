"""The jobs as processes: each is ``slicer run … -- CLIENT``, told over its stdin; it answers on stdout."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time

from bench.sharing import planning
from bench.sharing.model import BatchRun, Calibration, LatencyRun, Run, Sharing
from slicer.errors import EX_TEMPFAIL, SlicerError
from slicer.record import record, replace
from slicer.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from bench.sharing.model import Parameters, Scenario

_CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "client.py")
_READ_BYTES = 1 << 16
_KEPT_BYTES = 1 << 14  # of what a job says on stderr
_MOST_BYTES = 64 << 20  # of what it answers
_LEAD_NS = 50_000_000  # until all have read that they are to start
_TERM_S, _KILL_S = 15.0, 5.0
_NOT_ACTIVE = "not-active"  # beside the words of the outcome: no process of the job used the library


class ExperimentError(SlicerError):
    """A job did not do what it was started for."""

    kind = "experiment"


@record
class Ask:
    """A job to start. ``kind``: calibrate, latency or batch."""

    kind: str
    number: int
    command: tuple[str, ...]  # the whole of it, slicer first
    environ: dict[str, str]
    outcome: str  # the path that slicer writes it to


class _Job:
    """A job that was started, and what it said so far."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.events: list[dict[str, Any]] = []
        self.said = b""  # on stderr, its end
        self.code: int | None = None
        self._line = b""
        theirs, self._to = os.pipe()
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((theirs, out, err))]
        try:
            # A session of its own: Ctrl-C is for us, and we end the jobs in our order.
            self.pid = os.posix_spawn(
                ask.command[0], ask.command, ask.environ, file_actions=actions, setsid=True, setsigmask=()
            )
        except OSError as error:
            self.close()
            raise ExperimentError(f"cannot be started: {error.strerror}", where=ask.command[0]) from error
        finally:
            for fd in (theirs, out, err):
                os.close(fd)
        self._pidfd = os.pidfd_open(self.pid)
        self.open = {self.out, self.err}

    def tell(self, data: dict[str, Any]) -> None:
        """One line for it. That it is gone shows elsewhere."""
        try:
            os.write(self._to, (json.dumps(data) + "\n").encode())
        except BrokenPipeError:
            pass

    def read(self, fd: int) -> None:
        """Take what it has written there."""
        data = os.read(fd, _READ_BYTES)
        if not data:
            self.open.discard(fd)
        elif fd == self.err:
            self.said = (self.said + data)[-_KEPT_BYTES:]
        else:
            *lines, self._line = (self._line + data).split(b"\n")
            if len(self._line) > _MOST_BYTES:
                raise ExperimentError("a job's answer has no end", where=self.ask.kind)
            self.events += [_event(line) for line in lines]

    def event(self, name: str) -> dict[str, Any] | None:
        return next((event for event in self.events if event.get("event") == name), None)

    def end(self, *signals: tuple[int, float]) -> None:
        """Wait for its end; each signal is sent before so many seconds of waiting."""
        for signo, wait_s in signals:
            if self.code is not None:
                return
            if signo:
                signal.pidfd_send_signal(self._pidfd, signo)
            waiting = select.poll()
            waiting.register(self._pidfd, select.POLLIN)
            if waiting.poll(wait_s * 1000):
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        for name in ("_to", "out", "err", "_pidfd"):
            fd = getattr(self, name, -1)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def leave(self) -> None:
        """Let it end: it reads on stdin that nothing more comes."""
        if self._to >= 0:
            os.close(self._to)
            self._to = -1

    def why(self) -> ExperimentError:
        """Why it did not do what it was to."""
        where = f"the {self.ask.kind} job"
        error = self.event("error")
        if error is not None:
            text = str(error.get("message", ""))
            return ExperimentError(one_line(text), where=where, hint=one_line(str(error.get("hint", ""))))
        last = self.said.decode("utf-8", "replace").strip().splitlines()[-1:]
        text = last[0].removeprefix("slicer: ") if last else f"it ended with {self.code}"
        if self.code == EX_TEMPFAIL:
            text = f"the GPU has no room for it now ({_holder(text)})"
        return ExperimentError(one_line(text), where=where)


def _event(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _holder(text: str) -> str:
    """Who is in the way, from the line of JSON of ``slicer run --no-wait``."""
    holder = _event(text.encode()).get("holder")
    return f"{holder.get('name')} has it" if isinstance(holder, dict) else "see slicer status"


def _own_client(kind: str, load: str) -> tuple[str, ...]:
    return sys.executable, "-P", _CLIENT, kind, load


class Experiment:
    """Runs scenarios one after another. Leaves no process and no file behind."""

    def __init__(
        self, parameters: Parameters, program: Sequence[str], environ: Mapping[str, str],
        client: Callable[[str, str], tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        """``program``: how slicer is started. ``environ``: of all jobs; its PYTHONPATH has slicer and bench.

        ``client``: the command of a job of that kind and load.

        :attr:`gpu` is the one that jobs get; set it to the calibration's.
        """
        self.gpu = parameters.gpu
        self._client = client or _own_client
        self._parameters = parameters
        self._program = tuple(program)
        self._environ = dict(environ)
        self._folder = tempfile.TemporaryDirectory(prefix="slicer-bench-")
        self._jobs: list[_Job] = []

    def close(self) -> None:
        """End what still runs."""
        self._end_all(by_force=True)
        self._folder.cleanup()

    def calibrate(self) -> Calibration:
        """Find out what the GPU is, by a job that is alone. Raises ExperimentError."""
        began = time.monotonic()
        load = planning.calibration_load(self._parameters)
        try:
            job = self._start(self._ask("calibrate", 0, load, None))
            self._wait("calibrated", planning.slowest_s(self._parameters))
            found = job.event("calibrated") or {}
            took_s = time.monotonic() - began
            return Calibration(
                **{name: found[name] for name in Calibration.__annotations__ if name != "started_s"},
                started_s=took_s,
            )
        except KeyError as error:
            raise ExperimentError(f"the calibration has no {error}") from error
        finally:
            self._end_all()

    def run(self, scenario: Scenario, found: Calibration) -> Run:
        """One repetition. What goes wrong is the run's error."""
        parameters = self._parameters
        try:
            if scenario.latency:
                load = planning.latency_load(parameters, found)
                self._start(self._ask("latency", 0, load, scenario))
            for number in range(parameters.batch_jobs if scenario.batch else 0):
                load = planning.batch_load(parameters, found)
                self._start(self._ask("batch", number, load, scenario))
            slowest_s = planning.slowest_s(parameters)
            self._wait("ready", slowest_s)
            self._go()
            self._wait("result", slowest_s)
            jobs = list(self._jobs)
            self._end_all()
            return _collected(scenario, jobs)
        except ExperimentError as error:
            return Run(scenario.name, None, (), error=str(error))
        finally:
            self._end_all(by_force=True)

    def _ask(self, kind: str, number: int, load: dict[str, Any], scenario: Scenario | None) -> Ask:
        outcome = os.path.join(self._folder.name, f"{kind}-{number}.json")
        options = planning.run_options(self._parameters, scenario, kind, self.gpu)
        client = self._client(kind, json.dumps(load))
        command = (*self._program, "run", *options, "--outcome", outcome, "--", *client)
        return Ask(kind, number, command, {**self._environ, **planning.variables(scenario, kind)}, outcome)

    def _start(self, ask: Ask) -> _Job:
        self._jobs.append(_Job(ask))
        return self._jobs[-1]

    def _go(self) -> None:
        start = time.monotonic_ns() + _LEAD_NS
        since = start + round(self._parameters.warmup_s * 1e9)
        until = since + round(self._parameters.duration_s * 1e9)
        for job in self._jobs:
            job.tell({"start_ns": start, "from_ns": since, "until_ns": until})

    def _wait(self, name: str, limit_s: float) -> None:
        """Until all jobs have said so. Raises ExperimentError if one cannot any more, or does not in time."""
        until = time.monotonic() + limit_s
        while True:
            waits = [job for job in self._jobs if job.event(name) is None]
            for job in waits:
                if job.event("error") or job.out not in job.open:
                    job.end((0, _TERM_S))
                    raise job.why()
            if not waits:
                return
            left_s = until - time.monotonic()
            if left_s <= 0:
                where = f"the {waits[0].ask.kind} job"
                raise ExperimentError(f"it did not get so far ({name}) in {limit_s:.0f} s", where=where)
            self._read(left_s)

    def _read(self, timeout_s: float) -> None:
        waiting = select.poll()
        readers: dict[int, Callable[[int], None]] = {}
        for job in self._jobs:
            for fd in job.open:
                waiting.register(fd, select.POLLIN)
                readers[fd] = job.read
        for fd, _ in waiting.poll(timeout_s * 1000):
            readers[fd](fd)

    def _end_all(self, *, by_force: bool = False) -> None:
        """Let the jobs end, or end them."""
        for job in self._jobs:
            job.leave()
        for job in self._jobs:
            first = () if by_force else ((0, _TERM_S),)
            job.end(*first, (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S))
            job.close()
        self._jobs.clear()


def _collected(scenario: Scenario, jobs: Sequence[_Job]) -> Run:
    latency: LatencyRun | None = None
    batch = []
    for job in jobs:
        result = job.event("result") or {}
        sharing = _sharing(job.ask.outcome) if scenario.share != "off" else None
        if job.ask.kind == "latency":
            responses = tuple(each / 1e6 for each in result["responses_ns"])
            if not responses:
                raise ExperimentError("it came to none of its requests in time", where="the latency job")
            latency = LatencyRun(result["due"], responses, sharing)
        else:
            batch.append(BatchRun(result["done"], result["seconds"], sharing))
    return Run(scenario.name, latency, tuple(batch))


def _sharing(path: str) -> Sharing:
    """What the outcome says of the job's sharing. Raises ExperimentError."""
    try:
        with open(path, "rb") as file:
            found = _event(file.read()).get("sharing")
    except OSError as error:
        raise ExperimentError(f"slicer wrote no outcome: {error.strerror}", where=path) from error
    if not isinstance(found, dict):
        found = {}
    made = Sharing(
        **{name: found.get(name, 0) for name in Sharing.__annotations__ if name != "troubles"},
        troubles=tuple(map(str, found.get("troubles", ()))),
    )
    if made.processes == 0 and not made.troubles:
        return replace(made, troubles=(_NOT_ACTIVE,))
    return made
