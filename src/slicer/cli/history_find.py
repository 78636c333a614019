"""The jobs of a history that a word on the command line means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from slicer.job.find import SHORTEST_PREFIX, AmbiguousJob
from slicer.model import Outcome, job_of_unit
from slicer.outcome.history import read


def find_outcomes(path: str, job: str | None, **limits: Any) -> list[Outcome]:
    """The outcomes of the jobs that ``job`` names, as in `slicer stop`: by id, unit or name.

    ``limits`` are arguments of :func:`slicer.outcome.history.read`.
    """
    return read(path, **meant(partial(read, path), job, limits))


def meant(read: Callable[..., list[Any]], job: str | None, limits: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which ``read`` finds the jobs that ``job`` names. Raises AmbiguousJob."""
    if job is None:
        return limits
    word = job_of_unit(job)
    by_id = {**limits, "job": word}
    begun = read(**{**by_id, "limit": 1}) if len(word) >= SHORTEST_PREFIX else []
    if limits.get("name") or (begun and begun[0].job == word):
        return by_id
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in job)  # a pattern that matches only this name
    by_name = {**limits, "name": literal}
    named = read(**{**by_name, "limit": 1})
    if named and begun and begun[0].name != job:
        which = f"{named[0].job}, which has that name, and {begun[0].job}"
        raise AmbiguousJob(f"{job!r} could be {which}", hint="give the id")
    return by_id if begun else by_name
