"""Shared by several commands: reading the configuration, and the times of ``--since`` and ``--until``."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from datetime import time as clock

from slicer.cli import say
from slicer.config.profiles import Config, host, load
from slicer.errors import UsageError
from slicer.quantity import QuantityError, parse_duration


def config() -> Config:
    """The configuration. Its warnings are printed."""
    found = load(os.environ, host())
    for warning in found.warnings:
        say.line(warning)
    return found


_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MOMENT = (
    'expected a duration such as "90s" or "7d", or a time such as "today", "yesterday", "monday", '
    '"2026-11-20" or "2026-11-20 14:00"'
)


def since(text: str | None, option: str = "--since") -> float | None:
    """The time that the option means, in seconds since the epoch; None: no limit. Raises UsageError."""
    if text is None:
        return None
    try:
        return moment(text, time.time())
    except ValueError as error:
        raise UsageError(str(error), where=option) from error


def moment(text: str, now: float) -> float:
    """The time that a person's words mean, in seconds since the epoch, as ``now`` is.

    A duration counts back from now. A day is that of local time, and means its beginning: "monday" is the
    last one, perhaps today. Where the clock skips a time, the first one after it is meant; of a time that
    comes twice, the first. Raises ValueError, whose message is one line for the user.
    """
    try:
        return now - parse_duration(text) / 1e6
    except QuantityError:
        pass  # it may be a time
    word = text.strip().lower()
    today = datetime.combine(datetime.fromtimestamp(now), clock())
    ago = {day: (today.weekday() - number) % 7 for number, day in enumerate(_DAYS)}
    ago |= {"today": 0, "yesterday": 1}
    if word in ago:
        return (today - timedelta(days=ago[word])).timestamp()
    try:
        return datetime.fromisoformat(word.upper()).timestamp()
    except (ValueError, OverflowError) as error:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise ValueError(f"{_MOMENT}, not {shown!r}") from error
