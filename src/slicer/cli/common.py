"""Shared by several commands: reading the configuration, and times of the past and to come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from slicer import moments
from slicer.cli import say
from slicer.config.profiles import Config, host, load
from slicer.errors import UsageError


def config() -> Config:
    """The configuration. Its warnings are printed."""
    found = load(os.environ, host())
    for warning in found.warnings:
        say.line(warning)
    return found


def since(text: str | None, option: str = "--since") -> float | None:
    """The time that the option means, in seconds since the epoch; None: no limit. Raises UsageError."""
    return None if text is None else _moment(moments.past, text, time.time(), option)


def coming(text: str, now: float, option: str) -> float:
    """The same for a time to come, counted from ``now``. Raises UsageError."""
    return _moment(moments.coming, text, now, option)


def _moment(read: Callable[[str, float], float], text: str, now: float, option: str) -> float:
    try:
        return read(text, now)
    except ValueError as error:
        raise UsageError(str(error), where=option) from error
