"""Shared by several commands: reading the configuration, and the times of ``--since`` and ``--until``."""

from __future__ import annotations

import os
import time

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
    if text is None:
        return None
    try:
        return moments.past(text, time.time())
    except ValueError as error:
        raise UsageError(str(error), where=option) from error
