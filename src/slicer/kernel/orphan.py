"""Starts a process that outlives this one and has nothing of its session, terminal or descriptors."""

from __future__ import annotations

import os

from slicer.kernel import proc
from slicer.kernel.open_files import close_all_but

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def start_orphan(duty: Callable[[], None], stdin: int = -1) -> None:
    """Run ``duty`` in a child of a child, with all signals blocked. Raises OSError if there is no process.

    ``stdin``: the only descriptor of ours that it keeps, as its stdin.
    """
    child = os.fork()
    if not child:
        proc.be_child(lambda: _leave(duty, stdin))
    os.waitpid(child, 0)


def _leave(duty: Callable[[], None], stdin: int) -> None:
    os.setsid()
    if os.fork():
        return  # the orphan is not a session leader: it never gets a terminal again
    null = os.open(os.devnull, os.O_RDWR)
    for fd, source in ((0, null if stdin < 0 else stdin), (1, null), (2, null)):
        os.dup2(source, fd)
    close_all_but(())
    duty()
