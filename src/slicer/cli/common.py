"""Shared by several commands: reading the configuration, and the value of ``--since``."""

from __future__ import annotations

import os
import time

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


def since(text: str | None) -> float | None:
    """The earliest time that counts, in seconds since the epoch; None: no limit. Raises UsageError."""
    if text is None:
        return None
    try:
        return time.time() - parse_duration(text) / 1e6
    except QuantityError as error:
        raise UsageError(str(error), where="--since") from error
