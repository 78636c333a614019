"""One manual page as a tree of docutils, which writes it as roff."""

from __future__ import annotations

import re
from collections.abc import Iterable

from docutils import nodes
from docutils.core import publish_doctree, publish_from_doctree

from tools.manpages.epilog import Item

SETTINGS = {"report_level": 2, "halt_level": 2, "input_encoding": "utf-8", "output_encoding": "utf-8"}


def read(text: str, path: str) -> nodes.document:
    """A page that is written in reStructuredText. Raises docutils' SystemMessage for what is wrong in it."""
    return publish_doctree(text, source_path=path, settings_overrides=SETTINGS)


def header(name: str, section: int, about: str, date: str) -> nodes.document:
    """A page of that name with nothing in it yet."""
    width = max(len(name), len(about))
    over, below = "=" * width, "-" * width
    return read(
        f"{over}\n{name}\n{over}\n\n{below}\n{about}\n{below}\n\n"
        f":Manual section: {section}\n:Manual group: slicer\n:Date: {date}\n",
        name,
    )


def write(document: nodes.document) -> str:
    """The page as roff."""
    made: bytes = publish_from_doctree(document, writer="manpage", settings_overrides=SETTINGS)
    text = made.decode()
    text = text.replace(".SH Name\n", ".SH NAME\n", 1)
    # Neither words nor lines are pulled apart: most of it is to be typed.
    text = re.sub(r"^(\.TH .*\n)", r"\1.nh\n.ad l\n", text, flags=re.M)
    # A paragraph right after a heading is one that mandoc's lint does not like.
    return re.sub(r"^(\.S[HS] .*\n)\.sp\n", r"\1", text, flags=re.M)


def section(title: str, *content: nodes.Node | None) -> nodes.section | None:
    """A section; None where there is nothing to be in it."""
    found = [each for each in content if each is not None]
    if not found:
        return None
    made = nodes.section(ids=[nodes.make_id(title)])
    made += nodes.title(text=title.upper())
    made += found
    return made


def inline(text: str) -> list[nodes.Node]:
    """Running text, in which `words` between backquotes are for the keyboard."""
    parts = re.split(r"`([^`]+)`", " ".join(text.split()))
    return [marked(nodes.literal, part, number % 2) for number, part in enumerate(parts) if part]


def marked(kind: type[nodes.TextElement], text: str, is_marked: object) -> nodes.Node:
    """The text as that kind of node, or as it is."""
    return kind(text=text) if is_marked else nodes.Text(text)


def paragraph(text: str) -> nodes.paragraph:
    made = nodes.paragraph()
    made += inline(text)
    return made


def paragraphs(text: str) -> list[nodes.paragraph]:
    return [paragraph(part) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def literal(lines: Iterable[str]) -> nodes.literal_block:
    text = "\n".join(lines)
    return nodes.literal_block(text, text)


def definitions(items: Iterable[Item]) -> nodes.definition_list:
    made = nodes.definition_list()
    for item in items:
        term = nodes.term()
        term += nodes.strong(text=item.term)
        text = nodes.definition()
        text += paragraph(item.text)
        made += nodes.definition_list_item("", term, text)
    return made


def options(found: Iterable[tuple[tuple[str, ...], str, str]]) -> nodes.option_list | None:
    """Options of (names, metavar, help)."""
    made = nodes.option_list()
    for names, metavar, text in found:
        group = nodes.option_group()
        for name in names:
            option = nodes.option()
            option += nodes.option_string(text=name)
            if metavar:
                option += nodes.option_argument(text=metavar, delimiter="=" if name.startswith("--") else " ")
            group += option
        description = nodes.description()
        description += paragraph(text)
        made += nodes.option_list_item("", group, description)
    return made if len(made) else None
