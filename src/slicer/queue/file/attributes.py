"""The attributes in brackets before a command of the jobs file: ``[vram=18G gpus=2 timeout=2h cancel]``.

Blanks separate the words. A value may be quoted as in a shell (``name="my job"``), but nothing is expanded.
If an attribute is repeated, the last one counts, but ``after`` adds up. Attributes' names ignore case.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any, NamedTuple

from slicer.config.build import SHARES
from slicer.errors import UsageError
from slicer.model import PRIORITY_MAX
from slicer.moments import coming
from slicer.queue.model import Attributes, Kind
from slicer.retry import Retry, parse_retry
from slicer.state.statefile import is_slot_name
from slicer.text import split_list

# The text between the brackets: up to the first "]" that is neither quoted nor escaped.
INSIDE = r"""(?:[^]'"\\]++|'[^']*+'|"(?:[^"\\]|\\.)*+"|\\.)*+"""
NAME_MAX = 200  # characters

_WORD = re.compile(r"""(?:[^\s'"\\]++|'[^']*+'|"(?:[^"\\]|\\.)*+"|\\.)++""", re.DOTALL)
_QUOTED = re.compile(r"""'(?P<raw>[^']*)'|"(?P<escaped>(?:[^"\\]|\\.)*)"|\\(?P<one>.)""", re.DOTALL)
_ESCAPED = re.compile(r'\\([\\"$`])')  # what a backslash escapes inside "..." in a shell
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:(g(?:i?b)?)|m(?:i?b)?)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SHAPE = re.compile(r"\w[\w.-]*")  # of the name of an attribute, known or not
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLAGS = ("cancel", "preemptible", "snapshot")  # the attributes without a value
_SHOWN = 40  # characters of a value that an error repeats


