"""The ledger's file of how runs on GPUs ended, as text: see :mod:`slicer.placement.suspects`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from slicer.placement.suspects import RunEnd
from slicer.state.statefile import SECONDS_MAX

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


def text(ends: Iterable[RunEnd]) -> bytes:
    lines = [f"{each.at_s:.3f} {each.how} {','.join(each.gpus)} {each.key}" for each in ends]
    return "\n".join([_HEAD, *lines, ""]).encode("utf-8", "surrogateescape")
