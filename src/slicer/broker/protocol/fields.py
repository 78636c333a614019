"""The rules for the fields of messages: those of :mod:`slicer.state.statefile`, and a few more.

A field name means the same in every message.
"""

from __future__ import annotations

from slicer.broker.protocol import messages
from slicer.model import Busy, Lease, OutOfService, Reservation, Ticket
from slicer.record import replace
from slicer.state.statefile import (
    COUNT_MAX,
    MIB_MAX,
    PID_MAX,
    SECONDS_MAX,
    JsonRules,
    check_fields,
    is_gpu,
    is_job_id,
    json_reader,
)
from slicer.text import one_line, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    _T = TypeVar("_T")

MOST_TEXT = 8192  # characters of any text
MOST_ITEMS = 64  # in any list or map of a call
_INT_MAX = 2**63 - 1
RECORDS = {
    kind.__name__: kind
    for kind in (
        Busy, Lease, OutOfService, Reservation, Ticket, messages.UserStanding, messages.GroupStanding,
        messages.UsageRow, messages.GpuNow, messages.UseNow, messages.PastLease,
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
    "adopts": lambda value: not value or (len(value) == 2 and 0 < value[0] <= PID_MAX),
    "of_job": lambda value: not value or is_job_id(value),
    **dict.fromkeys(("uuid", "gpu"), is_gpu),
    **dict.fromkeys(("memory_mib", "total_mib", "used_mib"), _between(0, MIB_MAX)),
    **dict.fromkeys(("from_at", "until_at", "since_at"), _between(0, SECONDS_MAX)),
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
                found[name] = _reader(annotation, is_strict)(given)
            except BadField as bad:
                raise BadField(f"{name}.{bad.name}", str(bad)[len(bad.name) + 1 :]) from bad
            except (TypeError, ValueError) as error:
                raise BadField(name, str(error)) from error
        elif not hasattr(kind, name):
            raise BadField(name, "is missing")
    _check(found)
    return kind(**found)


def _checked_text(value: str) -> str:
    if len(value) > MOST_TEXT:
        raise ValueError("is too long")
    if not value.isprintable():
        raise ValueError("has an unprintable character")
    return value


def _rules(is_strict: bool, most_items: int | None, text: Callable[[str], str]) -> JsonRules:
    def reader(kind: type[Any]) -> Callable[[Any], Any]:
        return lambda value: read_record(kind, value, is_strict=is_strict)

    return JsonRules(-_INT_MAX, most_items, text, {name: reader(kind) for name, kind in RECORDS.items()})


_STRICT, _LENIENT = _rules(True, MOST_ITEMS, _checked_text), _rules(False, None, visible)
_readers: dict[tuple[str, bool], Callable[[Any], Any]] = {}


def _reader(annotation: str, is_strict: bool) -> Callable[[Any], Any]:
    if (annotation, is_strict) not in _readers:
        _readers[annotation, is_strict] = json_reader(annotation, _STRICT if is_strict else _LENIENT)
    return _readers[annotation, is_strict]
