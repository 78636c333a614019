"""The manual pages of the commands, from what click knows of each: so of new commands too."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from docutils import nodes

from tools.manpages import page
from tools.manpages.epilog import Block, blocks, codes, pairs
from tools.manpages.tree import WIDTH, Command, subcommands

HAVE_PROFILES = ("slicer run", "slicer hold", "slicer queue", "slicer profiles")


def build(command: Command, known: list[Command], date: str) -> str:
    """The page of one command."""
    document = page.header(command.page, 1, command.about, date)
    found = blocks(command.command.epilog)
    parts = [
        page.section("Synopsis", *_synopsis(command)),
        page.section("Description", *page.paragraphs(command.command.help or ""), *_texts(found)),
        _subcommands(command),
        page.section("Options", page.options(_options(command))),
        *(_block(block) for block in found if block.heading),
        None if any(block.heading == "Exit codes" for block in found) else _exit_status(),
        _see_also(command, known),
    ]
    document += [part for part in parts if part is not None]
    return page.write(document)


def _synopsis(command: Command) -> list[nodes.Node]:
    lines = nodes.line_block()
    usages = [(command.words, command.command.collect_usage_pieces(command.context()))]
    for below in subcommands(command):
        usages.append((below.words, below.command.collect_usage_pieces(below.context())))
    for words, pieces in usages:
        line = nodes.line()
        line += nodes.strong(text=words)
        for piece in pieces:
            line += nodes.Text(" ")
            line += _usage(piece)
        lines += line
    return [lines]


def _usage(piece: str) -> list[nodes.Node]:
    """A piece of a usage line, its words for what is to be filled in set apart."""
    parts = re.split(r"([A-Z]{2,}|[A-Z]\b)", piece)
    return [page.marked(nodes.emphasis, part, number % 2) for number, part in enumerate(parts) if part]


def _texts(found: list[Block]) -> list[nodes.paragraph]:
    texts = ["\n".join(block.lines) for block in found if not block.heading]
    return [page.paragraph(text) for text in texts if text]


def _subcommands(command: Command) -> nodes.section | None:
    below = subcommands(command)
    if not below:
        return None
    listed = nodes.definition_list()
    for each in below:
        term = nodes.term()
        term += nodes.strong(text=f"{each.page}(1)")
        text = nodes.definition()
        text += page.paragraph(each.command.get_short_help_str(WIDTH))
        listed += nodes.definition_list_item("", term, text)
    return page.section("Commands", listed)


def _options(command: Command) -> Iterator[tuple[tuple[str, ...], str, str]]:
    context = command.context()
    for parameter in command.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or not isinstance(parameter, click.Option):
            continue
        metavar = "" if parameter.is_flag or parameter.count else parameter.make_metavar(context)
        yield (*parameter.opts, *parameter.secondary_opts), metavar, record[1]


def _block(block: Block) -> nodes.section | None:
    heading, lines = block.heading, block.lines
    if heading == "Examples":
        items = pairs(lines)
        if any(not item.text for item in items):  # lines that belong together
            return page.section("Examples", page.literal(lines))
        return page.section("Examples", page.definitions(items))
    if heading.startswith("Commands"):
        return None  # they have a section
    if heading == "Exit codes":
        listed, rest = codes(lines)
        text = page.paragraph(rest) if rest else None
        return page.section("Exit status", text, page.definitions(listed) if listed else None)
    title, comma, more = heading.partition(", ")
    intro = page.paragraph(f"{more[:1].upper()}{more[1:]}:") if comma else None
    items = pairs(lines)
    is_table = all(item.text for item in items)
    return page.section(title, intro, page.definitions(items) if is_table else page.literal(lines))


def _exit_status() -> nodes.section | None:
    text = "0; 2 for a command line that cannot be right; 125 where slicer itself failed: see slicer(1)."
    return page.section("Exit status", page.paragraph(text))


def _see_also(command: Command, known: list[Command]) -> nodes.section | None:
    """The commands that the help speaks of, and those beside it."""
    said = f"{command.command.help}\n{command.command.epilog}"
    below = {each.page for each in subcommands(command)}
    pages = []
    for other in known:
        parent = other.words.rpartition(" ")[0]
        is_near = other.words == command.words.rpartition(" ")[0] or parent == command.words
        is_said = re.search(rf"\b{re.escape(other.words)}\b", said) is not None
        if other.words != command.words and (is_near or is_said) and other.page not in below:
            pages.append(f"{other.page}(1)")
    more = ["slicer.toml(5)"] if command.words.startswith(HAVE_PROFILES) else []
    return page.section("See also", page.paragraph(", ".join(["slicer(1)", *pages, *more])))


def list_of_commands(known: list[Command]) -> nodes.definition_list:
    """For slicer(1): each command with its line."""
    made = nodes.definition_list()
    for command in known:
        if command.words.count(" ") > 1:
            continue
        term = nodes.term()
        term += nodes.strong(text=f"{command.page}(1)")
        text = nodes.definition()
        text += page.paragraph(command.command.get_short_help_str(WIDTH))
        made += nodes.definition_list_item("", term, text)
    return made
