"""Reads one value of a configuration file or of the command line, with errors that name its place.

A value travels as an *entry*: the written value, its place, and the error to raise (ConfigError for a file,
UsageError for an option or a variable).
"""

from __future__ import annotations

from slicer import quantity
from slicer.errors import ConfigError, SlicerError, UsageError
from slicer.model import PRIORITY_MAX
from slicer.quantity import INFINITY, QuantityError
from slicer.state.statefile import SLOT_CHARS, is_slot_name
from slicer.text import split_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    Entry = tuple[Any, str, type[SlicerError]]
    Row = tuple[Callable[[Entry, str], object], object]  # the reader of a key, and its default (None: none)
    Word = TypeVar("Word", bound=str)

_MAX_COUNT = quantity.MAX_CPU + 1
_LONGEST_GPU = 80  # a UUID has 40 characters
_UNITS = ("_s", "_mib", "_bytes")  # at the end of a field's name, but not of its key


class Said:
    """The entries of a profile, route or server, by key. Notes the source of each value that is read."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries
        self.sources: dict[str, str] = {}

    def get(self, key: str, field: str = "") -> Entry | None:
        """The entry of a key, or None. ``field``: the key of its source, if that differs."""
        entry = self.entries.get(key)
        self.sources[field or key] = entry[1] if entry else "default"
        return entry

    def settled(self, key: str, default: object) -> Entry:
        """The entry of a key, or a default in the form of a file's value."""
        return self.get(key) or (default, "default", ConfigError)

    def read(self, rows: Mapping[str, Row], path: str = "") -> dict[str, Any]:
        """Read each row's field. A field's unit is not part of its key.

        ``path`` is the prefix of a table within, such as "gpu.". The table around it fills its gaps.
        """
        found: dict[str, Any] = {}
        for field, (reads, default) in rows.items():
            key = key_of(field)
            entry = self.get(path + key)
            if entry is None and path and key in self.entries:
                entry = self.entries[key]
                self.sources[path + key] = entry[1]
            if entry is None and default is not None:
                entry = (default, "default", ConfigError)
            found[field] = None if entry is None else reads(entry, key)
        return found


def key_of(field: str) -> str:
    """The key of a field, without the unit in the field's name: "idle" of "idle_s"."""
    unit = next((each for each in _UNITS if field.endswith(each)), "")
    return field.removesuffix(unit)


def refuse(entry: Entry, label: str, message: str, hint: str = "") -> SlicerError:
    """The entry's own kind of error; ``label`` is the key's name, which an option's source has already."""
    _, source, error = entry
    return error(f"{label}: {message}" if error is ConfigError else message, where=source, hint=hint)


def text(entry: Entry, label: str) -> str:
    """A text. Raises the entry's error for anything else, as all readers here."""
    return _text(entry, label, "a text in quotes")


def _text(entry: Entry, label: str, expected: str) -> str:
    value = entry[0]
    if not isinstance(value, str):
        raise refuse(entry, label, f"expected {expected}, not {value!r:.40}")
    return value


def parsed(entry: Entry, label: str, parse: Callable[..., int], written: str, **limits: Any) -> int:
    """The number that a parser finds in a text."""
    try:
        return parse(written, **limits)
    except QuantityError as bad:
        raise refuse(entry, label, str(bad)) from None


def flag(entry: Entry, label: str) -> bool:
    value = entry[0]
    if not isinstance(value, bool):
        raise refuse(entry, label, f"expected true or false, not {value!r:.40}")
    return value


def lock_path(entry: Entry) -> str:
    """``compat_gpu_lock``: an absolute path, or "" for none."""
    path = text(entry, "compat_gpu_lock")
    if (path and not path.startswith("/")) or "\0" in path:
        raise refuse(entry, "compat_gpu_lock", f"expected an absolute path, not {path!r:.60}")
    return path


def count(entry: Entry, label: str, *, lowest: int, also: str = "") -> int:
    """A whole number from ``lowest`` to the most CPUs that a machine can have."""
    what = f"a whole number such as {max(lowest, 2)}{also}"
    written = _digits(entry, label, what)
    return parsed(entry, label, quantity.parse_count, written, lowest=lowest, highest=_MAX_COUNT, what=what)


def number(entry: Entry, label: str, expected: str, most: float) -> float:
    """A number above 0 and up to ``most``."""
    value = entry[0]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise refuse(entry, label, f"expected {expected}, not {value!r:.40}")
    return float(value)


