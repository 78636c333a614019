"""Shared by several commands: the configuration, what options mean, and errors that several can have."""

from __future__ import annotations

import os
import time

from slicer.cli import say
from slicer.config.profiles import Config, host, load
from slicer.errors import SlicerError, UsageError
from slicer.state.directory import Failing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")


class NoLibrary(SlicerError):
    """A library that only some commands need is missing, or does not work. ``name``: pip's for it."""

    def __init__(self, name: str, message: str) -> None:
        hint = f"pip install {name} in slicer's environment (Debian: apt install python3-{name})"
        super().__init__(message, hint=hint)
        self.kind = f"no-{name}"


def failing(what: str, where: str, *, kind: type[SlicerError] = SlicerError, hint: str = "") -> Failing:
    """Turn an OSError into an error for the user: ``what`` failed, and why."""
    return Failing(lambda error: kind(f"{what}: {error.strerror}", where=where, hint=hint))


def check_directory() -> None:
    """Refuse a working directory that was removed, which whatever goes on there could not use."""
    with failing("the working directory was removed", ".", kind=UsageError, hint="cd to another one"):
        os.getcwd()


def config() -> Config:
    """The configuration. Its warnings are printed."""
    found = load(os.environ, host())
    for warning in found.warnings:
        say.line(warning)
    return found


def since(text: str | None, option: str = "--since") -> float | None:
    """The time that the option means, in seconds since the epoch; None: no limit. Raises UsageError."""
    from slicer import moments  # whoever detaches a job that begins at once names none

    return None if text is None else meant(lambda said: moments.past(said, time.time()), text, option)


def coming(text: str, now: float, option: str) -> float:
    """The same for a time to come, counted from ``now``. Raises UsageError."""
    from slicer import moments

    return meant(lambda said: moments.coming(said, now), text, option)


def meant(read: Callable[[str], _T], text: str, option: str, hint: str = "") -> _T:
    """What the text of an option means, as ``read`` takes it. Raises UsageError."""
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(str(error), where=option, hint=hint) from error
