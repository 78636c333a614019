"""``slicer run --after``: a job that begins once others have ended, if they ended as it wants."""

from __future__ import annotations

from slicer.cli.ends import Ended, ends
from slicer.cli.known_jobs import KnownJob, KnownJobs
from slicer.errors import EX_TEMPFAIL, SlicerError, UsageError
from slicer.record import record

_CONDITIONS = ("ok", "any", "failed")


class InVain(SlicerError):
    """The job that was waited for ended otherwise; this one does not run (exit code 75)."""

    exit_code = EX_TEMPFAIL
    kind = "in-vain"


@record
class After:
    """A job, and how it has to end."""

    known: KnownJob
    condition: str

    @property
    def word(self) -> str:
        """As in ``--awaits``: by the whole id."""
        return f"{self.known.job}:{self.condition}"


def resolved(words: tuple[str, ...]) -> tuple[After, ...]:
    """The jobs that ``--after`` names now. Raises UnknownJob, AmbiguousJob, NotYours."""
    jobs = KnownJobs() if words else None
    found = []
    for word in words:
        assert jobs is not None
        name, _, condition = word.rpartition(":")
        if not name or condition not in _CONDITIONS:  # a name may have a colon
            name, condition = word, "ok"
        try:
            found.append(After(jobs.find(name), condition))
        except UsageError as error:
            error.where = "--after"
            raise
    return tuple(found)


def wait(awaited: tuple[After, ...], mask: frozenset[int]) -> None:
    """Sleep, with this signal mask, until all have ended. Raises InVain as soon as one ended otherwise."""
    for ended in ends([each.known for each in awaited], mask=mask):
        for each in awaited:
            if each.known.key == ended.known.key:
                _judge(ended, each.condition)


def _judge(ended: Ended, condition: str) -> None:
    if condition == "any" or (condition == "ok") is (ended.exit_code == 0):
        return
    how = f"exit {ended.exit_code}" if not ended.why else ended.why
    name = ended.known.name or ended.known.job
    if condition == "ok":
        message, hint = f"{name}, which it follows, failed ({how})", f"--after {name}:any does not mind"
    else:
        message, hint = f"{name} did not fail, which it was to follow", ""
    raise InVain(f"will not run: {message}", hint=hint)
