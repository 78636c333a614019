"""Several jobs named on one command line. A name without a job does not affect the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from slicer.broker.client import standing
from slicer.cli import output, say
from slicer.errors import EX_OK, SlicerError
from slicer.job.find import NotYours, UnknownJob
from slicer.kernel.users import user_name
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.ledger.status import PATIENCE_S, existing_ledger
from slicer.state import statedir
from slicer.text import quote, visible

if TYPE_CHECKING:
    from slicer.job.find import NamedJob

_Entry = TypeVar("_Entry", bound="NamedJob")


def for_each(
    words: tuple[str, ...], find: Callable[[str, Snapshot], _Entry],
    act: Callable[[_Entry, Ledger], tuple[str, dict[str, Any]]], *, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Act on each job once. Returns the highest exit code.

    Errors go to stderr. What the acts return is printed: the text of each, or all data as one document.
    """
    complain = say.error_json if as_json else say.error
    ledger, mine, others = known_jobs()
    meant: dict[str, _Entry] = {}
    codes, done = [EX_OK], []
    for word in words:
        try:
            entry = found_among(word, mine, others, find)
            meant[entry.job] = entry
        except UnknownJob as failure:  # go on with the others
            codes.append(complain(_ended(word) or failure))
        except SlicerError as failure:
            codes.append(complain(failure))
    for entry in meant.values():
        try:
            ledger = ledger or _made_ledger(say.line)  # a detached job may be known by its file alone
            text, data = act(entry, ledger)
            done.append({"job": entry.job, "name": entry.name or None, **data})
            if not quiet and not as_json:
                print(visible(text))
        except SlicerError as failure:
            codes.append(complain(failure))
    if as_json and done:
        output.show_json({"jobs": done})
    return max(codes)


def known_jobs(warn: Callable[[str], None] = say.line) -> tuple[Ledger | None, Snapshot, Snapshot]:
    """The user's own ledger, the jobs on which the user may act, and those of others.

    If there are any on which to act, there is a ledger to record the act. Raises StateError.
    """
    ledger = existing_ledger(os.environ, warn)
    mine, others = standing.jobs(os.environ, ledger, warn)
    if ledger is None and (mine.leases or mine.tickets):
        ledger = _made_ledger(warn)
    return ledger, mine, others


def _made_ledger(warn: Callable[[str], None]) -> Ledger:
    ledger = Ledger(statedir.locate(os.environ, os.geteuid()), warn)
    ledger.patience_s = PATIENCE_S
    return ledger


def found_among(
    word: str, mine: Snapshot, others: Snapshot, find: Callable[[str, Snapshot], _Entry]
) -> _Entry:
    """The job that the word names. Raises NotYours for another user's, and what ``find`` raises."""
    try:
        return find(word, mine)
    except UnknownJob as unknown:
        try:
            foreign = find(word, others)
        except SlicerError:
            raise unknown from None
        owner = user_name(foreign.uid)
        raise NotYours(f"{word!r} is a job of {owner}", hint=f"only {owner} and root may do that") from None


def _ended(word: str) -> UnknownJob | None:
    """The error for a job that has ended; None if the history does not have it."""
    from slicer.cli.history_find import find_outcomes
    from slicer.outcome.history import default_path

    try:
        found = find_outcomes(default_path(), word, limit=1)
    except SlicerError:
        return None  # a broken history does not change the error
    exact = [each for each in found if word in (each.job, each.name, each.unit)]
    return UnknownJob(f"{word!r} has ended", hint=f"slicer history {quote(word)}") if exact else None
