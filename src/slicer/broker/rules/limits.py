"""The limits that a user may request from the system manager: only those that restrict. Pure.

systemd trusts root. Here root asks on a user's behalf. So nothing may pass that takes from others, outlasts a
stop, or makes PID 1 follow a user's path.
"""

from __future__ import annotations

from collections.abc import Iterable

from slicer.broker.rules.allowed import ALLOWED, LONGEST_STOP_S, MOST_CHARS
from slicer.config import live
from slicer.config.properties import (
    DEFAULT_STOP_TIMEOUT_S,
    NAMES,
    in_order,
    parse_property,
    property_with,
    row_of,
    time_limit,
)
from slicer.errors import RefusedError, UsageError
from slicer.model import Host, Property
from slicer.quantity import format_duration

Limits = Iterable[tuple[str, str]]

_MOST_LIMITS = 40
_SHOWN = 60  # characters of an unknown name
_WHERE = "a job's limits"
_US = 1_000_000
_BETWEEN = ";"  # separates the entries of a list

# Limits that slicer knows, but not for a user's job in the system manager: the reason, and an alternative.
_MEMORY = ("it would take memory from others", "the administrator may give it to gpu-UID.slice")
_DEVICES = ("the broker decides which devices a job may open", "see `fence` and `devices` in slicer.toml(5)")
_REFUSED = {
    "MemoryMin": _MEMORY,
    "MemoryLow": _MEMORY,
    "DevicePolicy": _DEVICES,
    "DeviceAllow": _DEVICES,
    "IODeviceLatencyTargetSec": ("it would slow down others' disks", "IOWeight shares them"),
    "SendSIGKILL": ("a stopped job has to end", "TimeoutStopSec gives it time"),
    "ManagedOOMPreference": ("others' jobs would be killed first", "only root's own jobs may have it"),
}
# Directories where only root writes. Another path may lead PID 1 into a file system that hangs.
_DISK_DIRECTORIES = ("/dev/disk/", "/dev/mapper/", "/dev/block/", "/dev/md/")


def checked(limits: Limits, host: Host, *, is_roots: bool = False) -> tuple[Property, ...]:
    """A user's limits for systemd. Semicolons separate the entries of a list.

    A job without TimeoutStopSec gets slicer's own. Root may request all that slicer knows, as it could from
    systemd itself. Raises RefusedError, which names the directive.
    """
    found = [_property(name, text, host, is_roots) for name, text in _each_once(limits)]
    if all(each.name != "TimeoutStopSec" for each in found):
        found.append(time_limit("TimeoutStopSec", DEFAULT_STOP_TIMEOUT_S))
    return tuple(in_order(found))


def check(properties: Iterable[Property]) -> None:
    """Raise RefusedError for parsed properties that :func:`checked` would refuse to a user."""
    listed = tuple(properties)
    _each_once((each.name, each.text) for each in listed)
    for each in listed:
        _check_name(each.name, is_roots=False)
        _check_value(each)


def changes(limits: Limits, host: Host, *, is_roots: bool = False) -> tuple[Property, ...]:
    """Changed limits of a running job, for systemd. An empty text counts as not set.

    Also raises RefusedError for limits that a running job keeps.
    """
    found = []
    for name, text in _each_once(limits):
        _check_name(name, is_roots)
        try:
            live.check_name(name, _WHERE)
        except UsageError as error:
            raise _refusal(error) from None
        if text.strip():
            found.append(_property(name, text, host, is_roots))
        else:
            found.append(property_with(name, live.unset_value(name)))
    return tuple(found)


def held_at_most(properties: tuple[Property, ...], max_hold_s: float | None) -> tuple[Property, ...]:
    """The limits of a job that may hold its resources for so long (None: no limit).

    systemd enforces that time, even when no process of slicer lives any more.
    """
    if max_hold_s is None:
        return properties
    own = next((each for each in properties if each.name == "RuntimeMaxSec"), None)
    if own is not None and isinstance(own.value, int) and own.value <= max_hold_s * _US:
        return properties
    others = tuple(each for each in properties if each is not own)
    return (*others, time_limit("RuntimeMaxSec", max_hold_s))


def _each_once(limits: Limits) -> list[tuple[str, str]]:
    listed = list(limits)
    if len(listed) > _MOST_LIMITS or len({name for name, _ in listed}) < len(listed):
        raise RefusedError(f"expected each limit once, and at most {_MOST_LIMITS}", where=_WHERE)
    for name, text in listed:
        if len(text) > MOST_CHARS:
            raise RefusedError(f"{name[:_SHOWN]}: it is absurdly long", where=_WHERE)
    return listed


def _check_name(name: str, is_roots: bool) -> None:
    if name in (NAMES if is_roots else ALLOWED):
        return
    if name in _REFUSED:
        why, hint = _REFUSED[name]
        raise RefusedError(f"{name} is not allowed for a user's job: {why}", where=_WHERE, hint=hint)
    from slicer.config.property_names import refusal

    message, hint = refusal(name[:_SHOWN], ALLOWED)
    raise RefusedError(message, where=_WHERE, hint=hint)


def _property(name: str, text: str, host: Host, is_roots: bool) -> Property:
    _check_name(name, is_roots)
    asked = "\n".join(_entries(text, _BETWEEN)) if row_of(name).is_list else text
    try:
        made = parse_property(name, asked, host, _WHERE)
    except UsageError as error:
        raise _refusal(error) from None
    if not is_roots:
        _check_value(made)
    return made


def _check_value(made: Property) -> None:
    for path, _ in made.value if isinstance(made.value, tuple) else ():
        in_dev = path.startswith("/dev/") and "/" not in path.removeprefix("/dev/")
        if not in_dev and not path.startswith(_DISK_DIRECTORIES):
            raise RefusedError(
                f"{made.name}: {path} is not the name of a disk, such as /dev/sda", where=_WHERE,
                hint=f"`findmnt -no SOURCE -T {path}` prints the disk",
            )  # fmt: skip
    if made.name == "TimeoutStopSec" and isinstance(made.value, int) and made.value > LONGEST_STOP_S * _US:
        most, asked = format_duration(LONGEST_STOP_S), made.text
        raise RefusedError(f"TimeoutStopSec: a user's job may take {most} to end, not {asked}", where=_WHERE)


def _entries(text: str, between: str) -> list[str]:
    return [entry.strip() for entry in text.split(between) if entry.strip()]


def _refusal(error: UsageError) -> RefusedError:
    return RefusedError(error.message, where=error.where, hint=error.hint)
