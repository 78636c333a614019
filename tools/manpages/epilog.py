"""The end of a command's help (its epilog), taken apart: blocks of a heading and lines, and the examples."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """``heading`` without its colon, "" for mere text; ``lines`` keep their indentation below it."""

    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Item:
    """A term and what it means: a variable, an exit code, an example's command line."""

    term: str
    text: str


def blocks(epilog: str | None) -> list[Block]:
    """The blocks of an epilog as click takes it: with an empty line between them, and \\b before each."""
    return [_block(text) for text in re.split(r"\n\s*\n", (epilog or "").replace("\b\n", "").strip("\n"))]


def _block(text: str) -> Block:
    head, *rest = text.split("\n")
    if head.startswith("Exit codes: "):
        return Block("Exit codes", (head.removeprefix("Exit codes: "), *rest))
    if not head.endswith(":") or not all(line.startswith(" ") for line in rest):
        return Block("", (head, *rest))
    margin = min((len(line) - len(line.lstrip()) for line in rest), default=0)
    return Block(head.removesuffix(":"), tuple(line[margin:] for line in rest))


def examples(epilog: str | None) -> list[Item]:
    """The command lines under "Examples", and what is said of each: behind it, or below it and indented."""
    return [item for block in blocks(epilog) if block.heading == "Examples" for item in pairs(block.lines)]


def pairs(lines: tuple[str, ...]) -> list[Item]:
    """Lines of "term  text", or of a term with its text below it, indented."""
    found: list[Item] = []
    for line in lines:
        if line.startswith(" ") and found:
            last = found.pop()
            found.append(Item(last.term, f"{last.text} {line.strip()}".strip()))
        else:
            term, _, text = re.sub(r"\s{2,}", "\t", line.strip(), count=1).partition("\t")
            found.append(Item(term, text))
    return found


def codes(lines: tuple[str, ...]) -> tuple[list[Item], str]:
    """The numbers of "Exit codes" with what they mean, and the rest of the text."""
    found: list[Item] = []
    rest: list[str] = []
    for line in lines:
        code = re.match(r"\s*(\d+)  (.*)", line)
        if code:
            found.append(Item(code[1], code[2]))
        elif found and line.startswith("     "):
            last = found.pop()
            found.append(Item(last.term, f"{last.text} {line.strip()}"))
        else:
            rest.append(line.strip())
    return found, " ".join(rest)
