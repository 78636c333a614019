"""On which line each key of a TOML document stands: tomllib does not say, and every error should.

The document has been read by tomllib before, so this scanner only finds keys and skips values; it need not
tell good from bad.
"""

from __future__ import annotations

import tomllib

_BARE_END = " \t.=]\r\n#"


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The first line (from 1) of each table and key, by its full path; ``text`` must be valid TOML."""
    text = text.replace("\r\n", "\n")  # as tomllib does
    offsets: list[tuple[tuple[str, ...], int]] = []
    prefix: tuple[str, ...] = ()
    at = 0
    while at < len(text):
        if text[at] in " \t\n":
            at += 1
        elif text[at] == "#":
            at = _line_end(text, at)
        elif text[at] == "[":
            start = at
            at += 2 if text[at + 1] == "[" else 1
            prefix, at = _key(text, at)
            offsets.append((prefix, start))
            at = _line_end(text, at)
        else:
            at = _pair(text, at, prefix, offsets)
    return _to_lines(text, offsets)


def _to_lines(text: str, offsets: list[tuple[tuple[str, ...], int]]) -> dict[tuple[str, ...], int]:
    lines: dict[tuple[str, ...], int] = {}
    line, seen = 1, 0
    for path, offset in offsets:
        line += text.count("\n", seen, offset)
        seen = offset
        for depth in range(1, len(path) + 1):
            lines.setdefault(path[:depth], line)
    return lines


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _pair(text: str, at: int, prefix: tuple[str, ...], offsets: list[tuple[tuple[str, ...], int]]) -> int:
    """Past ``key = value`` at ``at``, noting the key and those of an inline table in the value."""
    start = at
    key, at = _key(text, at)
    path = prefix + key
    offsets.append((path, start))
    return _value(text, text.index("=", at) + 1, path, offsets)


def _key(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """A dotted key at ``at``: its parts, and the position after it."""
    parts = []
    while True:
        at = _blank(text, at, " \t")
        if text[at] in "\"'":
            end = _string_end(text, at)
            parts.append(_unquoted(text[at:end]))
        else:
            end = at
            while text[end] not in _BARE_END:
                end += 1
            parts.append(text[at:end])
        at = _blank(text, end, " \t")
        if text[at] != ".":
            return tuple(parts), at
        at += 1


def _unquoted(quoted: str) -> str:
    return str(tomllib.loads(f"k = {quoted}")["k"]) if "\\" in quoted else quoted[1:-1]


def _blank(text: str, at: int, what: str) -> int:
    while at < len(text) and text[at] in what:
        at += 1
    return at


def _gap(text: str, at: int) -> int:
    """Past blanks, newlines and comments, as they may stand inside brackets."""
    while True:
        at = _blank(text, at, " \t\n")
        if text[at] != "#":
            return at
        at = _line_end(text, at)


def _string_end(text: str, at: int) -> int:
    quote = text[at]
    long = text.startswith(quote * 3, at)
    end = at + (3 if long else 1)
    closing = quote * 3 if long else quote
    while not text.startswith(closing, end):
        end += 2 if quote == '"' and text[end] == "\\" else 1
    end += len(closing)
    # Up to two quotes may stand right before the closing three.
    while long and text.startswith(quote, end):
        end += 1
    return end


def _value(text: str, at: int, path: tuple[str, ...], offsets: list[tuple[tuple[str, ...], int]]) -> int:
    at = _blank(text, at, " \t")
    first = text[at]
    if first in "\"'":
        return _string_end(text, at)
    if first == "[":
        at = _gap(text, at + 1)
        while text[at] != "]":
            # Keys inside a list have no path of their own.
            at = _gap(text, _value(text, at, path, []))
            at = _gap(text, at + 1) if text[at] == "," else at
        return at + 1
    if first == "{":
        at = _gap(text, at + 1)
        while text[at] != "}":
            at = _gap(text, _pair(text, at, path, offsets))
            at = _gap(text, at + 1) if text[at] == "," else at
        return at + 1
    while at < len(text) and text[at] not in ",]}#\n":
        at += 1
    return at
