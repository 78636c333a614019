"""Scopes that nobody is in and no lease has, and that systemd still has as active.

A process that is moved into another scope leaves its own one empty, and the kernel's event of that may come
before systemd looks for it. Nothing would end such a unit.
"""

from __future__ import annotations

import os

from slicer.broker.rules.units import scope_places
from slicer.kernel import cgroup
from slicer.model import job_of_unit
from slicer.state.statefile import is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.broker.server.loop import Due, Loop
    from slicer.broker.server.register import Register
    from slicer.broker.server.scopes import Scopes

_LOOKS_S = 1.0  # systemd itself takes milliseconds


class Leftovers:
    """Stops such a scope when two looks in a row have found it."""

    def __init__(
        self, register: Register, scopes: Scopes, on: Loop, log: Callable[[str], None]
    ) -> None:
        self._register = register
        self._scopes = scopes
        self._loop = on
        self._log = log
        self._seen: frozenset[str] = frozenset()
        self._look: Due | None = None
        self.expect()  # what an earlier broker did not get to

    def expect(self) -> None:
        """A lease has ended."""
        if self._look is None:
            self._look = self._loop.after(_LOOKS_S, self._stop_all)

    def _stop_all(self) -> None:
        self._look = None
        found = frozenset(filter(self._is_left, _units(self._scopes.above)))
        for place in found & self._seen:
            unit = os.path.basename(place)
            self._log(f"<6>{unit} is stopped: nobody is in it, and systemd has not seen that")
            self._scopes.stop(unit, lambda _: None)
        has_new = bool(found - self._seen)
        self._seen = found
        if has_new:
            self.expect()

    def _is_left(self, place: str) -> bool:
        job = job_of_unit(os.path.basename(place))
        if not is_job_id(job) or job in self._register.holdings:
            return False
        try:
            return os.path.exists(cgroup.path_of(place)) and not cgroup.lives(place)
        except OSError:
            return False  # nobody can tell now


def _units(above: str) -> list[str]:
    """The cgroups of all that lies in users' slices of jobs."""
    slices = [f"{place}/{name}" for place in scope_places(above) for name in _names(place)]
    return [f"{place}/{name}" for place in slices for name in _names(place)]


def _names(place: str) -> list[str]:
    try:
        return [name for name in os.listdir(cgroup.path_of(place)) if name.endswith((".slice", ".scope"))]
    except (FileNotFoundError, NotADirectoryError):
        return []
