"""All manual pages, by file name."""

from __future__ import annotations

from pathlib import Path

from docutils import nodes

from tools.manpages import commands, page
from tools.manpages.tree import all_commands

SOURCES = Path(__file__).parents[2] / "docs" / "man"
LIST_OF_COMMANDS = "commands"  # the comment in slicer.1.rst in whose place the list stands


def pages() -> dict[str, str]:
    """Every page as roff, by its file name."""
    known = all_commands()
    sources = {path.stem: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.rst")}
    written = {name: page.read(text, name) for name, text in sources.items()}
    date = next(iter(written["slicer.1"].findall(nodes.date))).astext()
    found = {f"{command.page}.1": commands.build(command, known, date) for command in known}
    for name, document in written.items():
        for comment in list(document.findall(nodes.comment)):
            if comment.astext() == LIST_OF_COMMANDS:
                comment.replace_self(commands.list_of_commands(known))
        found[name] = page.write(document)
    return found


def stale(directory: Path, found: dict[str, str]) -> list[str]:
    """The names of the pages in ``directory`` that are missing, old, or of no command any more."""
    there = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.[158]")}
    return sorted(name for name in {*there, *found} if there.get(name) != found.get(name))
