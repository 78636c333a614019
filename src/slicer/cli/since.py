"""The option ``--since`` of the commands that look back."""

from __future__ import annotations

import time

from slicer.errors import UsageError
from slicer.quantity import QuantityError, parse_duration


def since(text: str | None) -> float | None:
    """The time before which nothing counts, in seconds since the epoch; None: all does. Raises UsageError."""
    if text is None:
        return None
    try:
        return time.time() - parse_duration(text) / 1e6
    except QuantityError as error:
        raise UsageError(str(error), where="--since") from error
