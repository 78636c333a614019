"""The figures over time of ended jobs, in the history beside their outcomes."""

from __future__ import annotations

from slicer.outcome import history
from slicer.outcome.history_schema import INSERT_SAMPLES
from slicer.outcome.series import Series, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_SELECT = "SELECT job, series FROM samples WHERE job IN ({})"
_AT_ONCE = 500  # jobs in one question: SQLite allows 999 values


def keep(path: str, found: Mapping[str, Series], *, busy_timeout_s: float) -> str | None:
    """Add the series of ended jobs, by their ids. Returns and raises the same as :func:`history.append`."""
    rows = [(job, encode(series)) for job, series in found.items()]
    return history.write(
        path, lambda connection: connection.executemany(INSERT_SAMPLES, rows), busy_timeout_s=busy_timeout_s
    )


def read(path: str, jobs: Iterable[str]) -> dict[str, Series]:
    """The series of these jobs, by their ids. Jobs without one are left out. Raises StateError."""
    wanted, found = list(jobs), {}
    for at in range(0, len(wanted), _AT_ONCE):
        some = tuple(wanted[at : at + _AT_ONCE])
        for job, data in history.select(path, _SELECT.format(", ".join("?" * len(some))), some):
            series = decode(data) if isinstance(data, bytes) else None
            if series is not None:
                found[job] = series
    return found
