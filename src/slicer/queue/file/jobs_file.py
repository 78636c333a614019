"""Reads the jobs file: a shell command a line, with optional attributes in brackets before it.

::

    # comments and blank lines are skipped
    python train.py                                  # nothing declared: alone on an idle GPU
    [vram=18G gpus=2 timeout=2h retries=2] torchrun train.py
    [name=eval after=train cancel] python eval.py    # not started, or ended if it runs
    [ -f data.bin ] && python train.py               # a shell's own bracket: no attributes

If everything in the brackets has the form ``word=value`` (or is ``cancel``), it is read as attributes,
whatever follows. A typo in them is an error; the line is never run.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import NamedTuple

from slicer.errors import StateError, UsageError
from slicer.queue.file import attributes
from slicer.queue.file.attributes import AttributeProblem
from slicer.queue.model import Attributes, Entry
from slicer.state.named_file import open_own

try:
    # Python's own: hashlib loads OpenSSL first, which takes 2.5 ms.
    from _sha1 import sha1  # type: ignore[import-not-found]
except ImportError:  # a Python that has only OpenSSL's
    from hashlib import sha1

_LINE = re.compile(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)")  # as Python's text mode splits
_BLOCK = re.compile(rf"\[({attributes.INSIDE})\]\s*", re.DOTALL)
_SHELL_OPENS = re.compile(r"\[\[?(?=\s)")
_SHELL_GOES_ON = re.compile(r"[&|;)<>]|\d+[<>]")  # may follow a shell's closing bracket
_PLAIN = re.compile(r"[A-Za-z]+")
_COMPARED = 2000  # the largest number of names compared with a misspelt one
_NONE = Attributes()
_OWN = "another user could make root run anything: copy it to a directory of root's, or use --trust-file"


class JobsFileError(UsageError):
    """The file is unreadable or invalid. ``line`` and ``column`` count from 1; 0: the whole file.

    ``key``: the attribute that is wrong, if its column is still to be found (:func:`placed`).
    """

    kind = "jobs-file"

    def __init__(
        self, message: str, line: int = 0, column: int = 0, *, name: str = "jobs file", hint: str = "",
        key: str = "",
    ) -> None:  # fmt: skip
        super().__init__(message, where=f"{name}:{line}:{column}" if line else name, hint=hint)
        self.line = line
        self.column = column
        self.name = name
        self.key = key


class FileLine(NamedTuple):
    number: int
    column: int  # of the first character that is not a blank
    start: int  # the offset of that character in the text
    inside: str | None  # the text between the brackets; None without brackets
    command: str
    command_column: int


class Keys:
    """Gives each command its key. A repeated command gets another key."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def next(self, command: str) -> str:
        before = self._seen.get(command, 0)
        self._seen[command] = before + 1
        digest = sha1(command.encode(), usedforsecurity=False).hexdigest()
        return f"{digest[:12]}#{before}"


def load(path: str) -> tuple[Entry, ...]:
    """The jobs of the file. Raises JobsFileError."""
    return parse(read(path), name=path)


