"""The rules for the fields of messages: those of :mod:`slicer.state.statefile`, and a few more.

A field name means the same in every message.
"""

from __future__ import annotations

from slicer.broker.protocol import messages
from slicer.model import Busy, Lease, Reservation, Ticket
from slicer.record import replace
from slicer.state.statefile import (
    COUNT_MAX,
    MIB_MAX,
    PID_MAX,
    SECONDS_MAX,
    check_fields,
    is_gpu,
    is_job_id,
)
from slicer.text import one_line, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    _T = TypeVar("_T")
    _Read = Callable[[Any, bool], Any]  # a JSON value, and whether to be strict

MOST_TEXT = 8192  # characters of any text
MOST_ITEMS = 64  # in any list or map of a call
_INT_MAX = 2**63 - 1
RECORDS = {
    kind.__name__: kind
    for kind in (
        Busy, Lease, Reservation, Ticket, messages.UserStanding, messages.GroupStanding, messages.UsageRow,
        messages.GpuNow, messages.UseNow, messages.PastLease,
    )
}
_CUT = {"name": messages.MOST_NAME, "description": messages.MOST_NAME, "command": messages.MOST_COMMAND}


class BadField(ValueError):
    """A field is missing, unknown or invalid. ``name`` is the field."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name


def texts_cut(message: Any) -> Any:
    """The message with its human-readable texts made printable and cut to the broker's limit."""
    changes = {
        name: one_line(getattr(message, name), most)
        for name, most in _CUT.items()
        if name in message.__annotations__
    }
    return replace(message, **changes) if changes else message


# -- rules --------------------------------------------------------------------------------------------------


def _between(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: value is None or least <= value <= most


def _shorter(most: int) -> Callable[[Any], bool]:
    return lambda value: len(value) <= most


def _are_limits(value: Any) -> bool:
    """Systemd directives with values; in a reply, only directives."""
    pairs = (each for each in value if isinstance(each, tuple))
    return all(
        name.isascii() and name.isalnum() and len(name) <= 64 and len(text) <= 1024 for name, text in pairs
    )


def _is_series(value: str) -> bool:
    """Base64 of a job's use over time. Only the broker reads it."""
    import binascii

    from slicer.outcome.series import decode

    try:
        return decode(binascii.a2b_base64(value, strict_mode=True)) is not None
    except ValueError:
        return False


_RULES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("name", "description", "profile", "interface"), _shorter(messages.MOST_NAME)),
    "command": _shorter(messages.MOST_COMMAND),
    "binding": ("process", "scope").__contains__,
    "slice": ("gpu", "cpu").__contains__,
    "fence": ("", "auto", "on", "off").__contains__,
    "devices": lambda value: all(each.isascii() and len(each) <= 256 for each in value),
    "by": ("user", "group", "profile").__contains__,
    "ahead_of": lambda value: not value or is_job_id(value),
    "limits": _are_limits,
    "series": _is_series,
    **dict.fromkeys(
        ("since", "max_wait_s", "limit_s", "wall_s", "waited_s", "cpu_s", "starts_in_s"),
        _between(0, SECONDS_MAX),
    ),
    "memory_peak_bytes": _between(0, MIB_MAX << 20),
    **dict.fromkeys(("ahead", "index"), _between(0, COUNT_MAX)),
    "temperature_c": _between(-COUNT_MAX, COUNT_MAX),
    **dict.fromkeys(("power_w", "power_limit_w"), _between(0, COUNT_MAX)),
    "keeper": _between(0, PID_MAX),
    "keeper_start": _between(0, _INT_MAX),
    "of_job": lambda value: not value or is_job_id(value),
    **dict.fromkeys(("uuid", "gpu"), is_gpu),
    **dict.fromkeys(("memory_mib", "total_mib", "used_mib"), _between(0, MIB_MAX)),
    **dict.fromkeys(("from_at", "until_at"), _between(0, SECONDS_MAX)),
    "id": is_job_id,
    "kind": ("gpu", "cpu", "slot").__contains__,
    **dict.fromkeys(("share", "due"), _between(0, 1)),
}


