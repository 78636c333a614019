"""What was found: a table, JSON, and files."""

from __future__ import annotations

import json
import os

from slicer.cli import output
from slicer.cli.output import Column
from slicer.columns import BAD, FAINT, GOOD, WARNING, Line
from slicer.errors import SlicerError
from slicer.outcome.outcome_file import put
from slicer.quantity import format_mib
from slicer.record import as_dict, record
from slicer.share import words
from slicer.text import counted, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from bench.sharing.measures import Row
    from bench.sharing.model import Calibration, Environment, Parameters, Run
    from bench.sharing.verdict import Verdict

SCHEMA = "slicer.bench.sharing"
_FAKE = "FAKE DRIVER: these figures are of no GPU."
_STYLES = {"helps": GOOD, "costs": WARNING, "as-good": "", "worse": BAD, "unknown": FAINT}
_ALL_SERVED = 0.995  # what is shown as 100%
_DIGITS = 6  # of figures in JSON: no clock here is finer
_NOT_ACTIVE = "no process of the job used the library"


@record
class Found:
    """All that was found. ``is_whole``: every repetition has figures."""

    parameters: Parameters
    environment: Environment
    calibration: Calibration
    rows: tuple[Row, ...]
    verdict: Verdict
    runs: tuple[Run, ...]
    is_whole: bool


# -- for people -------------------------------------------------------------------------------------------


def lines(found: Found) -> list[Line]:
    """The table, what it is of, and the verdict."""
    made = [Line(visible(text)) for text in _heading(found)]
    if found.environment.is_fake:
        made.append(Line(_FAKE, WARNING))
    made += [Line(""), *_table(found.rows), Line("")]
    made += [Line(visible(text), WARNING) for text in _remarks(found)]
    if found.environment.is_fake:
        return [*made, Line(f"On a GPU this would mean: {found.verdict.text}", FAINT)]
    return [*made, Line(found.verdict.text, _STYLES[found.verdict.kind])]


def _heading(found: Found) -> list[str]:
    where, what = found.environment, found.parameters
    driver = f", driver {where.driver}" if where.driver else ""
    gpu = f"{where.gpu} ({format_mib(where.memory_mib)}{driver}, CUDA {where.cuda})"
    request = f"each {what.period_ms:g} ms: {what.request_kernels} kernels of {what.request_kernel_us} us"
    batch = f"{what.kernel} kernels of {what.kernel_us} us, {what.depth} in flight"
    return [
        f"{gpu}, slicer {where.slicer}, {where.date}",
        f"Latency job: a request {request}, {found.calibration.request_ms:.3g} ms of GPU time.",
        f"{counted(what.batch_jobs, 'batch job')}: {batch}.",
        f"{counted(what.repeats, 'repetition')} of {what.duration_s:g} s; responses in ms.",
    ]


def _table(rows: Sequence[Row]) -> list[Line]:
    # So it fits into 80 columns, as long as no job falls behind.
    all_served = all(row.latency is None or row.latency.served >= _ALL_SERVED for row in rows)
    titles = ["P50", "P90", "P99", "MAX", "/ALONE", "/UNMGD", "SERVED", "WORK/S", "ALONE", "LEFT"]
    left_out = 1 + titles.index("SERVED") if all_served else None
    columns = [Column("SCENARIO"), *(Column(title, right=True) for title in titles)]
    shown = [[cell for number, cell in enumerate(_cells(row)) if number != left_out] for row in rows]
    return output.table([each for number, each in enumerate(columns) if number != left_out], shown)


def _cells(row: Row) -> tuple[str, ...]:
    """A row of the table as text; "-" where there is no figure."""
    latency, batch = row.latency, row.batch
    shown = [row.name]
    if latency is None:
        shown += ["-"] * 7
    else:
        times = (latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.max_ms)
        shown += [*map(_digits, times), _times(latency.of_alone), _times(latency.of_unmanaged)]
        shown.append(_percent(latency.served))
    if batch is None:
        return *shown, "-", "-", "-"
    return *shown, _digits(batch.per_s), _percent(batch.of_alone), _percent(batch.of_left)


