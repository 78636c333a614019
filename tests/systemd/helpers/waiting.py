"""Waiting for something to become true, with a deadline that shows the last state when it passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.patience import DEADLINE_S, Deadline

T = TypeVar("T")


def wait_until(what: str, probe: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    """The probe's first true value. Fails with what was expected and the last value seen."""
    deadline = Deadline(deadline_s)
    while True:
        found = probe()
        if found:
            return found
        if deadline.has_passed():
            raise AssertionError(f"not within {deadline_s:g} s: {what}; last seen: {found!r}")
        time.sleep(0.01)