def _check(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name == "slots" and isinstance(value, int):  # a user's number of CPU slots
            name = "cpu_slots"
        try:
            check_fields({name: value})
        except ValueError:
            raise BadField(name, "has an invalid value") from None
        if name in _RULES and not _RULES[name](value):
            raise BadField(name, "has an invalid value")


# -- reading ------------------------------------------------------------------------------------------------


def read_record(kind: type[_T], value: Any, *, is_strict: bool) -> _T:
    """The record in a JSON value. Raises BadField.

    ``is_strict``, for calls: the record's fields and no others, printable texts, short lists. Otherwise
    unknown fields are ignored, and texts are made printable.
    """
    if type(value) is not dict:
        raise BadField("parameters", "are not an object")
    unknown = value.keys() - kind.__annotations__.keys()
    if unknown and is_strict:
        raise BadField(visible(min(unknown))[: messages.MOST_NAME], "is unknown")
    found: dict[str, Any] = {}
    for name, annotation in kind.__annotations__.items():
        given = value.get(name)
        if given is None and annotation.endswith("| None"):
            found[name] = None
        elif given is not None:
            try:
                found[name] = _reader(annotation)(given, is_strict)
            except BadField as bad:
                raise BadField(f"{name}.{bad.name}", str(bad)[len(bad.name) + 1 :]) from bad
            except (TypeError, ValueError) as error:
                raise BadField(name, str(error)) from error
        elif not hasattr(kind, name):
            raise BadField(name, "is missing")
    _check(found)
    return kind(**found)


def _read_int(value: Any, is_strict: bool) -> int:
    if type(value) is not int:  # for isinstance, true would be a number
        raise TypeError("is not a whole number")
    if not -_INT_MAX <= value <= _INT_MAX:
        raise ValueError("is out of range")
    return value


def _read_float(value: Any, is_strict: bool) -> float:
    if type(value) not in (int, float):
        raise TypeError("is not a number")
    return float(value)


def _read_bool(value: Any, is_strict: bool) -> bool:
    if type(value) is not bool:
        raise TypeError("is neither true nor false")
    return value


def _read_text(value: Any, is_strict: bool) -> str:
    if type(value) is not str:
        raise TypeError("is not a text")
    if not is_strict:
        return visible(value)
    if len(value) > MOST_TEXT:
        raise ValueError("is too long")
    if not value.isprintable():
        raise ValueError("has an unprintable character")
    return value


def _read_map(read: _Read) -> _Read:
    def read_all(value: Any, is_strict: bool) -> dict[str, Any]:
        _check_size(value, is_strict, dict, "an object")
        return {_read_text(name, is_strict): read(each, is_strict) for name, each in value.items()}

    return read_all


def _read_list(read: _Read) -> _Read:
    def read_all(value: Any, is_strict: bool) -> tuple[Any, ...]:
        _check_size(value, is_strict, list, "a list")
        return tuple(read(each, is_strict) for each in value)

    return read_all


def _check_size(value: Any, is_strict: bool, kind: type[Any], called: str) -> None:
    if type(value) is not kind:
        raise TypeError(f"is not {called}")
    if is_strict and len(value) > MOST_ITEMS:
        raise ValueError("has too many entries")


def _made_reader(annotation: str) -> _Read:
    kind = annotation.removesuffix(" | None")
    if kind in RECORDS:
        return lambda value, is_strict: read_record(RECORDS[kind], value, is_strict=is_strict)
    if kind.startswith("dict[str, "):
        return _read_map(_reader(kind[len("dict[str, ") : -1]))
    if kind == "tuple[tuple[str, str], ...]":
        return lambda value, is_strict: tuple(_read_map(_read_text)(value, is_strict).items())
    if kind.startswith("tuple["):
        return _read_list(_reader(kind[len("tuple[") : -len(", ...]")]))
    return {"int": _read_int, "float": _read_float, "bool": _read_bool}.get(kind, _read_text)


_readers: dict[str, _Read] = {}


def _reader(annotation: str) -> _Read:
    if annotation not in _readers:
        _readers[annotation] = _made_reader(annotation)
    return _readers[annotation]
