"""What systemd can do to a scope that runs: freeze and thaw it, change its properties, tell them."""

from __future__ import annotations

from slicer.backend.systemd import DESTINATION, MANAGER, PATH, SystemdBackend, message_of, user_flag
from slicer.errors import BackendError, RefusedError
from slicer.kernel import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Property

_UNIT = b"org.freedesktop.systemd1.Unit"
_PROPERTIES = b"org.freedesktop.DBus.Properties"
_SCOPE = b"org.freedesktop.systemd1.Scope"
_GONE = ("DBusNoSuchUnitError", "DBusUnknownObjectError")
_OLD = ("DBusUnknownPropertyError", "DBusUnknownInterfaceError", "DBusInvalidArgsError")


class UnitGone(BackendError):
    """There is no such unit any more."""


class UnitControl(SystemdBackend):
    """A connection to act on units that run. Close it."""

    def freeze(self, unit: str) -> None:
        """Freeze a scope: no process in it runs until it is thawed. Raises UnitGone, BackendError."""
        self._call(b"FreezeUnit", unit, "freeze")

    def thaw(self, unit: str, directory: str) -> None:
        """Thaw a scope. ``directory`` is its cgroup's. Raises UnitGone, BackendError."""
        try:
            self._call(b"ThawUnit", unit, "thaw")
        except UnitGone:
            raise
        except BackendError:
            # systemd thaws no unit that is being stopped, though it waits for that to end.
            if self.property_of(unit, "ActiveState") == "active" or not cgroup.thaw(directory):
                raise

    def _call(self, method: bytes, unit: str, verb: str) -> None:
        self.connect()
        try:
            self._bus.call_method(DESTINATION, PATH, MANAGER, method, [(ord("s"), unit.encode())])
        except Exception as error:
            raise self._failure(error, unit, verb) from error

    def _failure(self, error: Exception, unit: str, verb: str) -> BackendError:
        if type(error).__name__ in _GONE:
            return UnitGone(f"{unit} has ended")
        hint = f"see systemctl{user_flag(self.manager)} status {unit}"
        return BackendError(f"systemd did not {verb} {unit}: {message_of(error)}", hint=hint)

    def set_properties(self, unit: str, properties: tuple[Property, ...]) -> None:
        """Change properties of a scope until it ends, all or none. Lists are replaced.

        Raises RefusedError for what systemd does not know or take, UnitGone, BackendError.
        """
        self.connect()
        arguments: list[tuple[int, Any]] = [(ord("s"), unit.encode()), (ord("b"), True), (ord("a"), b"(sv)")]
        for each in properties:
            values = [each.value]
            if each.signature.startswith("a(") and each.value:
                values.insert(0, ())  # systemd would add to the list
            for value in values:
                signature = each.signature.encode()
                arguments += [(ord("r"), b"sv"), (ord("s"), each.dbus_name.encode()), (ord("v"), signature)]
                arguments += self._lib.apply_signature(signature, [value])
                arguments += [(-1, None), (-1, None)]
        arguments.append((-1, None))
        try:
            self._bus.call_method(DESTINATION, PATH, MANAGER, b"SetUnitProperties", arguments)
        except Exception as error:
            names = ", ".join(f"{each.name}={each.text}" for each in properties)
            if type(error).__name__ in _OLD or "unknown property" in message_of(error):
                raise RefusedError(
                    f"systemd does not take {names}: {message_of(error)}", hint="an older systemd knows less"
                ) from error
            raise self._failure(error, unit, f"set {names} of") from error

    def cgroup_of(self, unit: str) -> str | None:
        """The cgroup of a unit as /proc/PID/cgroup names it; None: there is none. Raises BackendError."""
        found = self.property_of(unit, "ControlGroup")
        return found if isinstance(found, str) and found else None

    def property_of(self, unit: str, name: str) -> Any:
        """One property of a scope. None: this systemd does not have it, or there is no such unit.

        Raises BackendError.
        """
        self.connect()
        try:
            found = self._bus.call_method(DESTINATION, PATH, MANAGER, b"GetUnit", [(ord("s"), unit.encode())])
        except Exception as error:
            if type(error).__name__ in _GONE:
                return None
            raise self._failure(error, unit, "show") from error
        for interface in (_SCOPE, _UNIT):
            try:
                asked = [(ord("s"), interface), (ord("s"), name.encode())]
                reply = self._bus.call_method(DESTINATION, found.body, _PROPERTIES, b"Get", asked)
            except Exception as error:
                if type(error).__name__ in (*_OLD, *_GONE):
                    continue
                raise self._failure(error, unit, "show") from error
            return _plain(reply.body)
        return None


def _plain(value: Any) -> Any:
    """A value of D-Bus in Python's types."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return tuple(_plain(each) for each in value)
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
