"""How many examples a property is tried with: all of them in ``make test``, once; else a tenth."""

from __future__ import annotations

import os

_IS_QUICK = os.environ.get("SLICER_TEST_QUICK") == "1"


def examples(count: int) -> int:
    """``count``, or fewer where somebody waits for the result."""
    return max(10, count // 10) if _IS_QUICK else count