def _digits(value: float) -> str:
    """About three digits that mean something."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _remarks(found: Found) -> list[str]:
    made = []
    if found.environment.others:
        made.append(f"{counted(found.environment.others, 'process')} of others had memory on the GPU.")
    made += [f"{row.name}: {error}" for row in found.rows for error in row.errors]
    for trouble in dict.fromkeys(each for row in found.rows for each in row.troubles):
        names = ", ".join(row.name for row in found.rows if trouble in row.troubles)
        made.append(f"The lock was not, or not wholly, applied ({word(trouble)}): {names}")
    return made


def word(trouble: str) -> str:
    """A trouble of the outcome in words."""
    return _NOT_ACTIVE if trouble == "not-active" else words.trouble(trouble)


# -- for programs -----------------------------------------------------------------------------------------


def as_json(found: Found) -> dict[str, Any]:
    """The document. bench/README.md describes it."""
    fake = found.environment.is_fake
    return {
        "schema": SCHEMA,
        "is_fake": fake,
        "is_complete": found.is_whole,
        "environment": as_dict(found.environment),
        "parameters": {**as_dict(found.parameters), "modes": list(found.parameters.modes)},
        "calibration": _plain(as_dict(found.calibration)),
        "scenarios": [_row_json(row) for row in found.rows],
        "verdict": {**as_dict(found.verdict), "scenario": found.verdict.scenario or None},
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        **as_dict(row),
        "latency": None if row.latency is None else _plain(as_dict(row.latency)),
        "batch": None if row.batch is None else _plain(as_dict(row.batch)),
        "errors": list(row.errors),
        "troubles": list(row.troubles),
    }


def _plain(value: Any) -> Any:
    """In JSON's types."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def run_json(run: Run) -> dict[str, Any]:
    """One repetition, with every response."""
    jobs = [None if job is None else _job_json(job) for job in (run.latency, *run.batch)]
    return {"scenario": run.scenario, "error": run.error or None, "latency": jobs[0], "batch": jobs[1:]}


def _job_json(job: Any) -> dict[str, Any]:
    sharing = None if job.sharing is None else as_dict(job.sharing)
    return {name: _plain(value) for name, value in {**as_dict(job), "sharing": sharing}.items()}


# -- files ------------------------------------------------------------------------------------------------


def make_folder(path: str) -> None:
    """Make the folder for the report, unless it is there. Raises SlicerError."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise SlicerError(f"cannot be made: {error.strerror}", where=path) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise SlicerError("cannot be written in", where=path)


def check_plot(path: str) -> None:
    """Raises SlicerError if no plot can be written there: better now than after minutes of work."""
    from slicer.cli import drawing

    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise SlicerError("there is no such directory", where=directory)
    drawing.load()


def write_folder(path: str, found: Found) -> None:
    """Write table.txt, report.json, runs.jsonl and, with matplotlib, sharing.svg. Raises SlicerError."""
    from slicer.cli import say
    from slicer.cli.common import NoLibrary

    text = "".join(f"{line.text}\n" for line in lines(found))
    _put(os.path.join(path, "table.txt"), text.encode())
    _put(os.path.join(path, "report.json"), _document({"version": 1, **as_json(found)}))
    runs = "".join(json.dumps(run_json(run)) + "\n" for run in found.runs)
    _put(os.path.join(path, "runs.jsonl"), runs.encode())
    try:
        write_plot(os.path.join(path, "sharing.svg"), found)
    except NoLibrary as error:
        say.line(f"no plot: {error}")


def write_plot(path: str, found: Found) -> None:
    """Draw the plot. Raises SlicerError."""
    from bench.sharing import plot

    title = visible(_heading(found)[0])
    picture = plot.picture(found.runs, found.rows, title, path, _FAKE if found.environment.is_fake else "")
    _put(path, picture)


def _document(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()


def _put(path: str, data: bytes) -> None:
    try:
        put(data, path)
    except OSError as error:
        raise SlicerError(f"cannot be written: {error.strerror}", where=path) from error
