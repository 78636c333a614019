"""systemd's D-Bus by pystemd, whose calls wait for their answers. The only importer of pystemd."""

from __future__ import annotations

import os
import sys
import time

from slicer.backend import manager_calls as calls
from slicer.backend.manager_calls import DAEMON, DAEMON_PATH, MANAGER, PATH, SYSTEMD, BusBroken, BusError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.backend.manager_calls import Answer, Arguments, Call


def load_dbuslib() -> Any:
    """pystemd's extension module, without the package around it. None: it is not installed.

    ``import pystemd`` loads lxml, inspect and typing, which takes 60 to 75 ms. The extension needs only a
    str-to-bytes helper and an exception factory of its package. If a later pystemd needs more, the ordinary
    import below works, only more slowly.
    """
    found = sys.modules.get("pystemd.dbuslib")
    if found is not None:
        return found
    # importlib.util.find_spec does the same, but imports as much as the package that is avoided.
    specs = (finder.find_spec("pystemd", None) for finder in sys.meta_path)
    spec = next((spec for spec in specs if spec is not None), None)
    if spec is None or spec.submodule_search_locations is None:
        return None
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


class PystemdBus:
    """One connection, to the user's bus or the system's. Raises BusBroken."""

    def __init__(self, lib: Any, *, is_user: bool) -> None:
        self._lib = lib
        self._bus = lib.DBus(user_mode=is_user)
        self._results: dict[tuple[bytes, bytes], str] = {}  # of systemd's jobs that have ended
        self._removed: Callable[..., None] | None = None  # called at their ends
        try:
            self._bus.open()
            # The daemon disconnects clients that have not authenticated within seconds. sd-bus does so with
            # the first call, and ours may be due when the job's turn comes.
            words = (DAEMON, DAEMON_PATH, DAEMON, "GetId")
            self._bus.call_method(*(word.encode() for word in words), [])
        except Exception as error:  # pystemd raises one of thirty classes, all plain Exceptions
            raise _broken(error) from error
        self.fd: int = self._bus.get_fd()

    def close(self) -> None:
        self._bus.close()

    def after_fork(self) -> None:
        """In a child: close the parent's connection (after a fork, sd-bus itself refuses to)."""
        os.close(self.fd)

    def ask(self, call: Call, deadline_s: float, meanwhile: Callable[[], None]) -> Answer:
        """Make a call and wait for its answer; ``meanwhile`` is called once systemd works on a job."""
        if call.awaits_job:
            self._hear_of_jobs()  # before the job exists, to miss no end
        interface, _, member = call.name.rpartition(".")
        words = (word.encode() for word in (SYSTEMD, call.path, interface, member))
        try:
            reply = self._bus.call_method(*words, self._flat(call.arguments))
        except Exception as error:
            return _bus_error(error)
        if not call.awaits_job:
            return (_plain(reply.body),)
        meanwhile()
        return self._result_of((bytes(reply.get_sender()), bytes(reply.body)), deadline_s)

    def _flat(self, arguments: Arguments) -> list[tuple[int, Any]]:
        """Arguments in pystemd's form, which has no variants."""
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

    def _hear_of_jobs(self) -> None:
        """Collect the ends of systemd's jobs from now on.

        Any user may send such a signal to a connection of the system bus. So it counts only if its sender
        answered the call that created the job: the bus vouches for the sender's unique name.
        """
        if self._removed is not None:
            return

        def removed(message: Any, error: object = None, userdata: object = None) -> None:
            try:
                message.process_reply(False)
                _, path, _, result = message.body
                self._results[bytes(message.get_sender()), bytes(path)] = bytes(result).decode()
            except Exception:
                return  # not of systemd's form: from another sender

        words = (word.encode() for word in (SYSTEMD, PATH, MANAGER, "JobRemoved"))
        try:
            self._bus.match_signal(*words, removed, None)
        except Exception as error:
            raise _broken(error) from error
        self._removed = removed  # kept for the connection's whole life: the C side has no reference to it

    def _result_of(self, job: tuple[bytes, bytes], deadline_s: float) -> Answer:
        """The result of a job: the name of the systemd that has it, and its path. Raises BusBroken."""
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
                if getattr(error, "errno", 0) == -4:  # EINTR: a signal that we only note
                    continue
                raise _broken(error) from error
        return (self._results[job],)


def _broken(error: BaseException) -> BusBroken:
    """An error of pystemd's, whose ``errno`` is below 0."""
    return BusBroken(os.strerror(abs(int(getattr(error, "errno", 0) or 0))))


def _bus_error(error: Exception) -> BusError:
    """An error of pystemd's. It has a class for most names, and then keeps only that."""
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
