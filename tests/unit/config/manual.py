"""What the manual pages of the configuration files say of each key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).parents[3] / "docs" / "man"
SOURCE = PAGES / "slicer.toml.5.rst"


@dataclass(frozen=True)
class Described:
    """A key's paragraph. ``takes``, ``default`` and ``example`` are as written; "" for none."""

    takes: str
    default: str
    text: str
    example: str


def described(page: Path) -> dict[tuple[str, str], Described]:
    """By the table (as a section is called) and the name of the key."""
    found = {}
    for part in re.split(r"\n(?=[^\n]+\n=+\n)", page.read_text(encoding="utf-8")):
        table = part.lstrip("\n").partition("\n")[0]
        for key, head, body in re.findall(r"^\*\*(\w+)\*\* = (.*)\n((?: +.*\n|\n(?= ))*)", part, re.M):
            takes, _, default = head.partition(" (default: ")
            text, _, example = " ".join(body.split()).partition(" Example: *")
            rest = Described(takes, default.removesuffix(")"), text, example.removesuffix("*"))
            found[table, key] = rest
    return found
