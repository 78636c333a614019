"""The decisions of ``slicer route``, kept beside the outcomes: one row for each job or refusal.

The rows are in the history's database; :mod:`slicer.outcome.history` describes its costs and its safety. A
caller whose jobs are blocked may try again for ever. So of the decisions that started nothing, the oldest are
deleted.
"""

from __future__ import annotations

from slicer.errors import StateError
from slicer.outcome import history
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _sqlite3 import Connection
    from collections.abc import Callable
    from typing import Any, Literal

    from slicer.model import EndedBy, Reason

    # started: it has its lease. fallback: the same, after another job (``after``) ran out of GPU memory.
    Result = Literal["started", "fallback", "blocked", "too-large", "probe-error"]


@record
class DecisionRow:
    """A decision. The outcome of ``job`` is in the table of outcomes."""

    route: str
    decided_at: float  # seconds since the epoch
    kinds: tuple[str, ...]  # of the metrics
    metrics: tuple[float, ...]  # in the probes' units
    bounds: tuple[float | None, ...]  # of the destination, one for each metric
    destination: str  # "" if there was none
    mode: str  # "gpu", "cpu", or ""
    result: Result
    job: str  # "" if nothing ran
    after: str  # for a fallback: the job that ran out of GPU memory
    waited_s: float  # for the lease
    input: str
    command: tuple[str, ...]  # as given
    reason: str  # why nothing started, as one line; otherwise ""
    at_least: tuple[bool, ...] = ()  # for each metric: the real value is larger, because counting stopped


@record
class RoutedJob:
    started_at: float  # seconds since the epoch
    waited_s: float
    wall_s: float
    reason: Reason
    exit_code: int
    vram_peak_mib: tuple[int, ...]  # the highest use seen on each of its GPUs; () if unknown
    memory_peak_bytes: int | None
    ended_by: EndedBy = ""


@record
class PastDecision:
    """A decision and the figures of its job. ``job`` is None if nothing ran, it runs, or is unknown."""

    row: DecisionRow
    job: RoutedJob | None


BUSY_TIMEOUT_S = 2.0  # a job waits for this
KEPT = 100_000  # decisions that started nothing are kept until there are this many newer ones
FORGETS_EVERY = 1000  # decisions

_ROW = tuple(DecisionRow.__annotations__)
_FIGURES = tuple(RoutedJob.__annotations__)
_COLUMN = {"after": "after_job"}  # "after" is an SQL keyword
_STRINGS = ("kinds", "command")  # JSON arrays of strings
_NUMBERS = ("metrics", "bounds", "at_least")  # JSON arrays of numbers
_COLUMNS = tuple(_COLUMN.get(name, name) for name in _ROW)
_INSERT = f"INSERT INTO decisions ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_FORGET = "DELETE FROM decisions WHERE id BETWEEN ?1 - 2 * ?2 AND ?1 AND job = ''"
_SELECT = f"""\
SELECT decisions.id, {", ".join(f"decisions.{name}" for name in _COLUMNS)},
    {", ".join(f"outcomes.{name}" for name in _FIGURES)}
FROM decisions LEFT JOIN outcomes ON outcomes.job = decisions.job
WHERE (?1 IS NULL OR route = ?1) AND (?2 IS NULL OR decided_at >= ?2)
ORDER BY decisions.id"""
# There are few decisions after a job that ran out of GPU memory, and each call of a route queries one
# input's.
_INDEX = "CREATE INDEX IF NOT EXISTS decisions_ran_out ON decisions (input) WHERE after_job != ''"
_RAN_OUT = """\
SELECT max(decided_at) FROM decisions LEFT JOIN outcomes ON outcomes.job = after_job
WHERE after_job != '' AND input = ?1 AND route = ?2 AND decisions.command = ?3 AND metrics = ?4
    AND (?5 IS NULL OR vram_mib IS NULL OR vram_mib >= ?5)"""
