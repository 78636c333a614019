"""``python -m bench.sharing``: a latency job and batch jobs on one GPU, with the lock and without."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import closing
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "src"))  # it measures the slicer of the checkout that it is in

from bench.sharing import planning, report  # noqa: E402
from bench.sharing.model import FAKE, Calibration, Parameters, Run  # noqa: E402
from bench.sharing.running import Experiment  # noqa: E402
from slicer.errors import SlicerError, UsageError  # noqa: E402
from slicer.quantity import QuantityError, parse_duration, parse_mib  # noqa: E402

_ABOUT = """\
The latency job serves a request each period: a copy to the GPU, some short kernels, a copy back. The batch
jobs launch kernels without a pause. All are started by slicer run, first alone, then together: unmanaged
(--share off), and with each of the modes: yield (slicer's own), priority (the same, and the latency job has
--priority), launches=N, time=DURATION, each, skip=N (launches=10, but N syncs keep a batch job's turn).
docs/sharing.md describes the columns, bench/README.md the JSON. Exit code 1: some have no figures."""


def parsed(argv: list[str]) -> argparse.Namespace:
    """Ends the program where the words are not right."""
    parser = argparse.ArgumentParser(
        "python -m bench.sharing", description=_ABOUT, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    option = parser.add_argument
    option("--gpu", default="", help="an index or UUID; else where there is room")
    option("--duration", dest="duration_s", type=seconds, default="2s", help="measured time of each run")
    option("--warmup", dest="warmup_s", type=seconds, default="300ms", help="under load, before that")
    option("--repeats", type=int, default=3, help="runs of each scenario, in turn with the others")
    option("--batch-jobs", type=int, default=1, help="how many")
    option("--kernel-us", type=int, default=500, help="length of a batch kernel")
    option("--kernel", choices=["compute", "memory"], default="compute", help="what it is bound by")
    option("--depth", type=int, default=32, help="kernels that a batch job has in flight")
    option("--period", dest="period_ms", type=milliseconds, default="10ms", help="between two requests")
    option("--request-kernels", type=int, default=20, help="of one request")
    option("--request-kernel-us", type=int, default=50, help="length of each")
    option("--modes", type=words, default=",".join(planning.DEFAULT_MODES), help="of the lock; '' for none")
    option("--priority", type=int, default=10, help="of the latency job in the mode priority")
    option("--vram", dest="vram_mib", type=mib, default="1G", help="that each job leases")
    option("--output", metavar="DIR", help="put table, JSON, plot and all samples there")
    option("--json", action="store_true", help="print one JSON document")
    option("--backend", default="auto", help=argparse.SUPPRESS)
    said = parser.parse_args(argv)
    if said.duration_s * 1e3 < said.period_ms:
        parser.error("--period: a run has not one request")
    return said


def seconds(text: str) -> float:
    try:
        return parse_duration(text) / 1e6
    except QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def milliseconds(text: str) -> float:
    return seconds(text) * 1e3


def mib(text: str) -> int:
    try:
        return parse_mib(text)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def main(argv: list[str]) -> int:
    """Measure, and show what was found; returns the exit code."""
    said = vars(parsed(argv))
    folder, as_json = said.pop("output"), said.pop("json")
    try:
        return measured(Parameters(**said), folder, as_json=as_json)
    except SlicerError as error:
        say(str(error))
        return error.exit_code


def measured(parameters: Parameters, folder: str | None, *, as_json: bool) -> int:
    """The same, for parsed words. Raises SlicerError."""
    if os.environ.get("SLICER_SIM"):
        raise UsageError("simulated GPUs run no kernels", where="SLICER_SIM", hint="unset it")
    scenarios = planning.scenarios(parameters)
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    path = ":".join(filter(None, (str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH"))))
    program, environ = [sys.executable, "-P", "-m", "slicer"], {**os.environ, "PYTHONPATH": path}
    ahead = planning.order(scenarios, parameters.repeats)
    runs: list[Run] = []
    calibration: Calibration | None = None
    code = 0
    with closing(Experiment(parameters, program, environ)) as experiment:
        try:
            say(f"{len(ahead)} runs: about {planning.estimate_s(parameters, len(scenarios)):.0f} s")
            calibration = experiment.calibrate()
            if calibration.device.startswith(FAKE):
                say(f"{calibration.device}: a fake driver, so these figures are of no GPU")
            for scenario in ahead:
                runs.append(experiment.run(scenario, calibration))
                if runs[-1].error:
                    say(f"{scenario.name}: {runs[-1].error}")
                    code = 1
        except KeyboardInterrupt:
            code = 130
            say("interrupted: this is what was measured")
    if calibration is not None and runs:
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        found = report.Found(parameters, calibration, scenarios, tuple(runs), date)
        if folder is not None:
            report.write_folder(Path(folder), found)
        print(report.document(found) if as_json else report.text(found))
    return code


def say(text: str) -> None:
    print(f"bench.sharing: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