class AttributeProblem(UsageError):
    """An attribute is wrong. ``offset`` is its place, in characters from behind the opening bracket."""

    def __init__(self, message: str, hint: str = "", offset: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.offset = offset


class Word(NamedTuple):
    """One word in the brackets, as written. ``key`` is in lower case; ``value`` is None without a "="."""

    offset: int
    text: str
    key: str
    value: str | None


def words(inside: str) -> list[Word]:
    """The words between the brackets. Quotes and brackets must be balanced."""
    found = []
    for match in _WORD.finditer(inside):
        key, has_value, value = match[0].partition("=")
        key = key[:4].lower() + key[4:] if key[:4].lower() == "env." else key.lower()
        found.append(Word(match.start(), match[0], key, value if has_value else None))
    return found


def is_attribute(word: Word) -> bool:
    """Whether the word has the shape of an attribute, known or not."""
    if word.value is None:
        return word.key in _FLAGS
    return _SHAPE.fullmatch(word.key) is not None


def is_known(word: Word) -> bool:
    """Whether the word begins as a known attribute does."""
    return word.value is not None and (word.key in _READ or word.key.startswith("env."))


def parse(inside: str) -> Attributes:
    """The attributes between the brackets. Raises AttributeProblem."""
    said: dict[str, Any] = {}  # the fields of Attributes and Kind
    after: dict[str, None] = {}
    env: dict[str, str] = {}
    found = words(inside)
    for word in found:
        try:
            if word.value is None:
                _read_bare(word, said)
            elif word.key.startswith("env."):
                variable = word.text[4 : len(word.key)]
                if _IDENTIFIER.fullmatch(variable) is None:
                    hint = f"as in {_KNOWN['env'].example}"
                    raise AttributeProblem(f"a variable cannot be named {_show(variable)}", hint)
                env[variable] = unquote(word.value)
            elif word.key == "after":
                after.update(dict.fromkeys(_names(unquote(word.value))))
            elif word.key in _READ:
                known = _READ[word.key]
                said[known.field] = known.read(unquote(word.value))
            else:
                raise _unknown(word)
        except AttributeProblem as problem:
            problem.offset = word.offset
            raise
    if said.get("gpus") == 0 and "vram_mib" in said:
        last = max(word.offset for word in found if word.key == "gpus")
        raise AttributeProblem("a job with gpus=0 cannot have vram", "leave one of them out", last)
    kind = Kind(**{name: said.pop(name) for name in Kind._fields if name in said})
    return Attributes(kind, **said, after=tuple(after), env=tuple(env.items()))


def unquote(value: str) -> str:
    """The value without its quotes, as a shell would pass it on; nothing is expanded."""
    return _QUOTED.sub(_unquoted, value)


def _unquoted(match: re.Match[str]) -> str:
    if match["escaped"] is not None:
        return _ESCAPED.sub(r"\1", match["escaped"])
    return match["raw"] if match["raw"] is not None else match["one"]


def _show(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...")


def _cannot_be(what: str, value: str, hint: str) -> AttributeProblem:
    return AttributeProblem(f"{what} cannot be {_show(value)}", hint)


def _read_bare(word: Word, said: dict[str, Any]) -> None:
    if word.key in _FLAGS:
        said[word.key] = True
    elif word.key in _KNOWN:
        hint = f"as in {_KNOWN[word.key].example}, without blanks around the ="
        raise AttributeProblem(f"{word.key} needs a value", hint)
    else:
        raise _unknown(word)


def _unknown(word: Word) -> AttributeProblem:
    if word.key == "route":
        return AttributeProblem("there are no routes yet: jobs run on this machine", "leave route= out")
    if word.key == "env":
        return AttributeProblem("env needs the name of a variable", f"as in {_KNOWN['env'].example}")
    if word.key in _FLAGS:
        return AttributeProblem(f"{word.key} takes no value", f"write just {word.key}")
    if word.text.startswith("["):
        return AttributeProblem("there is one bracket too many", "as in [vram=18G] COMMAND")
    if word.text.startswith("-"):
        hint = "a shell's test needs a blank after its ["
        return AttributeProblem(f"unknown attribute {_show(word.text)}", hint)
    from slicer.config.property_names import nearest

    names = _KNOWN if word.value is not None else (*_FLAGS, *_KNOWN)
    wanted = nearest(word.key, names)
    known = ", ".join((*_FLAGS, *(f"{name}=" for name in _KNOWN if name != "env"), "env.NAME="))
    meant = _KNOWN[wanted].example if wanted in _KNOWN else wanted
    hint = f"did you mean {meant}?" if wanted else f"known: {known}"
    return AttributeProblem(f"unknown attribute {_show(word.text)}", hint)


def _vram(value: str) -> int:
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        between = "blanks, not commas, go between attributes" if "," in value else ""
        raise _cannot_be("vram", value, between or "as in vram=18G or vram=18000 (MiB)")
    mib = float(match[1]) * (1024 if match[2] else 1)
    if not isfinite(mib) or round(mib) < 1:
        raise _cannot_be("vram", value, "at least 1 MiB; leave it out if it is not known")
    return round(mib)


def _duration(what: str, without: str) -> Callable[[str], float]:
    """A reader of a duration; ``without`` says what it means to leave it out."""

    def read(value: str) -> float:
        match = _DURATION.fullmatch(value.strip())
        unit = _SECONDS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise _cannot_be(what, value, "as in 90s, 15m, 2h or 1d")
        seconds = float(match[1]) * unit
        if not isfinite(seconds) or seconds <= 0:
            raise _cannot_be(what, value, f"more than 0; leave it out {without}")
        return seconds

    return read


def _whole(what: str, least: int, most: int | None = None) -> Callable[[str], int]:
    room = f"at least {least}" if most is None else f"from {least} to {most}"

    def read(value: str) -> int:
        with suppress(ValueError):
            number = int(value)
            if least <= number and (most is None or number <= most):
                return number
        raise _cannot_be(what, value, f"a whole number, {room}")

    return read


def retry(value: str) -> Retry:
    """As in ``any:2``, ``gpu:0`` or ``any:2,gpu:5``: how often to run a job again."""
    try:
        return parse_retry(value)
    except ValueError as error:
        raise _cannot_be("retry", value, f"{error}; retries=2 is for CUDA's out of memory") from None


def _slots(value: str) -> tuple[tuple[str, int], ...]:
    """As in ``license-matlab,whisper-gpu=2``; without a number, one slot."""
    found: dict[str, int] = {}
    for word in _split(value):
        name, equals, count = (part.strip() for part in word.partition("="))
        if not is_slot_name(name):
            raise _cannot_be("the name of a slot", name, f"as in {_KNOWN['slots'].example}")
        if name in found:
            raise AttributeProblem(f"slot {name} is given twice", f"write {name}=N once")
        found[name] = _SLOT_COUNT(count) if equals else 1
    return tuple(sorted(found.items()))


def _text(what: str) -> Callable[[str], str]:
    """A reader of texts that must not be empty."""

    def read(value: str) -> str:
        if not value.strip():
            raise AttributeProblem(f"{what} needs a value", f"as in {_KNOWN[what].example}")
        return value

    return read


_SLOT_COUNT = _whole("a number of slots", 0)


def _name(value: str) -> str:
    name = value.strip()
    if not name:
        raise AttributeProblem("a name is missing", "as in name=train or after=train,eval")
    if "," in name or not name.isprintable():
        raise _cannot_be("a name", name, "printable characters other than commas")
    if len(name) > NAME_MAX:
        raise AttributeProblem(f"the name is too long: {len(name)} characters", f"at most {NAME_MAX}")
    return name


def _names(value: str) -> list[str]:
    return [_name(each) for each in _split(value)]


def _split(value: str) -> list[str]:
    try:
        return split_list(value)
    except ValueError as error:
        raise AttributeProblem(str(error)) from None


class _Attribute(NamedTuple):
    example: str
    field: str = ""  # of Attributes or Kind; "" for those that add up
    read: Callable[[str], object] = str


def _one_of(what: str, words: tuple[str, ...]) -> Callable[[str], str]:
    def read(value: str) -> str:
        word = value.strip().lower()
        if word in words:
            return word
        from slicer.config.property_names import nearest

        close = nearest(word, words)
        hint = f"did you mean {what}={close}?" if close else f"one of {', '.join(words)}"
        raise _cannot_be(what, value, hint)

    return read


def _begin(value: str) -> str:
    try:
        coming(value, 0.0)  # whether it has passed shows once the queue sees the line
    except ValueError as error:
        raise AttributeProblem(f"begin={value!r:.40} is not a time", str(error)) from error
    return value


_KNOWN = {
    "vram": _Attribute("vram=18G", "vram_mib", _vram),
    "share": _Attribute("share=both", "share", _one_of("share", SHARES)),
    "gpus": _Attribute("gpus=2", "gpus", _whole("gpus", 0)),
    "slots": _Attribute("slots=license-matlab,whisper-gpu=2", "slots", _slots),
    "timeout": _Attribute("timeout=2h", "timeout_s", _duration("timeout", "for no limit")),
    "expect": _Attribute("expect=40m", "expect_s", _duration("expect", "if it is not known")),
    "begin": _Attribute("begin=22:00", "begin", _begin),
    "retries": _Attribute("retries=2", "retries", _whole("retries", 0)),
    "retry": _Attribute("retry=any:2", "retry", retry),
    "profile": _Attribute("profile=cpu", "profile", _text("profile")),
    "priority": _Attribute("priority=10", "priority", _whole("priority", -PRIORITY_MAX, PRIORITY_MAX)),
    "engine": _Attribute("engine=slurm", "engine", _one_of("engine", ("local", "slurm"))),
    "name": _Attribute("name=train", "name", _name),
    "cwd": _Attribute("cwd=/data", "cwd", _text("cwd")),
    "snapshot": _Attribute("snapshot=/PATH", "snapshot", _text("snapshot")),
    "after": _Attribute("after=train"),
    "env": _Attribute("env.SEED=17"),
}
_READ = {key: attribute for key, attribute in _KNOWN.items() if attribute.field}
EXAMPLES = {key: attribute.example for key, attribute in _KNOWN.items()}