def slot_name(entry: Entry, label: str) -> str:
    name = text(entry, label)
    if not is_slot_name(name):
        allowed = f"up to {SLOT_CHARS} letters, digits, . _ and -, not beginning with . or -"
        raise refuse(entry, label, f"{name!r:.80} is not a valid slot name", allowed)
    return name


def priority(entry: Entry, label: str = "priority") -> int:
    """A whole number from -100 to 100."""
    what = f"a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
    written, limits = _digits(entry, label, what), {"lowest": -PRIORITY_MAX, "highest": PRIORITY_MAX}
    return parsed(entry, label, quantity.parse_integer, written, **limits, what=what)


def _digits(entry: Entry, label: str, what: str) -> str:
    """A file's number, or another source's text for it."""
    value, _, error = entry
    if isinstance(value, bool) or not isinstance(value, int if error is ConfigError else (int, str)):
        raise refuse(entry, label, f"expected {what}, not {value!r:.40}")
    return str(value)


def mib(entry: Entry, label: str) -> int:
    """A size such as "8G" in MiB, rounded up."""
    return parsed(entry, label, quantity.parse_mib, _text(entry, label, quantity.MIB_TEXT))


def vram(entry: Entry, instead: str) -> int:
    """A job's part of a GPU's memory, in MiB. ``instead``: its share without this key."""
    found = mib(entry, "vram")
    if not found:
        message = "a job cannot share a GPU without any of its memory"
        raise refuse(entry, "vram", message, f"leave it out for {instead}")
    return found


def check_beside(entry: Entry, label: str, message: str, hint: str) -> None:
    """Refuse an option without effect. A profile may have it in case another one is added."""
    if entry[2] is UsageError:
        raise refuse(entry, label, message, hint)


def seconds(entry: Entry, label: str) -> float | None:
    """A duration: a file's number of seconds or a text such as "15m"; None for "infinity"."""
    value = entry[0]
    if isinstance(value, float) and -1e15 < value < 1e15:  # neither NaN nor infinite
        value = f"{value:.6f}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    written = _text((value, *entry[1:]), label, 'seconds, or a duration such as "15m" or "infinity"')
    found = parsed(entry, label, quantity.parse_duration, written)
    return None if found == INFINITY else found / 1e6


def fraction(entry: Entry, label: str) -> float:
    """A percentage such as "10%", as 0.1."""
    written = _text(entry, label, 'a percentage in quotes such as "10%"')
    return parsed(entry, label, quantity.parse_percent, written) / 10_000


def choice(entry: Entry, label: str, words: tuple[Word, ...], hint: str = "") -> Word:
    for word in words:
        if entry[0] == word:
            return word
    shown = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'
    raise refuse(entry, label, f"expected {shown}, not {entry[0]!r:.40}", hint)


def listed(entry: Entry, label: str) -> list[str]:
    """The values of a text that separates them by commas."""
    try:
        return split_list(entry[0])
    except ValueError as error:
        raise refuse(entry, label, str(error)) from None


def gpu_list(entry: Entry) -> tuple[str, ...]:
    """GPUs by index or by (the beginning of) their UUID: "0,GPU-5a3c", or a file's list of them.

    Whether they exist, and whether two words mean the same GPU, is checked when the GPUs are known.
    """
    value = entry[0]
    words = listed(entry, "gpu") if isinstance(value, str) else value if isinstance(value, list) else [value]
    found: list[str] = []
    for word in words:
        name = _gpu_name(word)
        if not name:
            break
        if name in found:
            raise refuse(entry, "gpu", f"GPU {name} is listed twice", "name each GPU once")
        found.append(name)
    if not words or len(found) < len(words):
        expected = 'GPUs by index or UUID such as "0,1" or "GPU-5a3c"'
        raise refuse(entry, "gpu", f"expected {expected}, not {value!r:.60}", "slicer status lists them")
    return tuple(found)


def _gpu_name(word: object) -> str:
    """An index without leading zeros, or a UUID or its beginning; "" for anything else."""
    if isinstance(word, bool) or not isinstance(word, (int, str)):
        return ""
    name = str(word).strip()
    if not name.isascii() or len(name) > _LONGEST_GPU:
        return ""
    if name.isdigit():
        return str(int(name))
    return name if name[:1].isalpha() and name.replace("-", "").isalnum() else ""
