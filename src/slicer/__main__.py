"""The entry point. ``slicer run`` and ``slicer hold`` go the fast way, everything else through click."""

from __future__ import annotations

import gc
import os
import sys

from slicer.signals import hold_back


def main() -> None:
    """Run the command line in sys.argv and exit with its code."""
    _hold_standard_descriptors()
    arguments = sys.argv[1:]
    if arguments[:1] in (["run"], ["hold"]):
        hold_back()
        gc.disable()  # a supervisor makes no garbage worth collecting, and forks share more memory
        if arguments[0] == "run":
            from slicer.cli.run import main as fast
        else:
            from slicer.cli.hold import main as fast

        # Nothing is buffered and nothing needs tearing down: that alone would take 3 ms.
        os._exit(fast(arguments[1:]))
    from slicer.cli.app import main as other

    sys.exit(other(arguments))


def _hold_standard_descriptors() -> None:
    """Where a caller closed 0, 1 or 2: keep our own files from landing there, where messages are written.

    The placeholders close on exec, so that the command finds what the caller left it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: fd


if __name__ == "__main__":
    main()
