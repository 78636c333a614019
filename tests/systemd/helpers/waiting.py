"""Waiting for something to become true, with a deadline that shows the last state when it passes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# The emulated machine is 10 to 20 times slower.
SLOWNESS = 10 if os.environ.get("SLICER_TEST_MACHINE") == "qemu" else 1
DEADLINE_S = 20.0 * SLOWNESS


def wait_until(what: str, probe: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    """The probe's first true value. Fails with what was expected and the last value seen."""
    end = time.monotonic() + deadline_s
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what}; last seen: {found!r}")
        time.sleep(0.01)
