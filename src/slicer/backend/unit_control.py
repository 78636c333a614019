"""systemd's operations on a running scope: freeze and thaw it, change its properties, read them."""

from __future__ import annotations

from slicer.backend import manager_calls as calls
from slicer.backend.systemd import SystemdBackend
from slicer.kernel import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Property


class UnitControl(SystemdBackend):
    """A connection to control running units. The caller closes it."""

    def freeze(self, unit: str) -> None:
        """Freeze a scope: no process in it runs until it is thawed. Raises UnitGone, BackendError."""
        self.converse(calls.freeze(unit, self.manager))

    def thaw(self, unit: str, directory: str) -> None:
        """Thaw a scope. ``directory`` is its cgroup's. Raises UnitGone, BackendError."""
        self.converse(calls.thaw(unit, lambda: cgroup.thaw(directory), self.manager))

    def set_properties(self, unit: str, properties: tuple[Property, ...]) -> None:
        """Change properties of a scope until it ends, all or none. Lists are replaced.

        Raises RefusedError for properties that systemd does not support or accept, UnitGone, BackendError.
        """
        self.converse(calls.set_properties(unit, properties, self.manager))

    def cgroup_of(self, unit: str) -> str | None:
        """The cgroup of a unit in the form of /proc/PID/cgroup; None: there is none. Raises BackendError."""
        found = self.property_of(unit, "ControlGroup")
        return found if isinstance(found, str) and found else None

    def property_of(self, unit: str, name: str) -> Any:
        """One property of a scope. None: this systemd does not have it, or there is no such unit.

        Raises BackendError.
        """
        return self.converse(calls.property_of(unit, name, self.manager))
