"""The jobs as processes: each is ``slicer run … -- CLIENT``, told over its stdin; it answers on stdout."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.sharing import planning
from bench.sharing.model import BatchRun, Calibration, LatencyRun, Run, Sharing
from slicer.errors import EX_TEMPFAIL, SlicerError
from slicer.record import replace
from slicer.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.sharing.model import Parameters, Scenario

_CLIENT = str(Path(__file__).with_name("client.py"))
_LEAD_NS = 50_000_000  # until all have read that they are to start
_TERM_S, _KILL_S = 15.0, 5.0


class ExperimentError(SlicerError):
    """A job did not do what it was started for."""

    kind = "experiment"


class _Job:
    """A job that was started, in a session of its own: Ctrl-C is for us, and we end the jobs in our order."""

    def __init__(self, kind: str, command: Sequence[str], environ: Mapping[str, str], outcome: Path) -> None:
        self.kind = kind
        self.outcome = outcome
        self._said = b""
        with outcome.with_suffix(".err").open("wb") as err:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
                start_new_session=True, bufsize=0,
            )  # fmt: skip

    def tell(self, data: dict[str, Any]) -> None:
        """One line for it. That it is gone shows elsewhere."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(data) + "\n").encode())
        except BrokenPipeError:
            pass

    def hear(self, name: str, until_s: float) -> dict[str, Any]:
        """Its next event, which has to be that one. Raises ExperimentError."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._said:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise ExperimentError(f"it did not get so far in time ({name})", where=self._where)
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    self.end(0)
                    raise self._why()
                self._said += data
        line, _, self._said = self._said.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "error":
            raise ExperimentError(one_line(event["message"]), where=self._where, hint=one_line(event["hint"]))
        return event

    def end(self, *signals: int) -> None:
        """Let it end: nothing more comes on its stdin. Each signal is sent before a wait (0: none is)."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for signo in signals:
            if signo and self._process.poll() is None:
                self._process.send_signal(signo)
            try:
                self._process.wait(_KILL_S if signo == signal.SIGKILL else _TERM_S)
                return
            except subprocess.TimeoutExpired:
                continue

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def _where(self) -> str:
        return f"the {self.kind} job"

    def _why(self) -> ExperimentError:
        """Why it ended, from what it said on stderr."""
        last = self.outcome.with_suffix(".err").read_text(errors="replace").strip().splitlines()[-1:]
        text = last[0].removeprefix("slicer: ") if last else f"it ended with {self._process.returncode}"
        if self._process.returncode == EX_TEMPFAIL:
            text = "the GPU has no room for it now (see slicer status)"
        return ExperimentError(one_line(text), where=self._where)

    def sharing(self) -> Sharing:
        """What the outcome says of the job's sharing. Raises ExperimentError."""
        try:
            found = json.loads(self.outcome.read_bytes()).get("sharing") or {}
        except OSError as error:
            raise ExperimentError("slicer wrote no outcome", where=self._where) from error
        fields = {name: found.get(name, 0) for name in Sharing.__annotations__}
        made = Sharing(**{**fields, "troubles": tuple(found.get("troubles", ()))})
        is_unused = made.processes == 0 and not made.troubles
        return replace(made, troubles=("no process of the job used the library",)) if is_unused else made


class Experiment:
    """Runs scenarios one after another. Leaves no process and no file behind."""

    def __init__(
        self, parameters: Parameters, program: Sequence[str], environ: Mapping[str, str],
        client: Callable[[str, str], tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        """``program``: how slicer is started. ``environ``: of all jobs; its PYTHONPATH has slicer and bench.

        ``client``: the command of a job of that kind and load. The calibration chooses the GPU of all others.
        """
        self._gpu = parameters.gpu
        self._client = client or (lambda kind, load: (sys.executable, "-P", _CLIENT, kind, load))
        self._parameters = parameters
        self._program = tuple(program)
        self._environ = dict(environ)
        self._folder = tempfile.TemporaryDirectory(prefix="slicer-bench-")
        self._jobs: list[_Job] = []

    def close(self) -> None:
        """End what still runs."""
        self._end_all(signal.SIGTERM, signal.SIGKILL)
        self._folder.cleanup()

    def calibrate(self) -> Calibration:
        """Find out what the GPU is, by a job that is alone. Raises ExperimentError."""
        try:
            self._start("calibrate", None, planning.load(self._parameters, "calibrate"))
            (event,) = self._hear("calibrated")
            found = Calibration(**{name: event[name] for name in Calibration.__annotations__})
        finally:
            self._end_all(0, signal.SIGTERM, signal.SIGKILL)
        self._gpu = found.uuid
        return found

    def run(self, scenario: Scenario, found: Calibration) -> Run:
        """One repetition. What goes wrong is the run's error."""
        parameters = self._parameters
        kinds = ["latency"] * scenario.latency + ["batch"] * (parameters.batch_jobs * scenario.batch)
        try:
            for kind in kinds:
                self._start(kind, scenario, planning.load(parameters, kind, found))
            self._hear("ready")
            start = time.monotonic_ns() + _LEAD_NS
            since = start + round(parameters.warmup_s * 1e9)
            until = since + round(parameters.duration_s * 1e9)
            for job in self._jobs:
                job.tell({"start_ns": start, "from_ns": since, "until_ns": until})
            results = self._hear("result")
            jobs = list(self._jobs)
            self._end_all(0, signal.SIGTERM, signal.SIGKILL)
            return _collected(scenario, jobs, results)
        except ExperimentError as error:
            return Run(scenario.name, None, (), error=str(error))
        finally:
            self._end_all(signal.SIGTERM, signal.SIGKILL)

    def _start(self, kind: str, scenario: Scenario | None, load: dict[str, Any]) -> None:
        outcome = Path(self._folder.name, f"{kind}-{len(self._jobs)}.json")
        options = planning.run_options(self._parameters, scenario, kind, self._gpu)
        client = self._client(kind, json.dumps(load))
        command = [*self._program, "run", *options, "--outcome", str(outcome), "--", *client]
        environ = {**self._environ, **planning.variables(scenario, kind)}
        self._jobs.append(_Job(kind, command, environ, outcome))

    def _hear(self, name: str) -> list[dict[str, Any]]:
        """That event of each job. Raises ExperimentError."""
        until_s = time.monotonic() + planning.slowest_s(self._parameters)
        return [job.hear(name, until_s) for job in self._jobs]

    def _end_all(self, *signals: int) -> None:
        for job in self._jobs:
            job.end()
        for job in self._jobs:
            job.end(*signals)
            job.close()
        self._jobs.clear()


def _collected(scenario: Scenario, jobs: Sequence[_Job], results: Sequence[dict[str, Any]]) -> Run:
    latency: LatencyRun | None = None
    batch = []
    for job, result in zip(jobs, results, strict=True):
        sharing = job.sharing() if scenario.share != "off" else None
        if job.kind == "batch":
            batch.append(BatchRun(result["done"], result["seconds"], sharing))
        elif result["responses_ns"]:
            responses = tuple(each / 1e6 for each in result["responses_ns"])
            latency = LatencyRun(result["due"], responses, sharing)
        else:
            raise ExperimentError("it came to none of its requests in time", where="the latency job")
    return Run(scenario.name, latency, tuple(batch))
