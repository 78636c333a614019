"""The entry point. ``slicer run`` goes the fast way, everything else through click."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line in sys.argv and exit with its code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:
        gc.disable()  # a supervisor makes no garbage worth collecting, and forks share more memory
        from slicer.cli.run import main as run

        # Nothing is buffered and nothing needs tearing down: that alone would take 3 ms.
        os._exit(run(arguments[1:]))
    from slicer.cli.app import main as other

    sys.exit(other(arguments))


if __name__ == "__main__":
    main()
