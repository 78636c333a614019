"""Several jobs named on one command line. A name without a job does not affect the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slicer.broker.client import standing
from slicer.cli import output, say
from slicer.cli.history_find import find_outcomes
from slicer.errors import EX_OK, SlicerError
from slicer.job.find import NotYours, UnknownJob
from slicer.kernel.users import user_name
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.ledger.status import PATIENCE_S, existing_ledger
from slicer.outcome.history import default_path
from slicer.state import statedir
from slicer.text import quote, visible

if TYPE_CHECKING:
    from slicer.job.find import NamedJob

_Entry = TypeVar("_Entry", bound="NamedJob")
Done = tuple[str, dict[str, Any]]  # what an act has done, in words and as data


def for_each(
    words: tuple[str, ...], find: Callable[[str, Snapshot], _Entry],
    act: Callable[[_Entry, Ledger], tuple[str, dict[str, Any]]], *, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Act on each job once. Returns the highest exit code.

    Errors go to stderr. What the acts return is printed: the text of each, or all data as one document.
    """
    ledger, mine, others = known_jobs()
    meant, code = each_found(words, lambda word: found_among(word, mine, others, find), as_json=as_json)

    def acting(entry: _Entry) -> Done:
        text, data = act(entry, ledger or made_ledger())
        return text, {"job": entry.job, "name": entry.name or None, **data}

    return max(code, carry_out([partial(acting, entry) for entry in meant], quiet=quiet, as_json=as_json))


def each_found(
    words: Iterable[str], find: Callable[[str], _Entry], *, as_json: bool
) -> tuple[list[_Entry], int]:
    """The jobs that the words name, each once, and the highest exit code of those that name none."""
    complain = say.error_json if as_json else say.error
    meant: dict[str, _Entry] = {}
    codes = [EX_OK]
    for word in words:
        try:
            entry = find(word)
            meant[entry.job] = entry
        except UnknownJob as failure:  # go on with the others
            codes.append(complain(_ended(word) or failure))
        except SlicerError as failure:
            codes.append(complain(failure))
    return list(meant.values()), max(codes)


def carry_out(acts: Iterable[Callable[[], Done | None]], *, quiet: bool, as_json: bool) -> int:
    """Carry out each act and print what it has done. Returns the highest exit code."""
    complain = say.error_json if as_json else say.error
    codes, done = [EX_OK], []
    for act in acts:
        try:
            told = act()
        except SlicerError as failure:
            codes.append(complain(failure))
            continue
        if told is not None:
            done.append(told[1])
            if not quiet and not as_json:
                print(visible(told[0]))
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
        ledger = made_ledger(warn)
    return ledger, mine, others


def made_ledger(warn: Callable[[str], None] = say.line) -> Ledger:
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
    try:
        found = find_outcomes(default_path(), word, limit=1)
    except SlicerError:
        return None  # a broken history does not change the error
    exact = [each for each in found if word in (each.job, each.name, each.unit)]
    return UnknownJob(f"{word!r} has ended", hint=f"slicer history {quote(word)}") if exact else None
