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
    from collections.abc import Callable
    from typing import Any

    Entry = tuple[Any, str, type[SlicerError]]
    Reader = Callable[[Entry, str], Any]  # of one key's value; the text is the key, for errors

_MAX_COUNT = quantity.MAX_CPU + 1
_LONGEST_GPU = 80  # a UUID has 40 characters
_LEAST_HISTORY_S = 86_400.0  # queues, and jobs that wait for others, look up outcomes
# What others say for a word that is known here.
_INSTEAD: dict[object, tuple[str, ...]] = {
    True: ("on", "both"), False: ("off",), "none": ("off",), "all": ("both",), "on": ("both",),
}  # fmt: skip


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


def _path(entry: Entry, label: str) -> str:
    """An absolute path, or "" for none."""
    path = text(entry, label)
    if (path and not path.startswith("/")) or "\0" in path:
        raise refuse(entry, label, f"expected an absolute path, not {path!r:.60}")
    return path


def count(entry: Entry, label: str, *, lowest: int, also: str = "") -> int:
    """A whole number from ``lowest`` to the most CPUs that a machine can have."""
    what = f"a whole number such as {max(lowest, 2)}{also}"
    written = _digits(entry, label, what)
    return parsed(entry, label, quantity.parse_count, written, lowest=lowest, highest=_MAX_COUNT, what=what)


def threads(entry: Entry, label: str) -> int | None:
    """A number of threads; None for "auto"."""
    return None if entry[0] == "auto" else count(entry, label, lowest=1, also=' or "auto"')


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


def some_mib(entry: Entry, label: str) -> int:
    """A size above 0, in MiB."""
    found = mib(entry, label)
    if not found:
        message = f"expected a size above 0, not {entry[0]!r:.40}"
        raise refuse(entry, label, message, "leave it out for the default")
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


def time(entry: Entry, label: str) -> float | None:
    """A duration above 0; None for "infinity"."""
    found = seconds(entry, label)
    if found == 0:
        message = f'expected a duration such as "90s" or "2h", not {entry[0]!r:.40}'
        raise refuse(entry, label, f'{message}: "infinity" is how to say no limit')
    return found


def finite(entry: Entry, label: str, hint: str = 'write a duration such as "5m" or "30d"') -> float:
    """A duration that is not "infinity"."""
    found = seconds(entry, label)
    if found is None:
        raise refuse(entry, label, "must be finite", hint)
    return found


def _auto_time(entry: Entry, label: str) -> float | None:
    """A finite duration; None for "auto"."""
    return None if entry[0] == "auto" else finite(entry, label, 'the default is "auto"')


def _keep(entry: Entry, label: str) -> float | None:
    """At least a day; None for "forever"."""
    found = None if entry[0] == "forever" else seconds(entry, label)
    if found is not None and found < _LEAST_HISTORY_S:
        message, hint = f"is too short: {entry[0]!r:.40}", 'the least is "1d"; "forever" keeps everything'
        raise refuse(entry, label, message, hint)
    return found


def fraction(entry: Entry, label: str) -> float:
    """A percentage such as "10%", as 0.1."""
    written = _text(entry, label, 'a percentage in quotes such as "10%"')
    return parsed(entry, label, quantity.parse_percent, written) / 10_000


def choice(entry: Entry, label: str, words: tuple[str, ...]) -> Any:
    for word in words:
        if entry[0] == word:
            return word
    shown = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'
    raise refuse(entry, label, f"expected {shown}, not {entry[0]!r:.40}", meant(entry[0], words))


def meant(value: object, words: tuple[str, ...]) -> str:
    """A hint for a value that is none of the words, or ""."""
    from slicer.config.property_names import nearest

    close = nearest(value, words) if isinstance(value, str) else ""
    others = _INSTEAD.get(value, ()) if isinstance(value, bool | str) else ()
    close = close or next((word for word in others if word in words), "")
    return f"did you mean {close}?" if close else ""


def listed(entry: Entry, label: str) -> list[str]:
    """The values of a text that separates them by commas."""
    try:
        return split_list(entry[0])
    except ValueError as error:
        raise refuse(entry, label, str(error)) from None


def gpu_list(entry: Entry, label: str) -> tuple[str, ...]:
    """GPUs by index or by (the beginning of) their UUID: "0,GPU-5a3c", or a file's list of them.

    Whether they exist, and whether two words mean the same GPU, is checked when the GPUs are known.
    """
    value = entry[0]
    words = listed(entry, label) if isinstance(value, str) else value if isinstance(value, list) else [value]
    found: list[str] = []
    for word in words:
        name = _gpu_name(word)
        if not name:
            break
        if name in found:
            raise refuse(entry, label, f"GPU {name} is listed twice", "name each GPU once")
        found.append(name)
    if not words or len(found) < len(words):
        expected = 'GPUs by index or UUID such as "0,1" or "GPU-5a3c"'
        raise refuse(entry, label, f"expected {expected}, not {value!r:.60}", "slicer status lists them")
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


# The reader of each kind of values that most configurations have.
def _retry(entry: Entry, label: str) -> str:
    """The text, which can be parsed."""
    from slicer.retry import parse_retry

    said = text(entry, label)
    try:
        parse_retry(said)
    except ValueError as bad:
        raise refuse(entry, label, f"{bad}, not {said!r:.40}") from None
    return said


READERS: dict[str, Reader] = {
    "text": text,
    "path": _path,
    "flag": flag,
    "count": lambda entry, label: count(entry, label, lowest=0),
    "some-count": lambda entry, label: count(entry, label, lowest=1),
    "threads": threads,
    "priority": priority,
    "gpu-memory": mib,
    "some-gpu-memory": some_mib,
    "gpus": gpu_list,
    "fraction": fraction,
    "wait": seconds,
    "time": time,
    "finite-wait": finite,
    "auto-time": _auto_time,
    "keep": _keep,
    "retry": _retry,
}
