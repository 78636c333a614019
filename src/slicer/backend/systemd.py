"""Transient scopes over D-Bus. The only importer of pystemd."""

from __future__ import annotations

import os
import sys
import time

from slicer.backend import DOCUMENTATION, scope_properties
from slicer.backend.scopes import ScopeBackend
from slicer.errors import BackendError, RefusedError
from slicer.kernel import cgroup, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.model import Manager, ScopeSpec

    _SystemdJob = tuple[bytes, bytes]  # the unique name of the systemd that has it, its object's path

DESTINATION = b"org.freedesktop.systemd1"
PATH = b"/org/freedesktop/systemd1"
_DAEMON = b"org.freedesktop.DBus"
MANAGER = b"org.freedesktop.systemd1.Manager"

# How long systemd may take to start a scope (PID 1 can be slow under memory pressure), in seconds.
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 120.0
_THAWS = 20
_NO_UNIT = "DBusNoSuchUnitError"
_NOT_ACTIVE = "DBusUnitInactiveError"
_BUSY = "DBusUnitBusyError"
_ABORTED = "operation aborted"  # pystemd has no class for this one
_BUSY_PAUSE_S = 0.02
# What pystemd calls the errors that are about what was asked for, and not about how things stand.
_FINAL_ERRORS = (
    "DBusInvalidArgsError", "DBusInvalidSignatureError", "DBusNotSupportedError",
    "DBusPropertyReadOnlyError", "DBusUnknownPropertyError",
)  # fmt: skip


def load_dbuslib() -> Any:
    """pystemd's extension module, without the package around it.

    ``import pystemd`` loads lxml, inspect and typing, which takes 60 to 75 ms. The extension needs only a
    str-to-bytes helper and an exception factory of its package. Should a later pystemd need more, the
    ordinary import below serves, only slower.
    """
    found = sys.modules.get("pystemd.dbuslib")
    if found is not None:
        return found
    # importlib.util.find_spec does the same, but imports as much as the package that is left out.
    specs = (finder.find_spec("pystemd", None) for finder in sys.meta_path)
    spec = next((spec for spec in specs if spec is not None), None)
    if spec is None or spec.submodule_search_locations is None:
        raise BackendError("pystemd is not installed", hint="reinstall slicer, or use --backend plain")
    stubs = {name: type(sys)(name) for name in ("pystemd", "pystemd.utils", "pprint")}
    stubs["pystemd"].__path__ = list(spec.submodule_search_locations)
    vars(stubs["pystemd.utils"])["x2char_star"] = lambda value: (
        value.encode() if isinstance(value, str) else value
    )
    vars(stubs["pprint"])["pformat"] = repr
    added = [name for name in stubs if name not in sys.modules]
    sys.modules.update({name: stubs[name] for name in added})
    try:
        import pystemd.dbuslib as dbuslib
    except ImportError:
        dbuslib = None
    finally:
        for name in added:
            del sys.modules[name]
    if dbuslib is None:
        import pystemd.dbuslib as dbuslib
    return dbuslib


