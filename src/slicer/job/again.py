"""Whether a detached job's process runs it again, once an attempt has ended; and what that was.

There are three causes: it gave way to another job, somebody asked for it, or it failed, and its ``retry``
counts that failure. In each case the process requests a lease again, under the same id.
"""

from __future__ import annotations

from slicer.job.words import ENDED_BY, why_ended
from slicer.model import GAVE_WAY, PastAttempt
from slicer.outcome.result import result_of
from slicer.quantity import format_duration
from slicer.record import fields_for, record, replace
from slicer.retry import NEVER, Retry, parse_retry, pause_after, used_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import Outcome

_MOST = 100  # attempts that an outcome lists


@record
class Again:
    """What is known of a job's attempts that have ended."""

    attempts: tuple[PastAttempt, ...] = ()
    gave_way: int = 0
    fails: Retry = NEVER  # how many of each kind
    why: str = ""  # in words, why it runs again
    pause_s: float = 0.0  # before the next one
    most: int | None = None  # how many there may be, unless others cause more; None: no failure caused it

    @property
    def next_words(self) -> str:
        """As in "attempt 2 of 3"."""
        no = self.attempts[-1].number + 1
        return f"attempt {no}" + (f" of {self.most}" if self.most is not None else "")


def with_last(attempts: tuple[PastAttempt, ...], outcome: Outcome) -> tuple[PastAttempt, ...]:
    """The earlier attempts and this one, or the last ones of many."""
    number = attempts[-1].number + 1 if attempts else 1
    last = PastAttempt(**{**fields_for(PastAttempt, outcome), "number": number})
    return (*attempts, last)[-_MOST:]


def after(before: Again, outcome: Outcome, retry: Retry, *, is_asked: bool) -> Again | None:
    """What is known once an attempt has ended this way and the job runs again; None: it has ended.

    ``is_asked``: somebody asked for another run.
    """
    known = replace(before, attempts=with_last(before.attempts, outcome), pause_s=0.0, most=None)
    if is_asked:
        return replace(known, why="was asked to run again, and begins again")
    if outcome.reason == "stopped" and outcome.ended_by == GAVE_WAY:
        return replace(known, why="gave way to another job, and begins again", gave_way=before.gave_way + 1)
    kind = used_up(outcome.reason, outcome.ended_by)
    if not kind or result_of(outcome.exit_code, outcome.reason, outcome.ended_by) != "failed":
        return None
    fails, most, number = getattr(before.fails, kind), getattr(retry, kind), known.attempts[-1].number
    pause_s, last = pause_after(fails, most), number + most - fails
    if not pause_s:
        return None
    how = ", ".join(filter(None, (why_ended(outcome), ENDED_BY.get(outcome.ended_by))))
    why = f"failed with exit code {outcome.exit_code}{f', {how}' * bool(how)}"
    why += f" (attempt {number} of {last}): again in {format_duration(pause_s)}"
    counted = replace(before.fails, **{kind: fails + 1})
    return replace(known, why=why, pause_s=pause_s, most=last, fails=counted)


class Reruns:
    """Decides at the end of each attempt. ``is_asked``: for another; ``note``: keeps that one is due."""

    def __init__(self, is_asked: Callable[[], bool], note: Callable[[Again], None]) -> None:
        self.known = Again()
        self.is_due = False
        self.is_over = False  # nobody is left who would run it again, or it lives on by itself
        self._is_asked = is_asked
        self._note = note

    def decide(self, outcome: Outcome, retry: str) -> bool:
        """Whether the job runs again. ``retry``: as in Profile."""
        counted = parse_retry(retry) if retry else NEVER
        found = None if self.is_over else after(self.known, outcome, counted, is_asked=self._is_asked())
        self.known, self.is_due = found or self.known, found is not None
        if found is not None:
            self._note(found)
        return self.is_due

    def summed(self, outcome: Outcome) -> Outcome:
        """The job's outcome, by that of its last attempt."""
        earlier = self.known.attempts
        return replace(outcome, attempts=with_last(earlier, outcome)) if earlier else outcome
