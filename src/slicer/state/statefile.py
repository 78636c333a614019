"""The form of lease and ticket files: ``KEY=value`` lines, as in systemd's own files under /run.

People can read them with cat. Values are escaped, not quoted, so that no shell sources them by accident. They
are parsed without ``json``, whose import would cost the hot path 8 ms.

Only this module decodes them. It checks every field: a file may be torn, of another version, or written by an
attacker. The rules of the fields also serve records in JSON. Nothing is encoded that could not be decoded
again: a lease that others cannot read would hold nothing.
"""

from __future__ import annotations

from slicer.errors import UsageError
from slicer.kernel.cgroup import is_canonical
from slicer.model import PREEMPTIBLE, PRIORITY_MAX, job_of_unit, unit_name
from slicer.quantity import LONGEST_US
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    _T = TypeVar("_T")

VERSION = 1
END = b"\nEND=\n"  # the last line of every file
MOST_BYTES = 1 << 20  # a name may be as long as an argument (128 KiB), and is escaped


class TornFile(ValueError):
    """Not a whole file of ours: cut short, of another version, or something else."""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\0", "\\0")


def _unescape(text: str) -> str:
    if "\\" not in text:  # nearly always, and a look at thousands of tickets should not take long
        return text
    return "\\".join(part.replace("\\n", "\n").replace("\\0", "\0") for part in text.split("\\\\"))


def _encode_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return slots_text(value)
    return _escape(value) if isinstance(value, str) else repr(value)


def number(text: str) -> int:
    """A whole number of a sensible size. Raises ValueError."""
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number with too many digits")
    return int(text)


def is_digits(text: str) -> bool:
    """Whether the text is a whole number of a sensible size, in plain digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0.0:  # infinite, or not a number
        raise ValueError(f"{text} is not finite")
    return value


def _decode_value(text: str, annotation: str) -> Any:
    match annotation:
        case "int":
            return number(text)
        case "float":
            return _finite(text)
        case "float | None":
            return _finite(text) if text else None
        case "int | None":
            return number(text) if text else None
        case "tuple[str, ...]":
            return tuple(text.split(",")) if text else ()
        case "tuple[int, ...]":
            return tuple(map(number, text.split(","))) if text else ()
        case "dict[str, int]":
            return _slots_of(text)
        case _:
            return _unescape(text)


def slots_text(slots: dict[str, int]) -> str:
    """As in ``cpu=1,whisper-gpu=2``, in the order of the names."""
    return ",".join(f"{name}={slots[name]}" for name in sorted(slots))


def _slots_of(text: str) -> dict[str, int]:
    each = [word.partition("=") for word in text.split(",")] if text else []
    found = {name: number(count) for name, _, count in each}
    if slots_text(found) != text:  # a repeated name, blanks, another order
        raise ValueError("slots not in slicer's form")
    return found


@record
class JsonRules:
    """What JSON values may be, whatever their fields."""

    least: int = 0  # of numbers
    most_items: int | None = None  # in a list or an object
    text: Callable[[str], str] = str  # checks a text, and returns it as it is to be kept
    records: Mapping[str, Callable[[Any], Any]] = {}  # readers of records, by their names


_PLAIN = JsonRules()


def json_reader(annotation: str, rules: JsonRules = _PLAIN) -> Callable[[Any], Any]:
    """A reader of a field's JSON value, by its annotation. It raises TypeError and ValueError."""
    kind, optional, _ = annotation.partition(" | None")
    if optional:
        read_some = json_reader(kind, rules)
        return lambda value: None if value is None else read_some(value)
    if kind in rules.records:
        return rules.records[kind]
    if kind == "tuple[tuple[str, str], ...]":  # an object, in its order
        read_pairs = json_reader("dict[str, str]", rules)
        return lambda value: tuple(read_pairs(value).items())
    if kind.startswith("dict["):
        read_name, read_each = json_reader("str", rules), json_reader(kind[kind.index(", ") + 2 : -1], rules)
        return lambda value: {
            read_name(name): read_each(each) for name, each in _sized(value, dict, rules).items()
        }
    if kind.startswith("tuple["):
        read_one = json_reader(kind[len("tuple[") : -len(", ...]")], rules)
        return lambda value: tuple(map(read_one, _sized(value, list, rules)))
    types: tuple[type, ...] = {"int": (int,), "float": (int, float), "bool": (bool,)}.get(kind, (str,))

    def read(value: Any) -> Any:
        if type(value) not in types:
            what = _CALLED.get(kind, "a text")
            raise TypeError(f"is not {what}")  # for isinstance, true would be a number
        if str in types:
            return rules.text(value)
        if int in types and not rules.least <= value <= _JSON_MAX:  # this also excludes NaN
            raise ValueError("is out of range")
        return float(value) if float in types else value

    return read


