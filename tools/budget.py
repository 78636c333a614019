"""Each room's budget of lines: ``[tool.slicer.lines]`` in pyproject.toml.

Code grows back a little at a time. A budget makes its author see that, and say why.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/slicer"


def sizes(source: Path = SOURCE) -> Counter[str]:
    """The lines of Python in each room; "." has the modules that are in none."""
    found: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        place = path.relative_to(source).parts
        found[place[0] if len(place) > 1 else "."] += path.read_bytes().count(b"\n")
    return found


def problems(found: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    """What is wrong, and what to do; none: all rooms keep to their budgets."""
    what_to_do = "make room there, or raise it in pyproject.toml and say why in the commit's message"
    over = [
        f"src/slicer/{room}: {found[room]} lines, over its budget of {budget}: {what_to_do}"
        for room, budget in budgets.items()
        if found.get(room, 0) > budget
    ]
    unknown = sorted(found.keys() - budgets.keys())
    gone = sorted(budgets.keys() - found.keys())
    return [
        *over,
        *(f"src/slicer/{room}: has no budget of lines in pyproject.toml" for room in unknown),
        *(f"[tool.slicer.lines]: there is no src/slicer/{room}" for room in gone),
    ]


if __name__ == "__main__":
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wrong = problems(sizes(), settings["tool"]["slicer"]["lines"])
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(bool(wrong))