class SystemdBackend(ScopeBackend):
    """The system manager for root, the user manager for everybody else."""

    def __init__(self, manager: Manager) -> None:
        self.manager: Manager = manager
        self._bus: Any = None
        self._lib: Any = None
        self._fd = -1
        self._jobs: _RemovedJobs | None = None

    def connect(self) -> None:
        """Connect to the bus. Raises BackendError with the way out."""
        if self._bus is not None:
            return
        if cgroup.root() is None:
            hint = "boot with systemd.unified_cgroup_hierarchy=1"
            raise BackendError("no cgroup v2 hierarchy is mounted", hint=hint)
        self._lib = load_dbuslib()
        if self.manager == "user":
            _find_user_bus()
        bus = self._lib.DBus(user_mode=self.manager == "user")
        try:
            bus.open()
            # The daemon drops who has not authenticated within seconds. sd-bus does so with the first call,
            # and ours may be due when the job's turn comes.
            bus.call_method(_DAEMON, b"/org/freedesktop/DBus", _DAEMON, b"GetId", [])
        except Exception as error:  # pystemd raises one of thirty classes, all plain Exceptions
            raise _no_bus(self.manager, error) from error
        self._bus = bus
        self._fd = bus.get_fd()

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = self._jobs = None

    def _watch(self) -> _RemovedJobs:
        """Hear of the ends of systemd's jobs. Raises BackendError."""
        # There is one for the connection's whole life: the C side calls it without holding a reference.
        if self._jobs is None:
            try:
                self._jobs = _RemovedJobs(self._bus)
            except Exception as error:
                raise _broken(error) from error
        return self._jobs

    def after_fork(self) -> None:
        """In a child: close the parent's connection (sd-bus itself refuses to, after a fork)."""
        if self._bus is not None:
            os.close(self._fd)
            self._bus = None

    def start(self, spec: ScopeSpec, pid: int, meanwhile: Callable[[], None]) -> str:
        """Start the scope with the process in it and wait until systemd has done so."""
        self.connect()
        jobs = self._watch()
        pidfd = os.pidfd_open(pid)
        try:
            job = self._start_transient(spec, pid, pidfd)
            meanwhile()
            self._check_started(spec.unit, jobs.wait(job, START_DEADLINE_S))
            try:
                return _verify(spec.unit, pid, pidfd)
            except BackendError:
                self._ask_to_stop(spec.unit)  # systemd may never see it become empty
                raise
        finally:
            os.close(pidfd)

    def _check_started(self, unit: str, result: bytes) -> None:
        if result != b"done":
            message = f"systemd could not start {unit}: the start job ended as {result.decode()!r}"
            hint = f"see journalctl{user_flag(self.manager)} -u {unit}"
            raise BackendError(message, hint=hint)

    def _start_transient(self, spec: ScopeSpec, pid: int, pidfd: int) -> _SystemdJob:
        properties = scope_properties(spec)
        try:
            return self._call_transient(spec.unit, [*properties, ("PIDFDs", "ah", [pidfd])])
        except Exception as error:
            if "PIDFDs" not in message_of(error):
                raise _refused(spec, error) from error
        try:  # systemd before 255
            return self._call_transient(spec.unit, [*properties, ("PIDs", "au", [pid])])
        except Exception as error:
            raise _refused(spec, error) from error

    def _call_transient(self, unit: str, properties: list[tuple[str, str, Any]]) -> _SystemdJob:
        arguments: list[tuple[int, Any]] = [
            (ord("s"), unit.encode()), (ord("s"), b"fail"), (ord("a"), b"(sv)"),
        ]  # fmt: skip
        for name, signature, value in properties:
            arguments += [(ord("r"), b"sv"), (ord("s"), name.encode()), (ord("v"), signature.encode())]
            arguments += self._lib.apply_signature(signature.encode(), [value])
            arguments += [(-1, None), (-1, None)]
        arguments += [(-1, None), (ord("a"), b"(sa(sv))"), (-1, None)]
        reply = self._bus.call_method(DESTINATION, PATH, MANAGER, b"StartTransientUnit", arguments)
        return _job_of(reply)

    def manager_property(self, name: str) -> str:
        """A property of the manager that is a text. Raises BackendError."""
        self.connect()
        try:
            value = self._bus.get_property(DESTINATION, PATH, MANAGER, name.encode(), b"s")
        except Exception as error:
            raise BackendError(f"systemd did not say its {name}: {message_of(error)}") from error
        return bytes(value).decode("utf-8", "replace")

    def start_service(
        self, unit: str, description: str, argv: tuple[str, ...], properties: tuple[tuple[str, str, Any], ...]
    ) -> None:
        """Start a transient service and wait until systemd says that it is up. Raises BackendError.

        ``argv`` as execve(2) has it, the first an absolute path; ``properties`` as StartTransientUnit has
        them: name, signature, value.
        """
        self.connect()
        jobs = self._watch()
        # systemd would put its variables in place of $words.
        words = [argument.replace("$", "$$") for argument in argv]
        told: list[tuple[str, str, Any]] = [
            ("Description", "s", description.encode("utf-8", "replace")),
            DOCUMENTATION,
            *properties,
            ("ExecStart", "a(sasb)", [(argv[0], words, False)]),
        ]
        try:
            job = self._call_transient(unit, told)
        except Exception as error:
            hint = f"see systemctl{user_flag(self.manager)} status {unit}"
            raise BackendError(f"systemd refused {unit}: {message_of(error)}", hint=hint) from error
        self._check_started(unit, jobs.wait(job, START_DEADLINE_S))

    def stop(self, unit: str, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Stop a unit (SIGTERM, then SIGKILL after its stop timeout) and wait for it. Raises BackendError.

        A frozen unit is thawed, so that its processes can act on SIGTERM. systemd 252 does so by itself, a
        later one refuses to stop it.
        """
        self.connect()
        jobs = self._watch()
        for _ in range(_THAWS):  # somebody may freeze it again
            job = self._ask_to_stop(unit)
            if job is None or jobs.wait(job, deadline_s) != b"frozen":
                return
            if not self.request_thaw(unit):
                time.sleep(_BUSY_PAUSE_S)
        raise BackendError(f"systemd did not stop {unit}: it is frozen again and again")

    def request_thaw(self, unit: str) -> bool:
        """Have a unit thawed. One that has ended, or is ending, is left alone. Raises BackendError.

        False: not now, because somebody else freezes or thaws it.
        """
        self.connect()
        try:
            self._bus.call_method(DESTINATION, PATH, MANAGER, b"ThawUnit", [(ord("s"), unit.encode())])
        except Exception as error:
            # Another freeze or thaw of the unit is under way, or came before ours was done.
            if type(error).__name__ == _BUSY or _ABORTED in message_of(error):
                return False
            if type(error).__name__ not in (_NO_UNIT, _NOT_ACTIVE):
                raise BackendError(f"systemd did not thaw {unit}: {message_of(error)}") from error
        return True

    def _ask_to_stop(self, unit: str) -> _SystemdJob | None:
        """Returns systemd's job, None when the unit has ended by itself. Raises BackendError."""
        arguments = [(ord("s"), unit.encode()), (ord("s"), b"replace")]
        try:
            reply = self._bus.call_method(DESTINATION, PATH, MANAGER, b"StopUnit", arguments)
        except Exception as error:
            if type(error).__name__ == _NO_UNIT:
                return None
            raise BackendError(f"systemd did not stop {unit}: {message_of(error)}") from error
        return _job_of(reply)

    def end(self, job: str, unit: str, stop_timeout_s: float) -> None:
        self.stop(unit, stop_timeout_s + STOP_DEADLINE_S)

    def preload(self) -> None:
        """Find out whether systemd can be reached, before the first job needs it."""
        self.connect()
        self.close()

    def request_end(self, job: str, unit: str) -> None:
        """Have a scope stopped, without waiting for it. Raises BackendError.

        The connection is closed, so that no process inherits it that the queue forks later.
        """
        self.connect()
        try:
            self._ask_to_stop(unit)
        finally:
            self.close()


def _job_of(reply: Any) -> _SystemdJob:
    """The job that systemd answers with."""
    return bytes(reply.get_sender()), bytes(reply.body)


class _RemovedJobs:
    """Collects the ends of systemd's jobs from now on. Made before the job, whose end it could miss.

    Any user may send such a signal to a connection of the system bus. So it counts only from who answered the
    call that made the job: the bus vouches for the sender's unique name.
    """

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._results: dict[_SystemdJob, bytes] = {}

        def removed(message: Any, error: object = None, userdata: object = None) -> None:
            try:
                message.process_reply(False)
                _, path, _, result = message.body
                self._results[bytes(message.get_sender()), bytes(path)] = bytes(result)
            except Exception:
                return  # not of systemd's form: somebody else's

        self._callback = removed  # kept alive: see SystemdBackend._watch
        bus.match_signal(DESTINATION, PATH, MANAGER, b"JobRemoved", removed, None)

    def wait(self, job: _SystemdJob, deadline_s: float) -> bytes:
        """The job's result ("done", "failed", "canceled", …). Raises BackendError when it takes too long."""
        end = time.monotonic() + deadline_s
        while job not in self._results:
            left = end - time.monotonic()
            if left <= 0:
                hint = "is PID 1 stuck? see systemctl list-jobs"
                raise BackendError(f"systemd did not answer within {deadline_s:g} s", hint=hint)
            try:
                self._bus.process()
                if job not in self._results:
                    self._bus.wait(int(left * 1e6))
            except Exception as error:
                if getattr(error, "errno", 0) == -4:  # EINTR: a signal that we only take note of
                    continue
                raise _broken(error) from error
        return self._results[job]


def _verify(unit: str, pid: int, pidfd: int) -> str:
    """The process's cgroup, if it really is the scope's. Raises BackendError.

    systemd before 257.13 can report a scope as started and drop it at once (systemd #36781). Then the command
    would run without its limits.
    """
    found = cgroup.of(pid)
    if proc.has_ended(pidfd):
        raise BackendError("its process was killed on its way into the scope", where=unit)
    if found.rsplit("/", 1)[-1] != unit:
        raise BackendError(
            f"systemd started {unit}, but the process is in {found or 'no cgroup'}",
            hint="try again; see systemd #36781",
        )
    return found


def _find_user_bus() -> None:
    """Set XDG_RUNTIME_DIR, which is missing under sudo and cron although the user's manager runs."""
    runtime = f"/run/user/{os.getuid()}"
    if not os.environ.get("XDG_RUNTIME_DIR") and os.path.exists(f"{runtime}/bus"):
        os.environ["XDG_RUNTIME_DIR"] = runtime


def user_flag(manager: Manager) -> str:
    return " --user" if manager == "user" else ""


def message_of(error: BaseException) -> str:
    text = getattr(error, "err_message", "") or str(error)
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return str(text).strip()


def _reason(error: BaseException) -> str:
    """What the system says of an error of pystemd's, whose ``errno`` is below 0."""
    return os.strerror(abs(int(getattr(error, "errno", 0) or 0)))


def _broken(error: BaseException) -> BackendError:
    hint = "is dbus running? see slicer doctor"
    return BackendError(f"the connection to systemd broke: {_reason(error)}", hint=hint)


def _no_bus(manager: Manager, error: BaseException) -> BackendError:
    reason = _reason(error)
    if manager == "user":
        from slicer.kernel.users import user_name

        user = user_name(os.getuid())
        if not os.path.isdir(f"/run/user/{os.getuid()}"):
            hint = f"once: loginctl enable-linger {user} (by root if refused); or use --backend plain"
            return BackendError(f"{user} is not logged in (cron, su, a system service)", hint=hint)
        hint = f"loginctl enable-linger {os.getuid()} (by root if refused); or use --backend plain"
        return BackendError(f"no connection to your user manager: {reason}", hint=hint)
    hint = "is dbus running? see slicer doctor; --backend plain runs without systemd's limits"
    return BackendError(f"no connection to systemd: {reason}", hint=hint)


def _refused(spec: ScopeSpec, error: BaseException) -> BackendError:
    asked = ", ".join(f"{p.name}={p.text}" for p in spec.properties)
    kind = RefusedError if type(error).__name__ in _FINAL_ERRORS else BackendError
    return kind(f"systemd refused {spec.unit}: {message_of(error)}", hint=f"asked for {asked}")
