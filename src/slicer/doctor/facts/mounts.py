"""File systems, by /proc/self/mountinfo."""

from __future__ import annotations

import os
import re

from slicer.record import record

_MOST_BYTES = 4 << 20


@record
class Mount:
    """One mounted file system."""

    point: str
    kind: str  # "tmpfs", "ext4", …


def mounts(path: str = "/proc/self/mountinfo") -> tuple[Mount, ...]:
    """All that are mounted here; none where /proc does not say."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse(file.read(_MOST_BYTES))
    except OSError:
        return ()


def parse(text: str) -> tuple[Mount, ...]:
    """The content of mountinfo (proc(5))."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, last = before.split(" "), after.split(" ")
        if len(fields) > 5 and len(last) > 2:
            found.append(Mount(_unescaped(fields[4]), last[0]))
    return tuple(found)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def holding(path: str, among: tuple[Mount, ...]) -> Mount | None:
    """The file system that a path is on, whether it exists or not."""
    real = os.path.realpath(path)
    best: Mount | None = None
    for mount in among:
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
