"""``slicer run --after``: a job that begins once others have ended, if they ended as it wants."""

from __future__ import annotations

from slicer.cli.ends import Ended, ends
from slicer.cli.job_register import JobRegister, KnownJob
from slicer.errors import EX_TEMPFAIL, SlicerError, UsageError

_CONDITIONS = ("ok", "any", "failed")


class InVain(SlicerError):
    """The job that was waited for ended otherwise; this one does not run (exit code 75)."""

    exit_code = EX_TEMPFAIL
    kind = "in-vain"


def resolved(words: tuple[str, ...]) -> list[tuple[KnownJob, str]]:
    """The jobs that ``--after`` names, and how each has to end. Raises UnknownJob, AmbiguousJob, NotYours."""
    if not words:
        return []
    jobs, found = JobRegister(), []
    for word in words:
        name, _, condition = word.rpartition(":")
        if not name or condition not in _CONDITIONS:  # a name may have a colon
            name, condition = word, "ok"
        try:
            found.append((jobs.find(name), condition))
        except UsageError as error:
            error.where = "--after"
            raise
    return found


def by_ids(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, each with its job's whole id, as in ``--awaits``."""
    return tuple(f"{known.job}:{condition}" for known, condition in resolved(words))


def wait(awaited: list[tuple[KnownJob, str]], mask: frozenset[int]) -> None:
    """Sleep, with this signal mask, until all have ended. Raises InVain as soon as one ended otherwise."""
    for ended in ends([known for known, _ in awaited], mask=mask):
        for known, condition in awaited:
            if known.key == ended.known.key:
                _judge(ended, condition)


def _judge(ended: Ended, condition: str) -> None:
    if condition == "any" or (condition == "ok") is (ended.exit_code == 0):
        return
    how = f"exit {ended.exit_code}" if not ended.why else ended.why
    name = ended.known.name or ended.known.job
    if condition == "ok":
        message = f"{name}, which it follows, did not end well ({how})"
        hint = f"--after {name}:any does not mind"
    else:
        message, hint = f"{name} did not fail, which it was to follow", ""
    raise InVain(f"will not run: {message}", hint=hint)
