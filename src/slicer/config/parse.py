"""TOML text to data, and tomllib's complaints to errors that name file, line and column.

Apart from :mod:`slicer.config.files`, since importing tomllib costs more than all the rest of a start: it
happens only where a configuration file has changed.
"""

from __future__ import annotations

import tomllib

from slicer.config.files import printable
from slicer.config.toml_lines import key_lines
from slicer.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def parse(path: str, content: bytes) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    """The content of a TOML file and the line of each of its keys; raises ConfigError."""
    try:
        # Editors on Windows put a byte order mark first.
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise ConfigError("is not UTF-8 text", where=f"{printable(path)}:{line}:{column}") from None
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ConfigError("brackets are nested too deeply", where=printable(path)) from None
    except ValueError as error:  # TOMLDecodeError, and int() on a number of thousands of digits
        message, position = _position(str(error), text)
        raise ConfigError(f"not valid TOML: {message}", where=f"{printable(path)}{position}") from None
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
