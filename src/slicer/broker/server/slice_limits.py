"""Copies the limits of a user's login slice to the slices of its jobs, which are not inside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from slicer.backend import manager_calls as calls
from slicer.backend.manager_calls import BusError
from slicer.broker.rules.units import login_slice_of
from slicer.broker.server.manager import Manager
from slicer.errors import BackendError, StateError
from slicer.kernel.proc import now_s
from slicer.quantity import INFINITY
from slicer.state.directory import Directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.backend.manager_calls import Answer, Conversation

Done = Callable[[BackendError | None], None]

_DEADLINE_S = 30.0
# systemd does not announce changed limits of a slice. A change applies to scopes that start this much later.
_FRESH_S = 5.0
_MOST_BYTES = 64 * 1024


class SliceLimits:
    """Remembers copied limits in ``notes``, one file for each slice, because a slice outlives the broker."""

    def __init__(self, manager: Manager, notes: Directory) -> None:
        self._manager = manager
        self._notes = notes
        self._looked_s: dict[str, float] = {}

    def copy(self, uid: int, slice_name: str, done: Done) -> None:
        """Give a slice of jobs the limits of the user's login slice. ``done`` may be called at once."""
        looked_s = self._looked_s.get(slice_name)
        if looked_s is not None and now_s() - looked_s < _FRESH_S:
            done(None)
            return
        asked_s = now_s()

        def ended(error: BackendError | None) -> None:
            if error is None:
                self._looked_s[slice_name] = asked_s
            done(error)

        self._manager.converse(self._copied(login_slice_of(uid), slice_name), ended, _DEADLINE_S)

    def _copied(self, login: str, jobs: str) -> Conversation[None]:
        """Read both slices, and make the change that follows."""
        found: dict[str, dict[str, Any]] = {}
        for unit in (login, jobs):
            (found[unit],) = _values((yield calls.properties_call(unit, "Slice", COPIED)), login, jobs, unit)
        try:
            copied = _parsed(self._notes.read(jobs, _MOST_BYTES))
            todo = changes(found[login], found[jobs], copied)
            if not todo:
                return
            # Noted before the change: a note without a change does no harm.
            self._note(jobs, remembered(todo, copied))
        except (OSError, StateError) as error:
            raise BackendError(f"the limits of {jobs} cannot be noted: {error}") from error
        properties = [(name, COPIED[name][0], value) for name, value in todo.items()]
        _values((yield calls.set_call(jobs, properties)), login, jobs, jobs)

    def _note(self, jobs: str, copied: dict[str, str]) -> None:
        text = "".join(f"{name}={value}\n" for name, value in copied.items())
        os.close(self._notes.replace(jobs, text.encode("ascii"), mode=0o600))


def _values(answer: Answer, login: str, jobs: str, unit: str) -> tuple[Any, ...]:
    """The answer about ``unit``. Raises BackendError."""
    if isinstance(answer, BusError):
        what = f"the limits of {login} could not be copied to {jobs}"
        raise calls.failure(answer, what, f"see systemctl status {unit}")
    return answer


def _parsed(text: bytes) -> dict[str, str]:
    lines = text.decode("ascii", "replace").splitlines()
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, equals, value in pairs if equals and name in COPIED}


# Signature, and systemd's default, by the name on the bus. Weights are included: if the administrator favours
# a user, that counts for its jobs, too.
_NUMBER, _MASK, _LIST = ("t", INFINITY), ("ay", b""), ("a(st)", ())
COPIED: dict[str, tuple[str, Any]] = {
    "CPUQuotaPerSecUSec": _NUMBER, "CPUQuotaPeriodUSec": _NUMBER, "CPUWeight": _NUMBER,
    "AllowedCPUs": _MASK, "AllowedMemoryNodes": _MASK, "MemoryHigh": _NUMBER, "MemoryMax": _NUMBER,
    "MemorySwapMax": _NUMBER, "MemoryZSwapMax": _NUMBER, "TasksMax": _NUMBER, "IOWeight": _NUMBER,
    "IODeviceWeight": _LIST, "IOReadBandwidthMax": _LIST, "IOWriteBandwidthMax": _LIST,
    "IOReadIOPSMax": _LIST, "IOWriteIOPSMax": _LIST,
}  # fmt: skip


def changes(login: Mapping[str, Any], jobs: Mapping[str, Any], copied: Mapping[str, str]) -> dict[str, Any]:
    """The properties to set for the jobs' slice, by name.

    ``login`` and ``jobs`` are the present properties of both slices. ``copied`` is what was copied before, in
    the form of :func:`noted`. The other limits of the jobs' slice are the administrator's and stay.
    """
    found = {}
    for name, (_, unset) in COPIED.items():
        if name not in login or name not in jobs:
            continue  # an older systemd
        is_ours = jobs[name] == unset or copied.get(name) == noted(jobs[name])
        if is_ours and jobs[name] != login[name]:
            found[name] = login[name]
    return found


def remembered(changed: Mapping[str, Any], copied: Mapping[str, str]) -> dict[str, str]:
    """The copied limits, including those in ``changed``."""
    both = {**copied, **{name: noted(value) for name, value in changed.items()}}
    return {name: text for name, text in both.items() if text != noted(COPIED[name][1])}


def noted(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return repr(value)
