"""The command line: a latency job and batch jobs on one GPU, with the lock and without."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path

import click

from bench.sharing import measures, planning, report, verdict
from bench.sharing.model import Parameters
from bench.sharing.running import Experiment
from bench.sharing.surroundings import environment
from slicer.cli import output, say
from slicer.cli.app import guarded
from slicer.errors import EX_OK, SlicerError, UsageError
from slicer.kernel.signals import INTERRUPTS, signal
from slicer.quantity import QuantityError, format_estimate, parse_duration, parse_mib
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from bench.sharing.model import Calibration, Environment, Run, Scenario

_EX_INCOMPLETE = 1
_PLOTS = (".png", ".svg")
_LONGEST_S = 3600.0
_ROOT = Path(__file__).resolve().parents[2]
_PATH = (str(_ROOT / "src"), str(_ROOT))
_PROGRAM = (sys.executable, "-P", "-m", "slicer")


def main(arguments: list[str]) -> int:
    """Run one command line (without the program's name); returns the exit code."""
    output.escape_unprintable()
    return guarded(
        lambda: command.main(arguments, prog_name="python -m bench.sharing", standalone_mode=False),
        as_json="--json" in arguments,
    )


# -- the command line -------------------------------------------------------------------------------------


def _seconds(ctx: click.Context, param: click.Parameter, text: str) -> float:
    try:
        found = parse_duration(text) / 1e6
    except QuantityError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if not 0 < found <= _LONGEST_S:
        raise click.BadParameter(f"expected a duration from 1us to 1h, not {text!r:.40}", ctx, param)
    return found


def _mib(ctx: click.Context, param: click.Parameter, text: str) -> int:
    try:
        return parse_mib(text)
    except QuantityError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _modes(ctx: click.Context, param: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text.strip() else ()


def _plot(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    if path is not None and not path.lower().endswith(_PLOTS):
        ends = " or ".join(_PLOTS)
        raise click.BadParameter(f"expected a name that ends in {ends}, not {path!r:.60}", ctx, param)
    return path


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\
\b
Examples:
  python -m bench.sharing                         about two minutes
  python -m bench.sharing --output out            table, JSON, plot, all samples
  python -m bench.sharing --modes yield,priority  only these, and the baselines
  python -m bench.sharing --batch-jobs 3          against three batch jobs

\b
The latency job serves a request each period: a copy to the GPU, some short
kernels, a copy back. The batch jobs launch kernels without a pause. Both do
a fixed amount of work a kernel. All are started by slicer run, first alone,
then together: unmanaged (--share off), and with each of the modes.

\b
Modes:
  yield       slicer's own: the turn passes on when another job waits
  priority    the same, and the latency job has --priority
  launches=N  sync and pass the turn on after N launches
  time=5ms    after so long
  each        around every launch
  skip=N      launches=10, but a batch job keeps the turn over N syncs

\b
Columns: a response counts from the moment when the request was due. /ALONE
and /UNMGD are P99 over that of the job alone, and unmanaged. SERVED is how
many requests it came to in time, if not all. WORK is kernels a second of all
batch jobs, ALONE its share of what they do alone, LEFT of what the latency
job leaves them. Each is the median of the repetitions, MAX the longest.
The form of --json is in bench/README.md, the meaning in docs/sharing.md.

\b
Exit codes:
    0  all was measured
    1  some scenarios have no figures, for the reasons said
  130  interrupted; what was measured until then is shown""",
)
@click.option("--gpu", metavar="GPU", default="", help="An index or UUID.  [default: where there is room]")
@click.option(
    "--duration", "duration_s", metavar="DURATION", default="2s", show_default=True, callback=_seconds,
    help="Measured time of each run.",
)  # fmt: skip
@click.option(
    "--warmup", "warmup_s", metavar="DURATION", default="300ms", show_default=True, callback=_seconds,
    help="Under the same load, before that.",
)  # fmt: skip
@click.option(
    "--repeats", metavar="N", type=click.IntRange(1, 100), default=3, show_default=True,
    help="Runs of each scenario, in turn with the others.",
)  # fmt: skip
@click.option(
    "--batch-jobs", metavar="N", type=click.IntRange(1, 16), default=1, show_default=True,
    help="How many batch jobs.",
)  # fmt: skip
@click.option(
    "--kernel-us", metavar="US", type=click.IntRange(1, 1_000_000), default=500, show_default=True,
    help="Length of a batch kernel.",
)  # fmt: skip
@click.option(
    "--kernel", type=click.Choice(["compute", "memory"]), default="compute", show_default=True,
    help="What a batch kernel is bound by.",
)  # fmt: skip
@click.option(
    "--depth", metavar="N", type=click.IntRange(1, 1000), default=32, show_default=True,
    help="Kernels that a batch job has in flight.",
)  # fmt: skip
@click.option(
    "--period", "period_s", metavar="DURATION", default="10ms", show_default=True, callback=_seconds,
    help="Between two requests.",
)  # fmt: skip
@click.option(
    "--request-kernels", metavar="N", type=click.IntRange(1, 10_000), default=20, show_default=True,
    help="Kernels of a request.",
)  # fmt: skip
@click.option(
    "--request-kernel-us", metavar="US", type=click.IntRange(1, 100_000), default=50, show_default=True,
    help="Length of each.",
)  # fmt: skip
@click.option(
    "--modes", metavar="LIST", default=",".join(planning.DEFAULT_MODES), show_default=True, callback=_modes,
    help='Of the lock, separated by commas; "" for none.',
)  # fmt: skip
@click.option(
    "--priority", metavar="N", type=click.IntRange(1, 100), default=10, show_default=True,
    help="Of the latency job in the mode priority.",
)  # fmt: skip
@click.option(
    "--vram", "vram_mib", metavar="SIZE", default="1G", show_default=True, callback=_mib,
    help="GPU memory that each job leases.",
)  # fmt: skip
@click.option("--plot", metavar="FILE", callback=_plot, help="Draw it: a name that ends in .png or .svg.")
@click.option("--output", "folder", metavar="DIR", help="Put table, JSON, plot and all samples there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing while it runs.")
@click.option("--backend", type=click.Choice(["auto", "systemd", "plain"]), default="auto", hidden=True)
def command(
    period_s: float, plot: str | None, folder: str | None, as_json: bool, quiet: bool, **said: Any
) -> int:
    """Measure what sharing a GPU does to a latency job and to batch jobs, on this machine's GPU.

    Nothing else should use the GPU meanwhile.
    """
    parameters = Parameters(period_ms=period_s * 1e3, **said)
    _check(parameters)
    scenarios = planning.scenarios(parameters)
    if folder is not None:
        report.make_folder(folder)
    if plot is not None:
        report.check_plot(plot)
    measured = _Measured(parameters, scenarios, -1 if quiet else 0)
    code = measured.measure()
    found = measured.result()
    if found is None:
        return code
    if folder is not None:
        report.write_folder(folder, found)
    if plot is not None:
        report.write_plot(plot, found)
    if as_json:
        output.show_json(report.as_json(found))
    else:
        output.show(report.lines(found), cuts=False)
    return code


def _check(parameters: Parameters) -> None:
    """Raises UsageError for what cannot be measured."""
    if os.environ.get("SLICER_SIM"):
        raise UsageError("simulated GPUs run no kernels", where="SLICER_SIM", hint="unset it")
    if parameters.duration_s * 1e3 < parameters.period_ms:
        raise UsageError("a run has not one request", where="--period", hint="it is longer than --duration")


def _environ() -> dict[str, str]:
    """What jobs are started with: in it Python finds this checkout's slicer and this program."""
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, (*_PATH, os.environ.get("PYTHONPATH"))))}


