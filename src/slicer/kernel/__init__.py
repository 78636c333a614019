"""Linux as slicer sees it: processes, cgroups, signals, inotify, the terminal."""

from __future__ import annotations

import os

SYSROOT = "SLICER_SYSROOT"


def on_host(path: str) -> str:
    """The path of a file that describes this machine's setup: below $SLICER_SYSROOT, if that is set.

    Tests set it. Then no driver, configuration or history of the machine reaches them, and their
    installations do not reach the machine.
    """
    return os.environ.get(SYSROOT, "") + path


def is_elsewhere() -> bool:
    """Whether :func:`on_host` leads to a place other than this machine's root."""
    return SYSROOT in os.environ