_CALLED = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def _sized(value: Any, kind: type[Any], rules: JsonRules) -> Any:
    if type(value) is not kind:
        raise TypeError(f"is not {'a list' if kind is list else 'an object'}")
    if rules.most_items is not None and len(value) > rules.most_items:
        raise ValueError("has too many entries")
    return value


# -- what the fields may say ------------------------------------------------------------------------------

_MOST_DIGITS = 19
_JSON_MAX = 2**63 - 1  # the history can store no larger ones
_HEX = frozenset("0123456789abcdef")
PID_MAX = 1 << 22  # the kernel's
START_MAX = 1 << 62  # of a process's start time, in clock ticks
MIB_MAX = 1 << 40
SECONDS_MAX = LONGEST_US // 10**6
COUNT_MAX = 1 << 20
SLOT_CHARS = 64  # of a slot's name
_SLOT_MARKS = str.maketrans("", "", "._-")
_GPU_CHARS = 80


def is_job_id(text: str) -> bool:
    """Whether the text is the id of a job: 12 lower-case hex digits."""
    return len(text) == 12 and _HEX.issuperset(text)


def is_job_scope(unit: str) -> bool:
    """Whether a unit of that name is the scope of a job."""
    job = job_of_unit(unit)
    return is_job_id(job) and unit_name(job) == unit


def is_job_unit(unit: str) -> bool:
    """Whether a unit of that name contains a job: :func:`is_unit_of` of any."""
    job = job_of_unit(unit)
    return is_job_id(job) and is_unit_of(unit, job)


def is_unit_of(unit: str, job: str) -> bool:
    """Whether the unit's name is that of the job's scope, or of a slice of its own around that."""
    above = unit.removesuffix(f"-{job}.slice")
    kind, _, uid = above.partition("-")  # in gpu.slice, or in a user's slice in there
    return unit == unit_name(job) or (above != unit and kind == "gpu" and (not uid or uid.isdigit()))


def is_gpu(text: str) -> bool:
    """Whether the text may be a GPU's UUID, or the beginning of one."""
    return 0 < len(text) <= _GPU_CHARS and text.isascii() and text.replace("-", "").isalnum()


def is_slot_name(text: str) -> bool:
    """Whether this may be a slot's name: letters, digits, . _ and -, not beginning with . or -."""
    plain = text.translate(_SLOT_MARKS)
    is_plain = plain.isascii() and (not plain or plain.isalnum())
    return 0 < len(text) <= SLOT_CHARS and is_plain and text[0] not in ".-"


def are_slots(slots: dict[str, int]) -> bool:
    """Whether these may be slots, each with a count."""
    return all(is_slot_name(name) and 0 < count <= COUNT_MAX for name, count in slots.items())


