"""The last line of a job's log, made fit to be shown."""

from __future__ import annotations

import os
import re

from slicer.errors import StateError
from slicer.state.directory import Directory
from slicer.text import one_line

_TAIL_BYTES = 8 << 10
_CHARACTERS = 200  # of the line
_TERMINAL = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\n\x90\x98\x9c-\x9f]*(?:\x07|\x9c|\x1b\\)"  # titles
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]"  # others
)


def last_line(directory: Directory, name: str) -> str:
    """The last line of the log ``name`` that is not blank; "" if there is no such line or log."""
    try:
        fd = directory.open_file(name, os.O_RDONLY)
    except (OSError, StateError):
        return ""  # somebody removed or replaced it
    try:
        size = os.fstat(fd).st_size
        return line_of(os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES)))
    except OSError:
        return ""
    finally:
        os.close(fd)


def line_of(data: bytes) -> str:
    """The last line of ``data`` that is not blank, without commands to a terminal."""
    text = _TERMINAL.sub("", data.decode("utf-8", "surrogateescape"))
    lines = (line.strip() for line in re.split("[\r\n]", text))
    return one_line(next((line for line in reversed(list(lines)) if line), ""), _CHARACTERS)
