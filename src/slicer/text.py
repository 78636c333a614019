"""Makes foreign text fit for display: names, commands, paths and errors may contain anything.

Pure, except for the user's time zone.
"""

from __future__ import annotations

import time

_LINE_CHARS = 500
_COMMAND_CHARS = 160
_NEEDS_QUOTES = frozenset(" \t\n'\"\\$`&|;<>()*?[]{}~#!")  # a word with one of these needs quotes in a shell


def visible(text: str, keep: str = "") -> str:
    """The text with all unprintable characters escaped, except those in ``keep``.

    So it can neither leave its line nor control the terminal. A byte that is no text is shown as ``\\xff``.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    return f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else ascii(char)[1:-1]


def one_line(text: str, most: int = _LINE_CHARS) -> str:
    """As :func:`visible`, in at most ``most`` characters."""
    shown = visible(text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def without_middle(text: str, most: int) -> str:
    """As :func:`visible` in one line, but without the middle: the lines of a sweep differ at their ends."""
    if len(text) > 2 * most:
        text = text[:most] + text[-most:]  # the rest would be cut anyway
    shown = visible(text)
    if len(shown) <= most:
        return shown
    front = most // 2
    return f"{shown[:front]}…{shown[len(shown) - (most - 1 - front) :]}"


def but_numbers(text: str) -> str:
    """The text with 0 for each number: equal for texts that are alike but for times, seeds and the like."""
    from itertools import groupby

    return "".join("0" if is_number else "".join(run) for is_number, run in groupby(text, str.isdecimal))


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def split_list(text: str) -> list[str]:
    """The values between a user's commas, without the blanks around them.

    A comma in brackets or quotes, or after a backslash, is part of its value. Quotes around a whole value are
    removed. Raises ValueError if a bracket or quote is not closed.
    """
    found = [""]
    is_open: list[str] = []  # what closes the quote and brackets around a character, innermost last
    before = ""
    for char in text:
        if before == "\\":
            found[-1] = found[-1][:-1] + "," if char == "," else found[-1] + char
            before = ""  # an escaped backslash escapes nothing
            continue
        if char == "," and not is_open:
            found.append("")
        else:
            _follow(char, is_open, is_first=not found[-1].strip())
            found[-1] += char
        before = char
    if is_open:
        raise ValueError(f"there is no closing {is_open[-1]}: {one_line(text, 60)}")
    return [_unquoted(value.strip()) for value in found]


def _follow(char: str, is_open: list[str], *, is_first: bool) -> None:
    """Whether the character opens or closes something. A quote within a word is an apostrophe."""
    if is_open and char == is_open[-1]:
        is_open.pop()
    elif is_open and is_open[-1] in "'\"":
        return
    elif char in _CLOSING:
        is_open.append(_CLOSING[char])
    elif char in "'\"" and (is_open or is_first):
        is_open.append(char)


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] in "'\"" and value.find(value[0], 1) == len(value) - 1
    return value[1:-1] if is_quoted else value


def clock(at: float) -> str:
    """A time in seconds since the epoch as the user's clock shows it: ``17:03:25``."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def counted(number: int, what: str) -> str:
    """As in "1 job" and "3 jobs"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def slot_words(name: str, number: int) -> str:
    """As in "1 CPU slot" and "2 whisper-gpu slots"."""
    return counted(number, f"{'CPU' if name == 'cpu' else name} slot")


def slots_words(slots: dict[str, int]) -> list[str]:
    """The same for all slots, in the order of their names."""
    return [slot_words(name, slots[name]) for name in sorted(slots)]


def a_slot(name: str) -> str:
    """As in "a CPU slot" and "an ocr-gpu slot"."""
    return f"{'an' if name[:1] in tuple('aeiouAEIOU') else 'a'} {slot_words(name, 1)[2:]}"


def quote(argument: str) -> str:
    """One argument as typed in a shell, and visible."""
    shown = visible(argument)
    if shown and _NEEDS_QUOTES.isdisjoint(shown):
        return shown
    return "'" + shown.replace("'", "'\\''") + "'"


def command_text(command: tuple[str, ...], limit: int = _COMMAND_CHARS) -> str:
    """A command as typed in a shell, in at most ``limit`` characters."""
    shown = ""
    for argument in command:
        # Cut before quoting, too: an argument may have megabytes.
        shown += (" " if shown else "") + quote(argument[: limit + 1])
        if len(shown) > limit:
            return shown[: limit - 1] + "…"
    return shown