# The JSON spelling of values that Python writes differently.
_JSON_WORDS = {
    "inf": "Infinity", "-inf": "-Infinity", "nan": "NaN", "None": "null", "True": "1", "False": "0",
}  # fmt: skip


def append(row: DecisionRow, path: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> str | None:
    """Add a decision to the history at ``path`` (:func:`slicer.outcome.history.default_path`).

    Returns None or a line for the user, and raises StateError, like :func:`slicer.outcome.history.append`.
    The caller warns and goes on: the history stops no job.
    """
    values = [_sql_value(name, getattr(row, name)) for name in _ROW]

    def insert(connection: Connection) -> None:
        if row.after:
            connection.execute(_INDEX)
        number = connection.execute(_INSERT, values).lastrowid or 0
        if number % FORGETS_EVERY == 0:
            connection.execute(_FORGET, (number - KEPT, FORGETS_EVERY))

    return history.write(path, insert, busy_timeout_s=busy_timeout_s)


def read(path: str, *, route: str | None = None, since: float | None = None) -> list[PastDecision]:
    """All decisions, the oldest first; none if there is no history yet.

    ``route`` is a route's name, ``since`` the earliest time of a decision, in seconds since the epoch. Raises
    StateError if the database or a decision in it is damaged or cannot be read.
    """
    if route is not None:
        route = history.encodable(route)
    from functools import lru_cache

    # Most columns are the same in most rows. A caller that tries for ever leaves many rows.
    parse = lru_cache(4096)(_parsed)
    return [_decision(row, path, parse) for row in history.select(path, _SELECT, (route, since))]


def ran_out_at(row: DecisionRow, vram_mib: int | None, path: str) -> float | None:
    """When a job with the same route, command, input and metrics last ran out of GPU memory; None: never.

    A job that had less GPU memory than ``vram_mib`` does not count. Seconds since the epoch. Raises
    StateError.
    """
    columns = ("input", "route", "command", "metrics")
    values = (*(_sql_value(name, getattr(row, name)) for name in columns), vram_mib)
    found = history.select(path, _RAN_OUT, values)
    return found[0][0] if found else None


def _sql_value(name: str, value: Any) -> history.Sql:
    if name in _STRINGS:
        return history.json_array(value)
    if name in _NUMBERS:
        words = (repr(number) for number in value)
        return f"[{', '.join(_JSON_WORDS.get(word, word) for word in words)}]"
    return history.encodable(value) if isinstance(value, str) else float(value)


def _decision(row: tuple[Any, ...], path: str, parse: Callable[[str, str], tuple[Any, ...]]) -> PastDecision:
    values = dict(zip(_ROW, row[1 : 1 + len(_ROW)], strict=True))
    figures = dict(zip(_FIGURES, row[1 + len(_ROW) :], strict=True))
    try:
        for name in (*_STRINGS, *_NUMBERS):
            values[name] = parse(name, values[name])
        if figures["started_at"] is None:
            return PastDecision(DecisionRow(**values), None)
        figures["vram_peak_mib"] = parse("vram_peak_mib", figures["vram_peak_mib"])
        return PastDecision(DecisionRow(**values), RoutedJob(**figures))
    except (TypeError, ValueError) as error:
        raise StateError(
            f"decision {row[0]!r:.20} of the history cannot be read: {error}", where=path,
            hint="remove it: sqlite3 FILE 'DELETE FROM decisions WHERE id = …'",
        ) from error  # fmt: skip


def _parsed(name: str, text: str) -> tuple[Any, ...]:
    """The array of a column. Raises TypeError and ValueError."""
    import json

    values = json.loads(text)
    if name in _STRINGS:
        return tuple(map(str, values))
    if name == "bounds":
        return tuple(None if value is None else float(value) for value in values)
    return tuple(map({"at_least": bool, "vram_peak_mib": int}.get(name, float), values))
