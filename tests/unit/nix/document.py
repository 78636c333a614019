"""The options of the module as a part of docs/nixos.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.unit.nix.evaluation import REPO

PATH = REPO / "docs/nixos.md"
BEGIN = "<!-- options: written by `python -m tests.unit.nix` -->\n"
END = "<!-- end of the options -->\n"

Option = Mapping[str, Any]

# Where a table of options begins, by their prefix; "" is what is left.
_SECTIONS = {
    "": "programs.slicer",
    "settings.": "programs.slicer.settings",
    "settings.profiles.<name>.": "programs.slicer.settings.profiles.<name>",
    "settings.slices.gpu.": "programs.slicer.settings.slices.gpu and .cpu",
}
_TWICE = "settings.slices.cpu."  # as those of gpu


def current(text: str, options: Iterable[Option]) -> str:
    """The page with the options as they are now."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PATH} has no lines {BEGIN!r} and {END!r}")
    return head + begin + rendered(options) + end + tail


def rendered(options: Iterable[Option]) -> str:
    """All options, a table for each group of them."""
    by_section: dict[str, list[str]] = {section: [] for section in _SECTIONS}
    for option in options:
        name = option["name"].removeprefix("programs.slicer.").replace('"', "")
        if not name.startswith(_TWICE):
            section = max((each for each in _SECTIONS if name.startswith(each)), key=len)
            by_section[section].append(_row(name.removeprefix(section), option))
    parts = []
    for section, rows in by_section.items():
        parts += [f"### {_SECTIONS[section]}", "", "| option | takes | example | |", "|---|---|---|---|", *rows, ""]
    return "\n" + "\n".join(parts)


def _row(name: str, option: Option) -> str:
    takes = option["type"].removeprefix("null or ")
    example = option["example"]
    if not example or "\n" in example:
        example = "" if "\n" in (example or "") else option["default"] or ""
    cells = (f"`{name}`", _short(takes), f"`{_line(example)}`" if example else "", _prose(option["description"]))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _short(takes: str) -> str:
    """What it takes, without the inner workings of a submodule."""
    return {"submodule": "options, see below", "attribute set of (submodule)": "options, see below"}.get(takes, takes)


def _line(text: str) -> str:
    return " ".join(text.split())


def _prose(text: str) -> str:
    """A description in one line, without the roles of nixpkgs' Markdown."""
    return re.sub(r"\{(command|file|option|manpage)\}`", "`", _line(text))
