"""``python -m tests.unit.cli.elsewhere_page`` writes the tables of docs/coming-from.md anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from slicer.cli import elsewhere

PATH = Path(__file__).parents[3] / "docs/coming-from.md"


def current(text: str) -> str:
    """The page with its tables as the program has them."""
    for name, table in (("commands", elsewhere.COMMANDS), ("options", elsewhere.OPTIONS)):
        made = f"<!-- {name} -->\n{_rows(table)}<!-- end -->"
        text = re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, made=made: made, text, flags=re.DOTALL)
    return text


def _rows(table: Mapping[str, str]) -> str:
    head = "| elsewhere | in slicer |\n|---|---|\n"
    return head + "".join(
        f"| {', '.join(f'`{word}`' for word in words.split())} | {_marked(says)} |\n"
        for words, says in table.items()
    )


def _marked(says: str) -> str:
    return says.replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(current(PATH.read_text(encoding="utf-8")), encoding="utf-8")
