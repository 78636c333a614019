"""How many examples a property is tried with: all of them with CI=true, once; else a tenth."""

from __future__ import annotations

import os

from tests.machines.settings import ci

_IS_QUICK = os.environ.get("SLICER_TEST_QUICK") == "1" or not ci()


def examples(count: int) -> int:
    """``count``, or a tenth where somebody waits for the result."""
    return max(10, count // 10) if _IS_QUICK else count
