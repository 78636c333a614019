"""The ledger's file of earlier runs' lengths, from which :mod:`slicer.placement.lengths` estimates new ones.

The end of each job that held GPUs renews it. A decision reads this one file, and never the history.
"""

from __future__ import annotations

import os

from slicer.placement.lengths import Lengths
from slicer.state.directory import Directory, failing
from slicer.state.statefile import SECONDS_MAX

_NAME = "lengths"
_HEAD = "SLICER_LENGTHS=1"
_MOST_BYTES = 1 << 17
_ALL = "*"  # no command's key: it has a shell's meaning


def content(base: Directory) -> bytes:
    """The file's content, for :func:`parse`. Raises StateError."""
    return base.read(_NAME, _MOST_BYTES)


def parse(data: bytes) -> Lengths:
    """What a file says; nothing if it is missing or damaged, because it only serves estimates."""
    head, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    if head != _HEAD or lines[-1:] != [""]:
        return Lengths()
    try:
        found = {key: _seconds(text) for key, _, text in (line.partition("=") for line in lines[:-1])}
    except ValueError:
        return Lengths()
    machine = found.pop(_ALL, ())
    return Lengths(machine, tuple(found.items()))


def _seconds(text: str) -> tuple[float, ...]:
    found = tuple(map(float, text.split(",")))
    if not all(0 <= seconds <= SECONDS_MAX for seconds in found):  # this excludes NaN, too
        raise ValueError("not lengths of jobs")
    return found


def write(base: Directory, lengths: Lengths) -> None:
    """Replace the file. Call it under the ledger's lock. Raises StateError."""
    lines = [_HEAD, *(f"{key}={_text(runs)}" for key, runs in ((_ALL, lengths.machine), *lengths.commands))]
    data = "\n".join([*lines, ""]).encode("utf-8", "surrogateescape")
    with failing(f"{base.path}/{_NAME}", "cannot be written"):
        os.close(base.replace(_NAME, data, mode=0o600))


def _text(seconds: tuple[float, ...]) -> str:
    return ",".join(f"{each:.1f}" for each in seconds)
