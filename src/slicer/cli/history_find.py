"""The jobs of a history that a word on the command line means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from slicer.model import Outcome, job_of_unit
from slicer.outcome.history import read


def find_outcomes(path: str, job: str | None, **limits: Any) -> list[Outcome]:
    """The outcomes of the jobs that ``job`` names, as in `slicer stop`: by id, unit or name.

    ``limits`` are arguments of :func:`slicer.outcome.history.read`.
    """
    return read(path, **meant(partial(read, path), job, limits))


def meant(read: Callable[..., list[Any]], job: str | None, limits: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which ``read`` finds the jobs that ``job`` names."""
    if job is None:
        return limits
    word = job_of_unit(job)
    by_id = {**limits, "job": word}
    found = read(**{**by_id, "limit": 1})
    if limits.get("name") or (found and found[0].job == word):
        return by_id
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in job)  # a pattern that matches only this name
    by_name = {**limits, "name": literal}
    return by_name if read(**{**by_name, "limit": 1}) else by_id
