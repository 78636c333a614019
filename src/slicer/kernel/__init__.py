"""Linux as slicer sees it: processes, cgroups, signals, inotify, the terminal."""

from __future__ import annotations

import os

SYSROOT = "SLICER_SYSROOT"


def on_host(path: str) -> str:
    """Where a file is that says how this machine is set up: below $SLICER_SYSROOT, if that is set.

    Tests set it, so that no driver, configuration or history of the machine reaches them, and what they
    install does not reach the machine.
    """
    return os.environ.get(SYSROOT, "") + path


def is_elsewhere() -> bool:
    """Whether :func:`on_host` leads to another place than this machine's root."""
    return SYSROOT in os.environ
