"""Transient scopes over D-Bus. The only importer of pystemd."""

from __future__ import annotations

import os
import sys
import time

from slicer.backend import manager_calls as calls
from slicer.backend.manager_calls import DAEMON, MANAGER, PATH, START_DEADLINE_S, SYSTEMD, BusError
from slicer.backend.scopes import ScopeBackend
from slicer.errors import BackendError
from slicer.kernel import cgroup, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from slicer.backend.manager_calls import Answer, Arguments, Call, Conversation
    from slicer.model import Manager, ScopeSpec

    _T = TypeVar("_T")

STOP_DEADLINE_S = 120.0


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
            bus.call_method(DAEMON.encode(), calls.DAEMON_PATH.encode(), DAEMON.encode(), b"GetId", [])
        except Exception as error:  # pystemd raises one of thirty classes, all plain Exceptions
            raise _no_bus(self.manager, error) from error
        self._bus = bus
        self._fd = bus.get_fd()

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = self._jobs = None

    def after_fork(self) -> None:
        """In a child: close the parent's connection (sd-bus itself refuses to, after a fork)."""
        if self._bus is not None:
            os.close(self._fd)
            self._bus = None

    def converse(
        self, steps: Conversation[_T], deadline_s: float = START_DEADLINE_S,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> _T:  # fmt: skip
        """Have a conversation with systemd, and wait for each answer. Raises BackendError.

        ``deadline_s``: for each of systemd's jobs. ``meanwhile`` is called while systemd works on one.
        """
        self.connect()
        answer: Answer | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            if isinstance(step, float):
                time.sleep(step)
                answer = None
            else:
                answer = self._ask(step, deadline_s, meanwhile)

    def _ask(self, call: Call, deadline_s: float, meanwhile: Callable[[], None]) -> Answer:
        jobs = self._watch() if call.awaits_job else None  # before the job is made, whose end it could miss
        interface, _, member = call.name.rpartition(".")
        words = (word.encode() for word in (SYSTEMD, call.path, interface, member))
        try:
            reply = self._bus.call_method(*words, self._flat(call.arguments))
        except Exception as error:
            return _bus_error(error)
        if jobs is None:
            return (_plain(reply.body),)
        meanwhile()
        return jobs.wait((bytes(reply.get_sender()), bytes(reply.body)), deadline_s)

    def _flat(self, arguments: Arguments) -> list[tuple[int, Any]]:
        """Arguments as pystemd takes them, which itself knows no variants."""
        flat: list[tuple[int, Any]] = []
        for signature, value in arguments:
            if signature != "a(sv)":
                flat += self._lib.apply_signature(signature.encode(), [value])
                continue
            flat.append((ord("a"), b"(sv)"))
            for name, (inner, content) in value:
                flat += [(ord("r"), b"sv"), (ord("s"), name.encode()), (ord("v"), inner.encode())]
                flat += self._lib.apply_signature(inner.encode(), [content])
                flat += [(-1, None), (-1, None)]
            flat.append((-1, None))
        return flat

    def _watch(self) -> _RemovedJobs:
        """Hear of the ends of systemd's jobs. Raises BackendError."""
        # There is one for the connection's whole life: the C side calls it without holding a reference.
        if self._jobs is None:
            try:
                self._jobs = _RemovedJobs(self._bus)
            except Exception as error:
                raise _broken(error) from error
        return self._jobs

    def start(self, spec: ScopeSpec, pid: int, meanwhile: Callable[[], None]) -> str:
        """Start the scope with the process in it and wait until systemd has done so."""
        pidfd = os.pidfd_open(pid)
        try:
            self.converse(calls.start_scope(spec, pidfd, lambda: pid), START_DEADLINE_S, meanwhile)
            try:
                found = cgroup.of(pid)
                is_its = found.rpartition("/")[2] == spec.unit
                calls.check_place(spec.unit, found, is_its=is_its, has_ended=proc.has_ended(pidfd))
            except BackendError:
                # systemd may never see it become empty.
                self.converse(calls.stop(spec.unit, self.manager, awaits_end=False))
                raise
            return found
        finally:
            os.close(pidfd)

    def manager_property(self, name: str) -> str:
        """A property of the manager that is a text. Raises BackendError."""
        self.connect()
        answer = self._ask(calls.get_call(MANAGER, name), 0.0, lambda: None)
        if isinstance(answer, BusError):
            raise BackendError(f"systemd did not say its {name}: {answer.message}")
        return str(answer[0])

    def stop(self, unit: str, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Stop a unit and wait for its end. Raises BackendError."""
        self.converse(calls.stop(unit, self.manager), deadline_s)

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
        try:
            self.converse(calls.stop(unit, self.manager, awaits_end=False))
        finally:
            self.close()


class _RemovedJobs:
    """Collects the ends of systemd's jobs from now on.

    Any user may send such a signal to a connection of the system bus. So it counts only from who answered the
    call that made the job: the bus vouches for the sender's unique name.
    """

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._results: dict[tuple[bytes, bytes], str] = {}

        def removed(message: Any, error: object = None, userdata: object = None) -> None:
            try:
                message.process_reply(False)
                _, path, _, result = message.body
                self._results[bytes(message.get_sender()), bytes(path)] = bytes(result).decode()
            except Exception:
                return  # not of systemd's form: somebody else's

        self._callback = removed  # kept alive: see SystemdBackend._watch
        bus.match_signal(SYSTEMD.encode(), PATH.encode(), MANAGER.encode(), b"JobRemoved", removed, None)

    def wait(self, job: tuple[bytes, bytes], deadline_s: float) -> Answer:
        """The result of a job: the name of the systemd that has it, and its path. Raises BackendError."""
        end = time.monotonic() + deadline_s
        while job not in self._results:
            left = end - time.monotonic()
            if left <= 0:
                return calls.late(deadline_s)
            try:
                self._bus.process()
                if job not in self._results:
                    self._bus.wait(int(left * 1e6))
            except Exception as error:
                if getattr(error, "errno", 0) == -4:  # EINTR: a signal that we only take note of
                    continue
                raise _broken(error) from error
        return (self._results[job],)


def _bus_error(error: Exception) -> BusError:
    """An error of pystemd's, which has a class for most names, and then keeps only that."""
    kind = type(error).__name__.removeprefix("DBus").removesuffix("Error")
    by_class = calls.NO_UNIT if kind == "NoSuchUnit" else f"{DAEMON}.Error.{kind}"
    message = _plain(getattr(error, "err_message", "")) or str(error)
    return BusError(_plain(getattr(error, "err_name", "")) or by_class, message.strip())


def _plain(value: Any) -> Any:
    """A value of D-Bus in Python's types."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return tuple(_plain(each) for each in value)
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _find_user_bus() -> None:
    """Set XDG_RUNTIME_DIR, which is missing under sudo and cron although the user's manager runs."""
    runtime = f"/run/user/{os.getuid()}"
    if not os.environ.get("XDG_RUNTIME_DIR") and os.path.exists(f"{runtime}/bus"):
        os.environ["XDG_RUNTIME_DIR"] = runtime


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
