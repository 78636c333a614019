"""Makes lines for the jobs file, and appends them to it."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence

from slicer.errors import StateError, UsageError
from slicer.queue.file import attributes, jobs_file
from slicer.queue.file.attributes import AttributeProblem
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.model import Attributes
from slicer.state.directory import Directory, try_lock
from slicer.state.named_file import open_named

_PARAMETER = re.compile(r"\{([A-Za-z_]\w*)\}")
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
_MOST = 10_000  # lines at once
_LOCKED_S = 2.0  # another process that appends needs much less
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT


def expanded(word: str) -> Sequence[str]:
    """The values of a parameter's word: ``1..6`` means the numbers from 1 to 6. Raises UsageError."""
    match = _RANGE.fullmatch(word)
    if match is None:
        return (word,)
    first, last = int(match[1]), int(match[2])
    count = abs(last - first) + 1
    if count > _MOST:
        raise UsageError(f"{word} are {count} values, too many", where="--param", hint=f"at most {_MOST}")
    step = 1 if last >= first else -1
    return [str(number) for number in range(first, last + step, step)]


def lines(
    said: Sequence[tuple[str, str]], command: Sequence[str], parameters: Mapping[str, Sequence[str]]
) -> list[str]:
    """A line for each element of the product of the parameters. Raises UsageError.

    ``said``: attributes and their values, as typed. A ``command`` of one word is a shell's command line, one
    of several is quoted. ``{name}`` of a parameter becomes its value, in the values of attributes too.
    """
    mentioned = set(_PARAMETER.findall(" ".join((*command, *(value for _, value in said)))))
    for name in parameters:
        if name not in mentioned:
            hint = f"write {{{name}}} where its value belongs"
            raise UsageError(f"the command does not mention {{{name}}}", where="--param", hint=hint)
    count = 1
    for values in parameters.values():
        count *= len(values)
    if count > _MOST:
        raise UsageError(f"{count} lines are too many", where="--param", hint=f"at most {_MOST} at once")
    chosen = (dict(zip(parameters, each, strict=True)) for each in itertools.product(*parameters.values()))
    return [_line(said, command, each) for each in chosen]


def _line(said: Sequence[tuple[str, str]], command: Sequence[str], values: Mapping[str, str]) -> str:
    filled = [(key, _filled(value, values)) for key, value in said]
    for key, value in filled:
        if key == "vram" and value.strip().isdecimal():  # MiB in a file, as in gpusched
            hint = f"write {value}G or {value}M"
            raise UsageError(f"the unit of {value} is missing", where="--vram", hint=hint)
        try:
            attributes.parse(_attribute(key, value))
        except AttributeProblem as problem:
            option = "--env" if key.startswith("env.") else f"--{key}"
            raise UsageError(problem.message, where=option, hint=problem.hint) from None
    if len(command) == 1:
        text = _filled(command[0], {name: shlex.quote(value) for name, value in values.items()}).strip()
    else:
        text = shlex.join(_filled(word, values) for word in command)
    inside = " ".join(_attribute(key, value) for key, value in filled)
    line = f"[{inside}] {text}" if inside else text
    try:
        entries = jobs_file.parse(line, known=_all_names(line))
    except JobsFileError as error:
        raise UsageError(error.message, where="the line", hint=error.hint) from None
    expected = attributes.parse(inside) if inside else Attributes()
    if [(entry.command, entry.attributes) for entry in entries] != [(text, expected)]:
        hint = "a line has no line breaks and begins neither with # nor with brackets; put it into a script"
        raise UsageError("the queue would not read this as the command", where=repr(line[:60]), hint=hint)
    return line


def _attribute(key: str, value: str) -> str:
    return f"{key}={shlex.quote(value)}"


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PARAMETER.sub(lambda match: values.get(match[1], match[0]), text)


def _all_names(line: str) -> set[str]:
    """The names in ``after=``: only the whole file shows whether such jobs exist."""
    cache: dict[str, Attributes] = {}
    return {name for each in jobs_file.lines(line) for name in jobs_file.read_attributes(each, cache).after}


def append(path: str, added: Sequence[str], known: Collection[str]) -> int:
    """Append lines to the file, all or none; the number of the first. A missing file is created.

    ``known``: names of jobs that are no longer in the file. Raises JobsFileError if the lines do not fit the
    file, StateError if it cannot be written.
    """
    folder, name, fd = locked(path, _FLAGS, "slicer queue add FILE …")
    with open(fd, "rb"):
        try:
            text = jobs_file.content(fd, path, is_live=True)
            break_before = "" if not text or text[-1] in "\r\n" else "\n"
            new = break_before + "".join(f"{line}\n" for line in added)
            entries = jobs_file.parse(text + new, known=known, name=path)
            _write(fd, new.encode(), path)
            is_there = os.path.samestat(os.fstat(fd), folder.lstat(name))
        except OSError as error:
            raise StateError(f"cannot be used: {error.strerror}", where=path) from error
        finally:
            folder.close()
    if not is_there:
        raise StateError("was replaced meanwhile", where=path, hint="check whether it contains the lines")
    return entries[-len(added)].number


def locked(path: str, flags: int, command: str) -> tuple[Directory, str, int]:
    """The file's directory, its name there, and the file, which no other slicer changes until it is closed.

    Root changes no file that another user could replace meanwhile; ``command`` is what its owner may type.
    Raises JobsFileError, StateError.
    """
    deadline = time.monotonic() + _LOCKED_S
    while True:
        try:
            folder, name, fd = open_named(path, flags, is_checked=not os.geteuid())
            # Another slicer may have replaced it before we had the lock.
            if try_lock(fd) and os.path.samestat(os.fstat(fd), folder.lstat(name)):
                return folder, name, fd
            os.close(fd)
            folder.close()
        except OSError as error:
            raise StateError(f"cannot be opened: {error.strerror}", where=path) from error
        except StateError as error:
            at = "" if error.where == path else f"{error.where} "
            hint = f"as its owner: sudo -u OWNER {command}"
            raise JobsFileError(f"not changed: {at}{error.message}", name=path, hint=hint) from error
        if time.monotonic() > deadline:
            raise StateError("is locked by another program; nothing was changed", where=path)
        time.sleep(0.02)


def _write(fd: int, data: bytes, path: str) -> None:
    """Append the data in one write, or leave the file unchanged."""
    before = os.fstat(fd).st_size
    why, written = "not enough room", 0
    try:
        written = os.write(fd, data)
        os.fsync(fd)
        if written == len(data):
            return
    except OSError as error:
        why = str(error.strerror)
    is_last = os.fstat(fd).st_size == before + written  # nobody else has appended since
    if is_last:
        os.ftruncate(fd, before)
    rest = "nothing was added" if is_last else "a part may have been added: check its end"
    raise StateError(f"cannot be written: {why}; {rest}", where=path)
