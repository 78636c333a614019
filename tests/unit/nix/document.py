"""The options of the module as a part of docs/nixos.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.machines.host import REPO

PATH = REPO / "docs/nixos.md"
BEGIN = "<!-- options: written by `python -m tests.unit.nix` -->\n"
END = "<!-- end of the options -->\n"

Option = Mapping[str, Any]

# The keys of the two files: slicer.toml(5) and slicer-policy.toml(5) have them.
_IN_MANUALS = ("settings.", "broker.policy.")


def current(text: str, options: Iterable[Option]) -> str:
    """The page with the options as they are now."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PATH} has no lines {BEGIN!r} and {END!r}")
    return head + begin + rendered(options) + end + tail


def rendered(options: Iterable[Option]) -> str:
    """The module's own options, as a table."""
    own = [option for option in options if not _name(option).startswith(_IN_MANUALS)]
    rows = ["| option | takes | default | |", "|---|---|---|---|", *map(_row, own)]
    return "\n" + "\n".join(rows) + "\n"


def _name(option: Option) -> str:
    return str(option["name"]).removeprefix("programs.slicer.")


def _row(option: Option) -> str:
    takes, default = str(option["type"]), _line(option["default"] or "")
    if "submodule" in takes:  # a table of a file
        takes, default = "the keys of that file", ""
    cells = (f"`{_name(option)}`", takes, f"`{default}`" if default else "", _prose(option["description"]))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _line(text: str) -> str:
    return " ".join(text.split())


def _prose(text: str) -> str:
    """A description in one line, without the roles of nixpkgs' Markdown."""
    return re.sub(r"\{(command|file|option|manpage)\}`", "`", _line(text))
