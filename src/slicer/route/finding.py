"""Finds the argument of a command line that is the input. Pure."""

from __future__ import annotations

from slicer.config.route_values import STDIN
from slicer.errors import ProbeError
from slicer.text import counted, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from slicer.config.routes import Route

    # What a word names; "other": something that exists and is neither (a FIFO, a device).
    Kind = Literal["file", "directory", "other", ""]

STANDARD_INPUT = "-"  # the usual name in programs
_SHOWN = 3
_HINT = 'set it in the route: input = -1 (the last), or an option "--audio", or a glob "*.mp4"'


def find_input(route: Route, command: tuple[str, ...], kind_of: Callable[[str], Kind]) -> str:
    """The input as in the command line; "-" for standard input. Raises ProbeError.

    An option is ``--audio X`` or ``--audio=X``, also with a single dash, and before a ``--``. A glob without
    a "/" must match the file's name, one with a "/" the whole argument. If several arguments match, or the
    route does not name any, the input is the only one that the probes can measure.
    """
    place, arguments = route.input, command[1:]
    source = route.sources.get("input", "default")
    where = "" if source == "default" else source
    if place is None:
        return _only_one(_positional(arguments), route, kind_of, where)
    if place == STDIN:
        return STANDARD_INPUT
    if isinstance(place, int):
        return _at(place, arguments, where)
    if place[:1] == "-":
        return _value_of(place, arguments, where)
    matching = [word for word in _positional(arguments) if _matches(word, place)]
    if not matching:
        message = f"no argument of the command matches {one_line(place, 60)}"
        raise ProbeError(message, where=where, hint="set another, or the argument's index")
    return matching[0] if len(matching) == 1 else _only_one(matching, route, kind_of, where)


def _at(index: int, arguments: tuple[str, ...], where: str) -> str:
    if abs(index) > len(arguments):
        has = f"has {counted(len(arguments), 'argument')}" if arguments else "has no arguments"
        raise ProbeError(f"argument {index} is the input, but the command {has}", where=where)
    return arguments[index - 1 if index > 0 else index]


def _value_of(option: str, arguments: tuple[str, ...], where: str) -> str:
    found = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            break
        if word == option:
            found.append(next(words, ""))
        elif word.startswith(f"{option}="):
            found.append(word[len(option) + 1 :])
    if not found:
        raise ProbeError(f"the command lacks {option}, which names the input", where=where)
    if len(found) > 1:
        message = f"the command has {option} {len(found)} times: {_listed(found)}"
        raise ProbeError(message, where=where, hint="only one input can be measured")
    if not found[0]:
        raise ProbeError(f"{option}, which names the input, has no value", where=where)
    return found[0]


def _positional(arguments: tuple[str, ...]) -> list[str]:
    """The arguments that do not look like options, and all after ``--``."""
    found, after = [], False
    for word in arguments:
        if after or word[:1] != "-":
            found.append(word)
        after = after or word == "--"
    return [word for word in found if word]


def _matches(word: str, glob: str) -> bool:
    from fnmatch import fnmatchcase  # it imports re, which other routes do without

    return fnmatchcase(word if "/" in glob else word.rstrip("/").rpartition("/")[2], glob)


def _only_one(words: list[str], route: Route, kind_of: Callable[[str], Kind], where: str) -> str:
    """The only word that names something measurable; otherwise the only one that names anything."""
    kinds = {word: kind_of(word) for word in words}
    wanted = wanted_kinds(route)
    fitting = [word for word in kinds if kinds[word] in wanted]
    found = fitting or [word for word in kinds if kinds[word]]
    if len(found) == 1:
        return found[0]
    what = " or ".join(sorted(wanted, reverse=True))
    if not found:
        message = f"no existing {what} among the command's arguments: {_listed(words) or 'there are none'}"
        raise ProbeError(message, where=where, hint=f"is a name misspelt? If not, {_HINT}")
    message = f"{len(found)} arguments of the command could be the input: {_listed(found)}"
    raise ProbeError(message, where=where, hint=_HINT)


def wanted_kinds(route: Route) -> frozenset[Kind]:
    """The kinds of input that the route's probes can measure."""
    kinds = {probe.kind for probe in route.probes} - {"command"}
    if not kinds:
        return frozenset({"file", "directory"})
    return frozenset({"directory"}) if "count" in kinds else frozenset({"file"})


def _listed(words: list[str]) -> str:
    more = f", and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(one_line(word, 60) for word in words[:_SHOWN]) + more