def read(path: str, *, keep_newlines: bool = False, is_live: bool = False, is_own: bool = False) -> str:
    """The file's text, with "\\n" as the only line end unless ``keep_newlines``. Raises JobsFileError.

    A pipe is read to its end, which works only once. ``is_live`` refuses pipes, which would block the queue.
    ``is_own``: root will run the file's commands, so a file that another user may change is refused.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # it may be a FIFO without a writer
    try:
        fd = open_own(path, flags) if is_own and not os.geteuid() else os.open(path, flags)
        with open(fd, "rb"):
            text = content(fd, path, is_live=is_live)
    except OSError as error:
        raise JobsFileError(f"cannot be read: {error.strerror}", name=path) from error
    except StateError as error:
        at = "" if error.where == path else f"{error.where} "
        raise JobsFileError(f"root does not run it: {at}{error.message}", name=path, hint=_OWN) from error
    return text if keep_newlines else _newlines_only(text)


def content(fd: int, path: str, *, is_live: bool = False) -> str:
    """The text of an open file, with unchanged line ends. Raises OSError, JobsFileError."""
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode) and (is_live or not stat.S_ISFIFO(mode)):
        raise JobsFileError("is not a regular file", name=path)
    os.set_blocking(fd, True)
    with open(fd, "rb", closefd=False) as file:
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = _newlines_only(data[: error.start].decode().removeprefix("\ufeff"))
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        byte = f"0x{data[error.start]:02x}"
        raise JobsFileError(
            f"byte {byte} is not UTF-8", line, column, name=path, hint="save the file as UTF-8"
        ) from error


def parse(text: str, *, known: Collection[str] = (), name: str = "jobs file") -> tuple[Entry, ...]:
    """The jobs, in order. ``known``: names of jobs no longer in the file. Raises JobsFileError."""
    keys = Keys()
    cache: dict[str, Attributes] = {}
    entries = []
    for line in lines(text, name):
        said = read_attributes(line, cache, name)
        entries.append(Entry(line.number, keys.next(line.command), line.command, said))
    _check_after(entries, known, text, name)
    return tuple(entries)


def lines(text: str, name: str = "jobs file") -> Iterator[FileLine]:
    """The jobs of the text, with unparsed attributes. Raises JobsFileError on the way."""
    first = len(text) - len(text.removeprefix("\ufeff"))
    for number, match in enumerate(_LINE.finditer(text, first), 1):
        line = match[1]
        stripped = line.strip()
        if not stripped or stripped[0] == "#":
            continue
        start = line.find(stripped[0])
        if "\0" in stripped:
            column = line.index("\0") + 1
            raise JobsFileError("there is a NUL character", number, column, name=name, hint="remove it")
        if line[-1] == "\\" and (len(line) - len(line.rstrip("\\"))) % 2:
            hint = "write the command on one line, or into a script"
            message = "a line that ends in a backslash does not continue on the next one"
            raise JobsFileError(message, number, len(line), name=name, hint=hint)
        try:
            inside, command = _split(stripped)
        except AttributeProblem as problem:
            raise _placed(problem, number, start, name) from None
        ahead = start + len(stripped) - len(command)
        yield FileLine(number, start + 1, match.start() + start, inside, command, ahead + 1)


def read_attributes(line: FileLine, cache: dict[str, Attributes], name: str = "jobs file") -> Attributes:
    """The line's attributes. Equal texts share one object through ``cache``. Raises JobsFileError."""
    if line.inside is None:
        return _NONE
    found = cache.get(line.inside)
    if found is None:
        try:
            found = cache[line.inside] = attributes.parse(line.inside)
        except AttributeProblem as problem:
            raise _placed(problem, line.number, line.column - 1, name) from None
    return found


def refused(entry: Entry, message: str, hint: str, key: str = "") -> JobsFileError:
    """The error for a line that reads well, but cannot run here. ``key``: the attribute that it is about."""
    return JobsFileError(message, entry.number, 1, hint=hint, key=key)


def placed(error: JobsFileError, text: str, name: str) -> JobsFileError:
    """The error with the file's name, and with the column of the attribute that it is about."""
    column = _column(text, error.line, error.key) if error.key else error.column
    return JobsFileError(error.message, error.line, column, name=name, hint=error.hint)


