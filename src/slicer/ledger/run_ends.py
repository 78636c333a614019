"""The ledger's file of how the last runs on GPUs have ended: see :mod:`slicer.placement.suspects`.

There is none as long as no job fails at once.
"""

from __future__ import annotations

import os

from slicer.placement.suspects import RunEnd, with_end
from slicer.state.directory import Directory, failing
from slicer.state.statefile import SECONDS_MAX

NAME = "ends"
_HEAD = "SLICER_ENDS=1"


def parse(data: bytes) -> tuple[RunEnd, ...]:
    """What a file says; nothing if it is damaged."""
    head, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    if head != _HEAD or lines[-1:] != [""]:
        return ()
    try:
        return tuple(map(_end, lines[:-1]))
    except ValueError:
        return ()


def _end(line: str) -> RunEnd:
    at, how, gpus, key = line.split(" ", 3)
    if not 0 <= float(at) <= SECONDS_MAX:  # this excludes NaN, too
        raise ValueError("not a time")
    return RunEnd(float(at), how, tuple(gpus.split(",")), key)


def note(base: Directory, before: bytes, end: RunEnd) -> None:
    """Add an end to a file with that content. Call it under the ledger's lock. Raises StateError."""
    found = with_end(parse(before), end)
    lines = [f"{each.at_s:.3f} {each.how} {','.join(each.gpus)} {each.key}" for each in found]
    data = "\n".join([_HEAD, *lines, ""]).encode("utf-8", "surrogateescape")
    with failing(f"{base.path}/{NAME}", "cannot be written"):
        os.close(base.replace(NAME, data, mode=0o600))
