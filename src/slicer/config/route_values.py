"""The tables of routes and servers, and their special values.

Each reader raises the entry's error.
"""

from __future__ import annotations

from slicer.config import metric_units, values
from slicer.errors import UsageError
from slicer.quantity import QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from slicer.config.files import Layer
    from slicer.config.metric_units import ProbeKind
    from slicer.config.values import Entry, Reader
    from slicer.model import Host, Profile

    class AnyConfig(Protocol):
        """The necessary part of :class:`slicer.config.profiles.Config`."""

        @property
        def host(self) -> Host: ...
        @property
        def layers(self) -> tuple[Layer, ...]: ...
        def names(self) -> tuple[str, ...]: ...
        def profile(self, name: str | None = None) -> Profile: ...


STDIN = "stdin"
_GLOB = frozenset("*?[")
_LONGEST_PROBE_S = 86_400.0


def names(layers: Iterable[Layer], table: str) -> tuple[str, ...]:
    """The names in a table of tables ("routes", "serve"), in alphabetical order."""
    return tuple(sorted({name for layer in layers for name in layer.data.get(table, {})}))


def check_known(layers: Iterable[Layer], table: str, name: str, what: str) -> None:
    """Raise UsageError if no file describes a ``what`` ("route") of that name."""
    known = names(layers, table)
    if name in known:
        return
    if not known:
        hint = f"a configuration file describes {what}s as [{table}.NAME], see slicer.toml(5)"
        raise UsageError(f"unknown {what} {name!r:.60}: there are none", hint=hint)
    from slicer.config.property_names import known_names

    raise UsageError(f"unknown {what} {name!r:.60}", hint=known_names(name, known))


def texts(entry: Entry, label: str) -> tuple[str, ...]:
    """A list of texts for a command, unchanged."""
    found = entry[0]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        words = found.split() if isinstance(found, str) else found if isinstance(found, list) else ["…"]
        hint = "write [" + ", ".join(f'"{word!s:.40}"' for word in words[:4]) + "]"
        raise values.refuse(entry, label, f"expected a list of texts, not {found!r:.40}", hint)
    for each in found:
        _without_nul(entry, label, each)
    return tuple(found)


def _without_nul(entry: Entry, label: str, text: str) -> None:
    if "\0" in text:
        raise values.refuse(entry, label, "a NUL character cannot be passed on")


def kinds(entry: Entry, label: str) -> tuple[ProbeKind, ...]:
    """The probes: one, or a list of several different ones."""
    written = entry[0] if isinstance(entry[0], list) else [entry[0]]
    found = tuple(values.choice((each, *entry[1:]), label, metric_units.KINDS) for each in written)
    if not found or len(set(found)) < len(found):
        problem = "is listed twice" if found else "expected at least one"
        raise values.refuse(entry, label, problem, "leave it out for a route that measures nothing")
    return found


def probe_command(entry: Entry, label: str) -> tuple[str, ...]:
    example = '["my-probe", "{}"]'
    if isinstance(entry[0], str):
        hint = f'a list, without a shell: write {example}, or ["sh", "-c", "…", "sh", "{{}}"]'
        raise values.refuse(entry, label, f"expected a list of texts, not {entry[0]!r:.40}", hint)
    found = texts(entry, label)
    if not found or not found[0]:
        raise values.refuse(entry, label, "names no program", f"write {example}")
    return found


def probe_timeout(entry: Entry, label: str) -> float:
    """A time above 0, and finite."""
    found = values.seconds(entry, label)
    if not found or found > _LONGEST_PROBE_S:
        hint = 'the default is "30s"'
        raise values.refuse(entry, label, "expected a time of more than 0s and at most 1d", hint)
    return found


def factor(entry: Entry, label: str) -> float:
    """A number above 0 and up to 1000."""
    return values.number(entry, label, "a number above 0 and up to 1000 such as 1.3", 1000)


def place(entry: Entry, label: str) -> int | str:
    """The place of the input among the arguments: an index, an option, a glob, or "stdin"."""
    found = entry[0]
    if isinstance(found, int) and not isinstance(found, bool) and found and abs(found) < 2**31:
        return found
    hint = "leave it out if only one argument names a file that is there"
    if isinstance(found, str):
        if found.lstrip("-").isdigit():
            raise values.refuse(entry, label, f'"{found}" is an index', f"write {found}, without quotes")
        if found == STDIN or (found[:1] == "-" and found.strip("-") and not set("= \0") & set(found)):
            return found
        if found[:1] != "-" and _GLOB & set(found):
            return found
    expected = 'an index from 1 or from -1, an option such as "--audio", a glob such as "*.mp4", or "stdin"'
    raise values.refuse(entry, label, f"expected {expected}, not {found!r:.40}", hint)


def replacements(entry: Entry, label: str) -> tuple[tuple[str, str | None], ...]:
    """Options and their new values; None removes an option (:func:`slicer.route.deciding.command_for`)."""
    table = entry[0]
    example = '{ "--model" = "large", "--verbose" = false }'
    if not isinstance(table, dict):
        raise values.refuse(entry, label, f"expected a table, not {table!r:.40}", f"write {example}")
    found: list[tuple[str, str | None]] = []
    for option, value in table.items():
        name = option[:-1] if option.endswith("=") else option
        if name[:1] != "-" or not name.strip("-") or set("= \0") & set(name):
            message = f'{option!r:.40} is not an option such as "--model"'
            raise values.refuse(entry, label, message)
        if value is False:
            found.append((option, None))
        elif isinstance(value, (str, int)) and not isinstance(value, bool):
            _without_nul(entry, label, str(value))
            found.append((name, str(value)))
        else:
            message = f"{option}: expected a text, or false to remove it, not {value!r:.40}"
            raise values.refuse(entry, label, message, f"write {example}")
    return tuple(found)


def bounds(entry: Entry, label: str, probes: tuple[ProbeKind, ...]) -> tuple[float | None, ...]:
    """The bound of each probe; None: any metric."""
    written = entry[0] if isinstance(entry[0], list) else [entry[0]]
    if not probes:
        hint = 'add probe = "duration", or "size", "lines", …'
        raise values.refuse(entry, label, "the route has no probe, so there is nothing to compare", hint)
    if len(written) != len(probes):
        message = f"expected {len(probes)} of them, one for each probe, not {entry[0]!r:.60}"
        hint = f'write [{", ".join(f"""<{kind}>""" for kind in probes)}]; "infinity" is any'
        raise values.refuse(entry, label, message, hint)
    try:
        return tuple(metric_units.parse_bound(kind, each) for kind, each in zip(probes, written, strict=True))
    except QuantityError as bad:
        raise values.refuse(entry, label, str(bad)) from None


def exit_code(entry: Entry, label: str) -> int:
    """From 1 to 255."""
    found = entry[0]
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= 255:
        raise values.refuse(entry, label, f"expected a whole number from 1 to 255, not {found!r:.40}")
    return found


READERS: dict[str, Reader] = {
    "words": texts,
    "command": probe_command,
    "some-time": probe_timeout,
    "factor": factor,
    "input": place,
    "replacements": replacements,
    "exit-code": exit_code,
}
