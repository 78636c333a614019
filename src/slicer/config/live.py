"""The properties of a running scope that can be changed, and the spelling of their values. Pure.

systemd changes a running unit's cgroup properties. It refuses those by which it watches, stops and kills the
unit (tested with 252 and 257).
"""

from __future__ import annotations

from slicer import quantity
from slicer.config.properties import (
    NAMES,
    find,
    parse_property,
    property_with,
    row_of,
    split_assignment,
    unknown,
)
from slicer.errors import UsageError
from slicer.quantity import INFINITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from slicer.config.properties import Kind
    from slicer.model import Host, Property, Value

# The properties that a running scope keeps, and alternatives.
_FIXED = {
    "RuntimeMaxSec": "set it for the next run: slicer run --timeout=…",
    "TimeoutStopSec": "it is fixed at the job's start",
    "KillSignal": "slicer stop --signal=… sends another one",
    "KillMode": "set it for the next run: slicer run --set KillMode=…",
    "SendSIGHUP": "systemctl kill --signal=HUP sends one",
    "SendSIGKILL": "systemctl kill --signal=KILL kills it",
    "OOMPolicy": "set it for the next run: slicer run --set OOMPolicy=…",
}

CHANGEABLE = tuple(name for name in NAMES if name not in _FIXED)

# systemd's value of a property that is not set.
_UNSET: dict[Kind, Value] = {
    "memory": INFINITY, "memory-any": INFINITY, "quota": INFINITY, "period": INFINITY, "cpu-weight": INFINITY,
    "weight": INFINITY, "tasks": INFINITY, "cpus": b"", "nodes": b"", "bool": True, "pressure": 0,
    "io-weights": (), "io-sizes": (), "io-times": (), "devices": (),
}  # fmt: skip
_UNSET_BY_NAME: dict[str, Value] = {
    "MemoryMin": 0, "MemoryLow": 0, "DevicePolicy": "auto", "ManagedOOMSwap": "auto",
    "ManagedOOMMemoryPressure": "auto", "ManagedOOMPreference": "none",
}  # fmt: skip

_LIMITS = ("memory", "memory-any", "quota", "tasks")  # for these, "infinity" means no limit

# D-Bus names of the second spelling of a property.
_SCALED = {"TasksMaxScale": "TasksMax"}


def unset_value(name: str) -> Value:
    """systemd's default for a property. Raises KeyError for one that is fixed."""
    return _UNSET_BY_NAME[name] if name in _UNSET_BY_NAME else _UNSET[row_of(name).kind]


def check_name(name: str, where: str) -> None:
    """Raise UsageError for a property that does not exist, is slicer's own, or that a running job keeps."""
    if name in _FIXED:
        raise UsageError(f"{name} cannot be changed while the job runs", where=where, hint=_FIXED[name])
    if find(name) is None:
        raise unknown(name, where)


def wanted(
    assignments: Iterable[str], given: dict[str, str], host: Host, where: str = "slicer set"
) -> tuple[Property, ...]:
    """The requested properties (``NAME=VALUE``), each once. ``NAME=`` restores the job's initial value.

    ``given``: the initial values, as systemd wrote them. Raises UsageError.
    """
    texts: dict[str, str] = {}
    for assignment in assignments:
        name, text = split_assignment(assignment, where)
        check_name(name, where)
        texts[name] = f"{texts[name]}\n{text}" if row_of(name).is_list and texts.get(name) else text
    said = {name: text if text.strip() else given.get(name, "") for name, text in texts.items()}
    return tuple(
        parse_property(name, text, host, where)
        if text
        else property_with(name, unset_value(name))
        for name, text in said.items()
    )


def value_text(name: str, value: Any) -> str:
    """A value from systemd in a user's spelling; "" for one that is not set."""
    info = find(name)
    if info is None or value is None:
        return ""
    unset = _UNSET_BY_NAME.get(name, _UNSET.get(info.kind))
    if info.kind in ("cpus", "nodes"):
        return quantity.format_cpus(quantity.mask_to_cpus(bytes(value)))
    if value == unset:
        return "infinity" if unset == INFINITY and info.kind in _LIMITS else ""
    return _TEXTS[info.kind](value) if info.kind in _TEXTS else str(value)


def _entries(value: Any, one: Any) -> str:
    return ", ".join(f"{path} {one(amount)}" for path, amount in value)


_TEXTS: dict[Kind, Any] = {
    "memory": quantity.size_text,
    "memory-any": quantity.size_text,
    "quota": lambda value: quantity.percent_text(value // 100),
    "period": quantity.duration_text,
    "time": quantity.duration_text,
    "cpu-weight": lambda value: "idle" if value == 0 else str(value),
    "bool": lambda value: "yes" if value else "no",
    "pressure": lambda value: quantity.percent_text(round(value * 10000 / (2**32 - 1))),
    "io-weights": lambda value: _entries(value, str),
    "io-sizes": lambda value: _entries(value, str),
    "io-times": lambda value: _entries(value, quantity.duration_text),
    "devices": lambda value: _entries(value, str),
}


# -- systemd's own files ------------------------------------------------------------------------------------


def settings_of(fragment: str) -> dict[str, str]:
    """The properties in a transient unit's file that slicer knows, by name. A list has lines."""
    found: dict[str, str] = {}
    for line in fragment.splitlines():
        name, equals, text = line.strip().partition("=")
        name = _SCALED.get(name, name)
        info = find(name) if equals else None
        if info is None or (name == "KillSignal" and text.removeprefix("SIG") == "URG"):
            continue  # that one is for the keeper
        if info.is_list and text:
            found[name] = f"{found[name]}\n{text}" if found.get(name) else text
        elif text or not info.is_list:
            found[name] = text
        else:
            found.pop(name, None)  # "NAME=" empties a list
    return {name: text for name, text in found.items() if text}


def changed_name(drop_in: str) -> str:
    """The property of a drop-in that ``systemctl set-property`` made ("50-MemoryHigh.conf"), or ""."""
    base = drop_in.rpartition("/")[2]
    name = base.removeprefix("50-").removesuffix(".conf")
    name = _SCALED.get(name, name)
    return name if base.startswith("50-") and base.endswith(".conf") and find(name) else ""
