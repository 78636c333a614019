"""A check: what is tried, what is expected, and what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.gpu.place import Place


@dataclass(frozen=True)
class Finding:
    """What came of a check. ``state``: pass, fail, skip (not possible here), info (without a bar)."""

    state: str
    found: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """``expected`` is the bar, for people. ``limit_s``: after so long it counts as failed."""

    name: str
    what: str
    expected: str
    limit_s: float
    run: Callable[[Place], Finding]
    needs: str = ""  # the Python package that it needs, "" for none beside slicer's own


CHECKS: dict[str, Check] = {}
Body = Callable[["Place"], Finding]


def check(
    name: str, what: str, expected: str, *, limit_s: float = 60, needs: str = ""
) -> Callable[[Body], Body]:
    """Register a function as the check of that name."""

    def registered(run: Body) -> Body:
        CHECKS[name] = Check(name, what, expected, limit_s, run, needs)
        return run

    return registered


class Skip(Exception):
    """It cannot be tried here; the message says why."""


class Failed(Exception):
    """It did not do what it should; the message says what."""


def verdict(is_met: bool, found: str, **data: Any) -> Finding:
    """Pass or fail, with the figures."""
    return Finding("pass" if is_met else "fail", found, data)
