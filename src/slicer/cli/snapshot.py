"""``slicer run --snapshot``: the job runs in a copy of the work tree, made now and removed at its end."""

from __future__ import annotations

import os

from slicer.cli import say
from slicer.cli.common import check_directory
from slicer.errors import EX_OK, EX_SLICER, SlicerError
from slicer.job import snapshot
from slicer.kernel.signals import block_interrupts, signal, unblock_interrupts
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.job.plan import Invocation

_HANDED_OVER = (EX_OK, 128 + signal.SIGINT)  # by --detach: the job's own process sees to the copy


def run(
    options: dict[str, Any], invocation: Invocation, begin: Callable[[dict[str, Any], Invocation], int]
) -> int:
    """Call ``begin`` for the job in its copy; the exit code. Raises SlicerError."""
    directory = options["runs_in"]
    if not directory:
        check_directory()
        unblock_interrupts()
        directory = snapshot.take(os.getcwd(), os.environ)
        block_interrupts()
    copy, code = snapshot.copy_of(directory, os.environ), EX_SLICER
    held = snapshot.hold(copy)
    try:
        code = begin(options, replace(invocation, directory=directory, copy=copy))
        return code
    finally:
        os.close(held)
        if not options["detach"] or options["detached"] or code not in _HANDED_OVER:
            _drop(copy)


def _drop(copy: str) -> None:
    try:
        if not snapshot.drop(copy, os.environ):
            say.line(f"the snapshot stays, because the job has changed it, or still runs: {copy}")
    except SlicerError as error:  # the exit code is the job's
        say.line(str(error))
