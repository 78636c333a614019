"""Linux as slicer sees it: processes, cgroups, signals, inotify, the terminal."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSROOT = "SLICER_SYSROOT"


def on_host(path: str) -> str:
    """The path of a file that describes this machine's setup: below $SLICER_SYSROOT, if that is set.

    Tests set it. Then no driver, configuration or history of the machine reaches them, and their
    installations do not reach the machine.
    """
    return os.environ.get(SYSROOT, "") + path


def home(environ: Mapping[str, str]) -> str:
    """The caller's home directory, as $HOME or the list of users says; "" if neither does."""
    found = environ.get("HOME", "")
    if found.startswith("/"):
        return found
    import pwd  # few need it

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def is_elsewhere() -> bool:
    """Whether :func:`on_host` leads to a place other than this machine's root."""
    return SYSROOT in os.environ
