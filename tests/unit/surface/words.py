"""What differs from run to run, put as words that do not; and what was told to the journal."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.surface.shape import Shape

_ID = re.compile(r"\b[0-9a-f]{8}(?:[0-9a-f]{4})?\b")  # whole, or its beginning
_NUMBER = re.compile(r"(?<![A-Za-z\d._])(?<!exit )(?:\d[\d.]*(?:ms|us|[smhd]|[KMGT]i?B?|B)?)+\b")
# Only of a job that lasted until somebody looked is its memory known, and what its GPUs did.
_MEMORY = re.compile(r"(after #(?=$|, memory)|CPU #)((?:,| ·) memory #)?", re.MULTILINE)
_SAME = ("MESSAGE_ID", "PRIORITY", "SYSLOG_IDENTIFIER")


def settled(text: str) -> str:
    """Text with ID for each job's id, # for each number with its unit, and blanks that are no columns."""
    text = _NUMBER.sub("#", _ID.sub("ID", text)).replace("peak #, #% busy", "peak n/a, busy n/a")
    return re.sub(r" {2,}", "  ", _MEMORY.sub(r"\1[memory]", text))


def journal(entries: list[dict[str, str]]) -> dict[str, str | Shape]:
    """The fields of each kind of entry, and what its messages were."""
    kinds: dict[str, list[dict[str, str]]] = {}
    for entry in entries:
        kinds.setdefault(entry["SLICER_EVENT"], []).append(entry)
    found: dict[str, str | Shape] = {}
    for kind, some in sorted(kinds.items()):
        found[f"journal: fields of {kind}"] = Shape(some)
        words = {f"{name}={entry[name]}" for entry in some for name in _SAME}
        words |= {f"MESSAGE={settled(entry['MESSAGE'])}" for entry in some}
        found[f"journal: words of {kind}"] = "\n".join(sorted(words))
    return found


def tree(root: Path) -> str:
    """The names below a directory, their kinds and modes."""
    kinds = {0o04: "directory", 0o10: "file", 0o01: "fifo", 0o14: "socket", 0o12: "link"}
    lines = set()
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        name = settled(str(path.relative_to(root)))
        lines.add(f"{name}: {kinds[mode >> 12]}, mode {mode & 0o7777:04o}")
    return "\n".join(sorted(lines))


def keys(path: Path) -> str:
    """The keys of a file of KEY=value lines, in their order."""
    return "\n".join(line.partition("=")[0] for line in path.read_text().splitlines())
