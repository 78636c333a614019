"""What was found: a table, JSON, and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.markdown import table
from bench.sharing import figures, plot, verdict
from bench.sharing.model import FAKE
from slicer.cli.common import NoLibrary
from slicer.record import as_dict, record
from slicer.share import details
from slicer.text import visible
from slicer.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bench.sharing.figures import Row
    from bench.sharing.model import Calibration, Parameters, Run, Scenario

_FAKE = "FAKE DRIVER: these figures are of no GPU."
_COLUMNS = ("", "P50 ms", "P90", "P99", "MAX", "/ALONE", "/UNMGD", "SERVED", "WORK/S", "ALONE", "LEFT")


@record
class Found:
    """All that was found."""

    parameters: Parameters
    calibration: Calibration
    scenarios: tuple[Scenario, ...]
    runs: tuple[Run, ...]
    date: str  # ISO 8601, UTC

    @property
    def is_fake(self) -> bool:
        return self.calibration.device.startswith(FAKE)

    @property
    def rows(self) -> tuple[Row, ...]:
        return figures.rows(self.parameters, self.calibration, self.scenarios, self.runs)


def text(found: Found) -> str:
    """The table, what it is of, and the verdict."""
    what, gpu, rows = found.parameters, found.calibration, found.rows
    kernels = f"{what.request_kernels} kernels of {what.request_kernel_us} us"
    notes = [
        f"Latency job: a request each {what.period_ms:g} ms: {kernels}, {gpu.request_ms:.3g} ms in all.",
        f"Batch jobs: {what.batch_jobs}; {what.kernel} kernels of {what.kernel_us} us, {what.depth} ahead.",
        f"Repetitions: {what.repeats} of {what.duration_s:g} s.",
        *(f"{row.name}: {error}" for row in rows for error in row.errors),
    ]
    for trouble in dict.fromkeys(each for row in rows for each in row.troubles):
        names = ", ".join(row.name for row in rows if trouble in row.troubles)
        notes.append(f"The lock was not, or not wholly, applied ({details.trouble(trouble)}): {names}")
    said = verdict.judge(rows).text
    notes.append(f"{_FAKE} On a GPU this would mean: {said}" if found.is_fake else said)
    return table(_title(found), _COLUMNS, map(_cells, rows), [visible(each) for each in notes])


def _title(found: Found) -> str:
    gpu = found.calibration
    where = f"{gpu.device} ({gpu.memory_mib} MiB, CUDA {gpu.cuda})"
    return visible(f"{where}, slicer {__version__}, {found.date}")


def _cells(row: Row) -> list[str]:
    """A row of the table as text; "-" where there is no figure."""
    latency, batch = row.latency, row.batch
    shown: list[str] = [row.name, *["-"] * 10]
    if latency is not None:
        times = latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.max_ms
        of = (_share(each, ".2f") for each in (latency.of_alone, latency.of_unmanaged))
        shown[1:8] = [*(f"{each:.3g}" for each in times), *of, f"{latency.served:.0%}"]
    if batch is not None:
        shown[8:] = [f"{batch.per_s:.0f}", _share(batch.of_alone, ".0%"), _share(batch.of_left, ".0%")]
    return shown


def _share(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def document(found: Found) -> str:
    """As JSON; bench/README.md describes it."""
    rows = found.rows
    said = verdict.judge(rows)
    wanted = found.parameters.repeats * len(found.scenarios)
    made = {
        "schema": "slicer.bench.sharing", "version": 2, "is_fake": found.is_fake,
        "is_complete": sum(not run.error for run in found.runs) == wanted, "slicer": __version__,
        "date": found.date, "parameters": plain(found.parameters), "calibration": plain(found.calibration),
        "scenarios": plain(rows), "verdict": {**as_dict(said), "scenario": said.scenario or None},
    }  # fmt: skip
    return json.dumps(made, indent=2)


def plain(value: Any) -> Any:
    """In JSON's types."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if hasattr(value, "__fields__"):
        return {name: plain(each) for name, each in as_dict(value).items()}
    return value


def write_folder(path: Path, found: Found) -> None:
    """Write table.txt, report.json, runs.jsonl and, with matplotlib, sharing.svg."""
    (path / "table.txt").write_text(text(found) + "\n")
    (path / "report.json").write_text(document(found) + "\n")
    (path / "runs.jsonl").write_text("".join(f"{json.dumps(plain(run))}\n" for run in found.runs))
    try:
        picture = plot.picture(found.runs, found.rows, f"{_title(found)} {_FAKE if found.is_fake else ''}")
        (path / "sharing.svg").write_bytes(picture)
    except NoLibrary as error:
        print(f"no plot: {error}")
