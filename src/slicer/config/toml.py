"""TOML text to data, the line of each key, and errors with file, line and column.

Imported only after a configuration file has changed: tomllib costs more than the rest of a start.
"""

from __future__ import annotations

import re
import tomllib

from slicer.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Keys = tuple[str, ...]

# Strings, other words, comments and signs. Up to two quotes may stand right before the closing three.
_TOKEN = re.compile(
    r"""(?s)(?P<quoted>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*')"""
    r"""|(?P<bare>[^][{}=,.#\s"']+)|\#[^\n]*|[][{}=,.\n]"""
)


def parse(content: bytes, where: str) -> tuple[dict[str, Any], dict[Keys, int]]:
    """The content of a TOML file, and the line of each of its keys.

    ``where`` is the file's name in errors. Raises ConfigError.
    """
    try:
        # Editors on Windows put a byte order mark first.
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise ConfigError("is not UTF-8 text", where=f"{where}:{line}:{column}") from None
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ConfigError("brackets are nested too deeply", where=where) from None
    except ValueError as error:  # TOMLDecodeError, and int() on a number of thousands of digits
        message, position = _position(str(error), text)
        raise ConfigError(f"not valid TOML: {message}", where=f"{where}{position}") from None
    return data, key_lines(text)


def _position(message: str, text: str) -> tuple[str, str]:
    """tomllib's ``... (at line 3, column 5)`` as a message and ``:3:5``."""
    what, _, where = message.rpartition(" (at ")
    if where == "end of document)":
        lines = text.rstrip("\n").split("\n")
        return what, f":{len(lines)}:{len(lines[-1]) + 1}"
    numbers = where.removesuffix(")").removeprefix("line ").split(", column ")
    if len(numbers) == 2 and all(number.isdigit() for number in numbers):
        return what, f":{numbers[0]}:{numbers[1]}"
    return message.partition("\n")[0], ""


def key_lines(text: str) -> dict[Keys, int]:
    """The first line (from 1) of each table and key, by its full path. ``text`` must be valid TOML.

    tomllib does not report it, and every error needs it. Keys inside a list have no path of their own.
    """
    lines: dict[Keys, int] = {}
    line, expects_key = 1, True
    parts: list[str] = []
    path: Keys | None = ()  # of the present value's key; None inside a list
    brackets: list[tuple[str, Keys | None]] = [("", ())]  # the table, then each open bracket, with its path
    for token in _TOKEN.finditer(text):
        word = token[0]
        if expects_key and token.lastgroup:
            parts.append(word if token.lastgroup == "bare" else tomllib.loads(f"key = {word}")["key"])
        elif parts and word in "=]":  # the end of a key, or of a table's header
            above = brackets[-1][1] if word == "=" else ()
            path = None if above is None else (*above, *parts)
            for depth in range(1, len(path or ()) + 1):
                lines.setdefault((path or ())[:depth], line)
            if word == "]":
                brackets = [("", path)]
            parts, expects_key = [], word == "]"
        elif word == "{" or (word == "[" and not expects_key):
            path = path if word == "{" else None
            brackets.append((word, path))
            expects_key = word == "{"
        elif word in "]}" and len(brackets) > 1:
            brackets.pop()
            expects_key = False
        elif word == ",":
            expects_key = brackets[-1][0] == "{"
        elif word == "\n" and len(brackets) == 1:
            expects_key = True
        line += word.count("\n")
    return lines