def _newlines_only(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _placed(problem: AttributeProblem, number: int, start: int, name: str) -> JobsFileError:
    """The problem with its place in the file; ``start`` characters precede the bracket."""
    column = start + 2 + problem.offset
    return JobsFileError(problem.message, number, column, name=name, hint=problem.hint)


def _split(stripped: str) -> tuple[str | None, str]:
    """The text between the brackets (None without brackets), and the command. Raises AttributeProblem."""
    if stripped[0] != "[":
        return None, stripped
    match = _BLOCK.match(stripped)
    if _SHELL_OPENS.match(stripped) and _is_shell(stripped, match):
        return None, stripped
    if match is None:
        raise _unclosed(stripped)
    command = stripped[match.end() :]
    if not command:
        raise AttributeProblem(
            "there is no command after the brackets", "write both on one line", match.end() - 1
        )
    return match[1], command


def _is_shell(stripped: str, match: re.Match[str] | None) -> bool:
    """Whether brackets that open with a blank are a shell's test, as in ``[ -f x ] && make``.

    They are not a test if all words in them have the form of attributes. Nor are they if one word is meant as
    an attribute and the text that follows would be wrong in a shell.
    """
    opening = 2 if stripped.startswith("[[") else 1
    if match is None:  # a shell knows more kinds of quotes
        found = attributes.words(stripped[opening:])
        return "]" in stripped and not (found and attributes.is_attribute(found[0]))
    found = attributes.words(match[1][opening - 1 :])
    if all(map(attributes.is_attribute, found)):
        return False
    if _SHELL_GOES_ON.match(stripped, match.end()):
        return True
    is_plain = all(attributes.is_attribute(word) or _PLAIN.fullmatch(word.text) for word in found)
    return not is_plain and not any(map(attributes.is_known, found))


def _unclosed(stripped: str) -> AttributeProblem:
    end = re.compile(attributes.INSIDE, re.DOTALL).match(stripped, 1)
    stop = end.end() if end is not None else 1
    if stripped[stop : stop + 1] in ("'", '"'):
        return AttributeProblem(
            f"the quote {stripped[stop]} is not closed", "close it on the same line", stop - 1
        )
    return AttributeProblem(
        "the bracket [ is not closed", "as in [vram=8G] COMMAND; a shell's test is [ -f FILE ] && COMMAND", -1
    )


def _check_after(entries: list[Entry], known: Collection[str], text: str, name: str) -> None:
    """Raise JobsFileError if a job waits for an unknown job, or for itself."""
    waiting = [entry for entry in entries if entry.attributes.after]
    if not waiting:
        return
    names = {entry.attributes.name for entry in entries if entry.attributes.name}
    for entry in waiting:
        for wanted in entry.attributes.after:
            if wanted not in names and wanted not in known:
                from slicer.config.property_names import nearest

                near = nearest(wanted, islice(names, _COMPARED))
                hint = f"did you mean {near}?" if near else "no line or earlier job has that name="
                column = _column(text, entry.number, "after", wanted)
                raise JobsFileError(f"no job is named {wanted!r}", entry.number, column, name=name, hint=hint)
    circle = _circle(waiting, names)
    if circle:
        first, second = circle[:2]
        named = (entry for entry in waiting if entry.attributes.name == first)
        entry = next(entry for entry in named if second in entry.attributes.after)
        way = " → ".join(circle if len(circle) <= 10 else (*circle[:8], "…", circle[-1]))
        raise JobsFileError(
            f"these jobs wait for each other in a circle: {way}", entry.number,
            _column(text, entry.number, "after", second), name=name, hint="remove one after=",
        )  # fmt: skip


def _circle(waiting: list[Entry], names: set[str]) -> list[str]:
    """Names of which each waits for the next, from the file's first back to it; empty without a circle."""
    graph = TopologicalSorter[str]()
    for entry in waiting:
        if entry.attributes.name:
            graph.add(entry.attributes.name, *(each for each in entry.attributes.after if each in names))
    try:
        graph.prepare()
    except CycleError as error:
        circle: list[str] = error.args[1][:0:-1]  # it has each before those that wait for it, one twice
        first = next(each.attributes.name for each in waiting if each.attributes.name in circle)
        at = circle.index(first)
        return [*circle[at:], *circle[:at], first]
    return []


def _column(text: str, number: int, key: str, job: str = "") -> int:
    """The column of that line's attribute; of an ``after=``, of the one that names the ``job``."""
    line = next(each for each in lines(text) if each.number == number)
    for word in attributes.words(line.inside or ""):
        if word.key == key and (not job or job in attributes.parse(word.text).after):
            return line.column + 1 + word.offset
    return line.column
