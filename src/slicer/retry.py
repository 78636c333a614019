"""How often a job runs again after failures, and after which pauses: one rule for all jobs. Pure."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

_PAUSE_S = 30.0  # before a job that failed runs again; doubled each time
PAUSE_MOST_S = 960.0
_DIGITS = 9


@record
class Retry:
    """How often a job runs again: after any failure that nobody meant, and after one of its GPU."""

    any: int = 0
    gpu: int = 3


NEVER = Retry(0, 0)


def parse_retry(text: str) -> Retry:
    """As in ``any:2``, ``gpu:0`` or ``any:2,gpu:5``. Raises ValueError, which says what is expected."""
    found: dict[str, int] = {}
    for word in text.split(","):
        what, _, count = word.strip().lower().partition(":")
        if what not in Retry.__annotations__ or not (count.isascii() and count.isdigit()):
            raise ValueError("expected as in any:2, gpu:5 or any:2,gpu:5")
        if len(count) > _DIGITS:
            raise ValueError(f"{what}: is too often")
        found[what] = int(count)
    return Retry(**found)


def used_up(reason: str, ended_by: str) -> Literal["", "any", "gpu"]:
    """Which number of :class:`Retry` a failed attempt counts for; "": none, as somebody stopped it."""
    return "" if reason == "stopped" else "gpu" if ended_by == "gpu" else "any"


def pause_after(fails: int, most: int) -> float:
    """The seconds to pause after a job's failure number ``fails`` + 1; 0: it runs no more."""
    return min(PAUSE_MOST_S, _PAUSE_S * 2.0 ** min(fails, 10)) if fails < most else 0.0
