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

# Where a table of options begins, by their prefix; "" is what is left.
_SECTIONS = {
    "": "programs.slicer",
    "broker.policy.": "programs.slicer.broker.policy",
    "broker.policy.users.<name>.": "programs.slicer.broker.policy.users.<name>, groups.<name> and default",
    "broker.policy.groups.<name>.": "programs.slicer.broker.policy.groups.<name>",
    "settings.": "programs.slicer.settings",
    "settings.profiles.<name>.": "programs.slicer.settings.profiles.<name>",
    "settings.slices.gpu.": "programs.slicer.settings.slices.<name>",
    "settings.serve.<name>.": "programs.slicer.settings.serve.<name>",
    "settings.routes.<name>.": "programs.slicer.settings.routes.<name>",
    "settings.routes.<name>.gpu.": "programs.slicer.settings.routes.<name>.gpu, and .cpu",
    "settings.routes.<name>.to.<name>.": "programs.slicer.settings.routes.<name>.to.<name>",
}
_TWICE = (  # as those of gpu, and of users
    "settings.slices.cpu.", "settings.routes.<name>.cpu.", "broker.policy.groups.<name>.",
    "broker.policy.default.",
)  # fmt: skip
_ONCE = "broker.policy.groups.<name>.together"  # but this


def current(text: str, options: Iterable[Option]) -> str:
    """The page with the options as they are now."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PATH} has no lines {BEGIN!r} and {END!r}")
    return head + begin + rendered(options) + end + tail


def rendered(options: Iterable[Option]) -> str:
    """All options, a table for each group of them."""
    by_section: dict[str, list[Option]] = {section: [] for section in _SECTIONS}
    for option in options:
        name = _name(option)
        if name.startswith(_ONCE) or not name.startswith(_TWICE):
            by_section[max((each for each in _SECTIONS if name.startswith(each)), key=len)].append(option)
    parts = []
    for section, found in by_section.items():
        # Those of the configuration file have no default here: without them slicer's own holds.
        column = "example" if section else "default"
        parts += [f"### `{_SECTIONS[section]}`", "", f"| option | takes | {column} | |", "|---|---|---|---|"]
        parts += [_row(_name(option).removeprefix(section), option, column) for option in found]
        parts.append("")
    return "\n" + "\n".join(parts)


def _name(option: Option) -> str:
    return str(option["name"]).removeprefix("programs.slicer.").replace('"', "")


def _row(name: str, option: Option, column: str) -> str:
    takes = str(option["type"]).removeprefix("null or ").removeprefix("(").removesuffix(")")
    shown = _line(option[column] or "")
    if "submodule" in takes:  # a table of the file
        takes, shown = "options, see below", ""
    cells = (f"`{name}`", takes, f"`{shown}`" if shown else "", _prose(option["description"]))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _line(text: str) -> str:
    return " ".join(text.split())


def _prose(text: str) -> str:
    """A description in one line, without the roles of nixpkgs' Markdown."""
    return re.sub(r"\{(command|file|option|manpage)\}`", "`", _line(text))