def _between(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: value is None or least <= value <= most


def _all(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: all(map(rule, values))


# By the names of the fields, which mean the same in every record. Human-readable texts have no rule.
_RULES: dict[str, Callable[[Any], bool]] = {
    "job": is_job_id,
    "inside": _all(is_job_id),
    **dict.fromkeys(("pid", "keeper"), _between(0, PID_MAX)),
    **dict.fromkeys(("pid_start", "started"), _between(0, START_MAX)),
    "boot_id": lambda text: len(text) == 36 and _HEX.issuperset(text.replace("-", "")),
    "uid": _between(0, (1 << 32) - 2),
    "backend": ("systemd", "plain", "inner").__contains__,
    "manager": ("system", "user").__contains__,
    "unit": lambda text: not text or is_job_unit(text),
    "gpus": lambda value: _between(0, COUNT_MAX)(value) if isinstance(value, int) else _all(is_gpu)(value),
    "gpu_choice": _all(is_gpu),
    "gpu_indices": _all(_between(0, COUNT_MAX)),
    **dict.fromkeys(("vram_mib", "margin_mib"), _between(0, MIB_MAX)),
    **dict.fromkeys(("vram_peak_mib", "mib"), _all(_between(0, MIB_MAX))),
    "utilisation": _between(0, 100),
    "cpu_slots": _between(0, COUNT_MAX),
    **dict.fromkeys(("slots", "slot_limits"), are_slots),
    "priority": _between(PREEMPTIBLE, PRIORITY_MAX),
    "forced": (0, 1).__contains__,
    **dict.fromkeys(("since_s", "arrived_s", "expect_s", "est_s", "paused_s"), _between(0, SECONDS_MAX)),
    "est_from": ("", "expect", "runs", "limit", "machine").__contains__,
    **dict.fromkeys(("idle_warn_s", "idle_end_s", "idle_since_s"), _between(0, SECONDS_MAX)),
    **dict.fromkeys(("min_run_s", "stop_s", "gives_way_by_s"), _between(0, SECONDS_MAX)),
    "reason": ("exited", "signal", "oom-kill", "timeout", "stopped", "unknown").__contains__,
    "exit_code": _between(0, 255),
    "wants": ("lock", "cap", "both").__contains__,
    "ended_by": (
        "", "slicer stop", "slicer cap", "slicer idle", "slicer queue", "slicer run", "terminal", "systemd",
        "shutdown", "outside", "caller", "gpu", "gave way",
    ).__contains__,
    "signal": _between(1, 64),
}


def check_fields(values: dict[str, Any]) -> None:
    """Refuse values that a field of that name cannot have. Raises ValueError."""
    for name, value in values.items():
        if name in _RULES and not _RULES[name](value):
            raise ValueError(f"{name.upper()} has an invalid value")


def _check_scope(values: dict[str, Any]) -> None:
    """Check that the scope is the job's own (or the outer job's), and the cgroup its. Raises ValueError."""
    cgroup = values.get("cgroup", "")
    if cgroup and not is_canonical(cgroup):
        raise ValueError("its cgroup is not valid")
    if "slot_limits" in values and values["slot_limits"].keys() != values["slots"].keys():
        raise ValueError("SLOT_LIMITS are not those of its SLOTS")
    if values.get("gpu_indices") and len(values["gpu_indices"]) != len(values["gpus"]):
        raise ValueError("GPU_INDICES are not those of its GPUs")
    if "unit" not in values:
        return
    unit = values["unit"]
    if unit and not is_unit_of(unit, values["job"]) and values["backend"] != "inner":
        raise ValueError(f"{unit} is not its scope")
    if cgroup and not (unit and cgroup.endswith(f"/{unit}")):
        raise ValueError("its cgroup is not that of its scope")


def _head(kind: type[object]) -> str:
    return f"SLICER_{kind.__name__.upper()}={VERSION}"


def begins_as(kind: type[object], data: bytes) -> bool:
    """Whether this is the beginning of a file of that kind and this version, as far as it goes."""
    head = f"{_head(kind)}\n".encode()
    return data[: len(head)] == head[: len(data)]


def encode(value: Any) -> bytes:
    """A record as bytes. The last line marks the end, so that a torn file is noticed.

    Raises UsageError for a record that could not be read back.
    """
    lines = [_head(type(value))]
    lines += [f"{name.upper()}={_encode_value(getattr(value, name))}" for name in value.__fields__]
    try:
        data = "\n".join(lines).encode("utf-8", "surrogateescape") + END
        found = decode(type(value), data)
        for name in value.__fields__:
            said = getattr(value, name)
            if not isinstance(said, str) and getattr(found, name) != said:
                raise ValueError(f"{name.upper()} would be read back as something else")
    except ValueError as error:
        why = error.__cause__ or error
        raise UsageError(f"the {type(value).__name__.lower()} cannot be written: {why}") from error
    return data


def decode(kind: type[_T], data: bytes) -> _T:
    """The record that :func:`encode` wrote. Raises TornFile for anything else, whatever the bytes."""
    if len(data) > MOST_BYTES:
        raise TornFile(f"longer than {MOST_BYTES >> 20} MiB")
    head, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    if head != _head(kind) or lines[-2:] != ["END=", ""]:
        raise TornFile(f"not a whole {kind.__name__.lower()} file of version {VERSION}")
    found = [line.partition("=") for line in lines[:-2]]
    # Every field once, in order. A shorter text written over a longer one ends well, but has extra lines.
    if [key for key, _, _ in found] != [name.upper() for name in kind.__annotations__]:
        raise TornFile(f"bad {kind.__name__.lower()} file: not its fields")
    try:
        values = {
            name: _decode_value(text, annotation)
            for (name, annotation), (_, _, text) in zip(kind.__annotations__.items(), found, strict=True)
        }
        check_fields(values)
        _check_scope(values)
    except ValueError as error:
        raise TornFile(f"bad {kind.__name__.lower()} file: {error}") from error
    return kind(**values)
