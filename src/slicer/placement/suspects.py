"""GPUs where jobs fail at once, while the same commands end well elsewhere: they are placed last. Pure.

Such a GPU is free again at once, so it would get the next job, and the next. It still gets those for which no
other has room: only the driver, or an administrator, takes a GPU out of service.
"""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

QUICK_S = 30.0
IN_A_ROW = 3
_FOR_S = 3600.0
_MOST = 64


@record
class RunEnd:
    """How a run that held GPUs has ended."""

    at_s: float  # CLOCK_BOOTTIME
    how: str  # "well", "quick" (a failure within QUICK_S), or "other"
    gpus: tuple[str, ...]
    key: str  # of its command, as slicer.placement.lengths.key_of has it


def how_ended(exit_code: int, reason: str, result: str, length_s: float) -> str:
    """As in RunEnd. ``reason`` is that of an outcome, ``result`` that of slicer.outcome.result."""
    if not exit_code:
        return "well"
    is_quick = result == "failed" and reason in ("exited", "signal") and length_s <= QUICK_S
    return "quick" if is_quick else "other"


def with_end(ends: Iterable[RunEnd], end: RunEnd) -> tuple[RunEnd, ...]:
    """The same, and one more end, without those that are too old; () as long as nothing fails quickly."""
    found = (*(each for each in ends if end.at_s - each.at_s <= _FOR_S), end)[-_MOST:]
    return found if any(each.how == "quick" for each in found) else ()


def suspects(ends: tuple[RunEnd, ...], now_s: float) -> frozenset[str]:
    """The GPUs whose last jobs have all failed quickly, of commands that ended well on others."""
    recent = [each for each in ends if now_s - each.at_s <= _FOR_S]
    there = {uuid for each in recent if each.how == "quick" for uuid in each.gpus}
    return frozenset(uuid for uuid in there if _is_suspect(uuid, recent))


def _is_suspect(uuid: str, ends: list[RunEnd]) -> bool:
    here = [each for each in ends if uuid in each.gpus][-IN_A_ROW:]
    well = {each.key for each in ends if each.how == "well" and uuid not in each.gpus}
    return len(here) == IN_A_ROW and all(each.how == "quick" and each.key in well for each in here)
