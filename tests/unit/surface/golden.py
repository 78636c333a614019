"""The golden copies: how they are written, and how what is seen differs from them."""

from __future__ import annotations

import difflib
from pathlib import Path

from tests.unit.surface.shape import Shape

GOLDEN = Path(__file__).with_name("golden")
_HEAD = "==== "


def path_of(name: str) -> Path:
    return GOLDEN / f"{name}.txt"


def read(name: str) -> dict[str, list[str]]:
    """The lines of each section of a golden file."""
    sections: dict[str, list[str]] = {}
    for line in path_of(name).read_text().splitlines():
        if line.startswith(_HEAD):
            sections[line.removeprefix(_HEAD)] = []
        else:
            list(sections.values())[-1].append(line)
    return sections


def rendered(found: dict[str, str | Shape], golden: dict[str, list[str]]) -> list[str]:
    """What was found as lines, as near to the golden ones as chance may bring it (see Shape.beside)."""
    lines = []
    for title, section in found.items():
        lines.append(f"{_HEAD}{title}")
        if isinstance(section, Shape):
            lines += section.beside(golden.get(title, []))
        else:
            lines += section.splitlines()
    return lines


def difference(name: str, found: dict[str, str | Shape]) -> str:
    """A unified diff from the golden copy to what was found; "" where they agree."""
    wanted = path_of(name).read_text().splitlines()
    seen = rendered(found, read(name))
    return "\n".join(difflib.unified_diff(wanted, seen, f"golden/{name}.txt", "now", lineterm=""))
