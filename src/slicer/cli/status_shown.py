"""``slicer status``. It avoids click, so that it answers soon on a busy machine."""

from __future__ import annotations

import os
import sys

from slicer.broker.client.standing import read
from slicer.cli import output, say
from slicer.cli.queue import rows
from slicer.state import standings


def show(*, as_json: bool) -> None:
    """Print who holds what, who waits and why, what is free, queues and servers. Raises SlicerError."""
    status = read(os.environ, say.line)
    servers = standings.read(os.environ, say.line)
    queues = rows.running(status.directory)
    if as_json:
        from slicer.cli.status_json import status_json

        output.show_json(status_json(status, servers, queues))
    else:
        from slicer.cli.status_text import lines

        output.show(lines(status, servers, queues))


def main(arguments: list[str]) -> int:
    """``slicer status`` and ``slicer status --json``. Returns the exit code. Never raises."""
    as_json = "--json" in arguments
    output.escape_unprintable()
    try:
        show(as_json=as_json)
        sys.stdout.flush()
    except BaseException as raised:
        from slicer.cli.app import guarded

        failure = raised

        def fail() -> None:
            raise failure

        return guarded(fail, as_json=as_json)
    return 0