# -- measuring --------------------------------------------------------------------------------------------


class _Measured:
    """The runs, one after another, and what was measured so far."""

    def __init__(self, parameters: Parameters, scenarios: tuple[Scenario, ...], verbosity: int) -> None:
        self._parameters = parameters
        self._scenarios = scenarios
        self._verbosity = verbosity
        self._calibration: Calibration | None = None
        self._environment: Environment | None = None
        self._runs: list[Run] = []

    def measure(self) -> int:
        """Run all; returns the exit code. After an interrupt, what was measured stays. Raises SlicerError."""
        for signo in INTERRUPTS:
            if signal.getsignal(signo) != signal.SIG_IGN:  # nohup
                signal.signal(signo, _interrupt)
        try:
            with closing(Experiment(self._parameters, _PROGRAM, _environ())) as experiment:
                self._measure(experiment)
        except _Interrupted as interrupted:
            say.erase()  # and the terminal's ^C
            say.line("interrupted" if self._calibration is None else "interrupted: this is what was measured")
            return 128 + interrupted.signo
        say.erase()
        return EX_OK if all(not run.error for run in self._runs) else _EX_INCOMPLETE

    def _measure(self, experiment: Experiment) -> None:
        parameters, number = self._parameters, len(self._scenarios)
        takes = format_estimate(planning.estimate_s(parameters, number))
        runs = f"{counted(number, 'scenario')}, {counted(parameters.repeats, 'repetition')} of each"
        self._say(f"{runs}: about {takes}, in which nothing else should use the GPU")
        self._calibration = experiment.calibrate()
        experiment.gpu = self._calibration.uuid
        self._environment = environment(self._calibration)
        self._say_of(self._environment)
        ahead = planning.order(self._scenarios, parameters.repeats)
        began = time.monotonic()
        for done, scenario in enumerate(ahead):
            self._draw(scenario, done, len(ahead), began)
            self._runs.append(experiment.run(scenario, self._calibration))
            error = self._runs[-1].error
            if error:
                self._say(f"{scenario.name}: {error}")
                self._check_hope()

    def _check_hope(self) -> None:
        """Raises SlicerError if nothing has worked so far, and this is the third failure."""
        if len(self._runs) >= 3 and all(run.error for run in self._runs):
            raise SlicerError(f"no job runs as it should: {self._runs[-1].error}")

    def result(self) -> report.Found | None:
        """What there is to show; None: nothing."""
        if self._calibration is None or self._environment is None or not self._runs:
            return None
        rows = measures.rows(self._parameters, self._calibration, self._scenarios, self._runs)
        wanted = self._parameters.repeats * len(self._scenarios)
        good = sum(not run.error for run in self._runs)
        return report.Found(
            self._parameters, self._environment, self._calibration, rows, verdict.judge(rows),
            tuple(self._runs), good == wanted,
        )  # fmt: skip

    # -- telling ------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if self._verbosity >= 0:
            say.line(text)

    def _say_of(self, found: Environment) -> None:
        if found.is_fake:
            self._say(f"{found.gpu}: a fake driver, so these figures are of no GPU")
        if found.others:
            self._say(f"{counted(found.others, 'process')} of others on the GPU: they are in the figures")

    def _draw(self, scenario: Scenario, done: int, number: int, began: float) -> None:
        """Where it is, on a terminal; how long the rest takes is known from what is done."""
        if self._verbosity < 0 or not os.isatty(2):
            return
        left = ""
        if done:
            left = f", {format_estimate((time.monotonic() - began) / done * (number - done))} to go"
        say.draw(f"{done + 1}/{number} {scenario.name}{left}")


class _Interrupted(BaseException):
    """Ctrl-C, or a signal to end."""

    def __init__(self, signo: int) -> None:
        self.signo = signo


def _interrupt(signo: int, frame: FrameType | None) -> None:
    # A second one would keep the jobs from being ended.
    for each in INTERRUPTS:
        signal.signal(each, signal.SIG_IGN)
    raise _Interrupted(signo)
