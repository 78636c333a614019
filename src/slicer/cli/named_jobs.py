"""Several jobs named on one command line. A name without a job does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from slicer.cli import output, say
from slicer.cli.job_register import JobRegister
from slicer.errors import EX_OK, SlicerError
from slicer.ledger.ledger import Ledger
from slicer.model import Lease
from slicer.text import visible

if TYPE_CHECKING:
    from slicer.job.find import NamedJob

_Entry = TypeVar("_Entry", bound="NamedJob")
Done = tuple[str, dict[str, Any]]  # what an act has done, in words and as data


def for_each(
    words: Iterable[str], act: Callable[[Lease, Ledger], Done], *, quiet: bool, as_json: bool
) -> int:
    """Act on each running job once. Returns the highest exit code.

    Errors go to stderr. What the acts return is printed: the text of each, or all data as one document.
    """
    jobs = JobRegister()
    leases, code = each_found(words, jobs.running, as_json=as_json)

    def acting(lease: Lease) -> Done:
        text, data = act(lease, jobs.ledger)
        return text, {"job": lease.job, "name": lease.name or None, **data}

    return max(code, carry_out([partial(acting, lease) for lease in leases], quiet=quiet, as_json=as_json))


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
        except SlicerError as failure:  # go on with the others
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
