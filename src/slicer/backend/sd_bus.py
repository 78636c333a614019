"""Calls over the system bus without waiting: libsystemd's sd-bus, through ctypes.

pystemd only has calls that wait for their answers. One root process that serves all users of a machine must
not wait: a freeze takes as long as the job's processes sleep in the kernel, and PID 1 answers nobody while it
reloads. No callback is given to C. A call is sent with a cookie, which identifies the reply.
"""

from __future__ import annotations

import ctypes
import errno
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint8, c_uint64, c_void_p

from slicer.backend.manager_calls import DAEMON, BusBroken, BusError
from slicer.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from slicer.backend.manager_calls import Answer, Arguments

DISCONNECTED = f"{DAEMON}.Local"
UNSAID = "slicer.Unsaid"  # our own name of an error: the call was not sent

_LIBRARY = "libsystemd.so.0"
_SIGNAL, _RETURN, _ERROR = 4, 2, 3  # sd_bus_message_get_type(3)
_AT_ONCE = 256  # messages taken at a time, so that a flood of them delays nobody else

_NUMBERS: dict[str, Any] = {
    "y": ctypes.c_uint8, "b": c_int, "n": ctypes.c_int16, "q": ctypes.c_uint16, "i": ctypes.c_int32,
    "u": ctypes.c_uint32, "x": ctypes.c_int64, "t": c_uint64, "h": c_int,
    "d": ctypes.c_double,
}  # fmt: skip
_TEXTS = "sog"
_CONTAINERS = b"avre"


class _Error(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("message", c_char_p), ("need_free", c_int))


class _Basic(ctypes.Union):
    """The result of sd_bus_message_read_basic(3)."""

    _fields_ = (*[(f"as_{name}", kind) for name, kind in _NUMBERS.items()], ("text", c_char_p))


# The functions and their argument types. All but those that return a text return a negative errno after a
# failure.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "sd_bus_open_system": (POINTER(c_void_p),),
    "sd_bus_open_user": (POINTER(c_void_p),),
    "sd_bus_get_fd": (c_void_p,),
    "sd_bus_get_events": (c_void_p,),
    "sd_bus_process": (c_void_p, POINTER(c_void_p)),
    "sd_bus_send": (c_void_p, c_void_p, POINTER(c_uint64)),
    "sd_bus_close_unref": (c_void_p,),
    "sd_bus_message_unref": (c_void_p,),
    "sd_bus_message_new_method_call": (c_void_p, POINTER(c_void_p), c_char_p, c_char_p, c_char_p, c_char_p),
    "sd_bus_message_append_basic": (c_void_p, c_char, c_void_p),
    "sd_bus_message_append_array": (c_void_p, c_char, c_void_p, c_size_t),
    "sd_bus_message_open_container": (c_void_p, c_char, c_char_p),
    "sd_bus_message_close_container": (c_void_p,),
    "sd_bus_message_get_type": (c_void_p, POINTER(c_uint8)),
    "sd_bus_message_get_reply_cookie": (c_void_p, POINTER(c_uint64)),
    "sd_bus_message_get_sender": (c_void_p,),
    "sd_bus_message_get_interface": (c_void_p,),
    "sd_bus_message_get_member": (c_void_p,),
    "sd_bus_message_get_error": (c_void_p,),
    "sd_bus_message_peek_type": (c_void_p, POINTER(c_char), POINTER(c_char_p)),
    "sd_bus_message_enter_container": (c_void_p, c_char, c_char_p),
    "sd_bus_message_exit_container": (c_void_p,),
    "sd_bus_message_read_basic": (c_void_p, c_char, c_void_p),
    "sd_bus_message_skip": (c_void_p, c_char_p),
}
_RETURNS = {
    "sd_bus_close_unref": c_void_p, "sd_bus_message_unref": c_void_p,
    "sd_bus_message_get_sender": c_char_p, "sd_bus_message_get_interface": c_char_p,
    "sd_bus_message_get_member": c_char_p,
    "sd_bus_message_get_error": POINTER(_Error),
}  # fmt: skip


class SdBus:
    """One connection. Everything returns at once; answers come when :meth:`process` is called.

    Anybody on the bus may send this connection a signal of any name and size. So only those of
    :attr:`senders` are read. These are unique names, for which the bus vouches; its own is one of them.
    """

    def __init__(self, on_signal: Callable[[str, tuple[Any, ...]], None], *, is_user: bool = False) -> None:
        """``on_signal`` gets a signal's INTERFACE.MEMBER and its values. ``is_user``: use the user's bus.

        Raises BusBroken.
        """
        self._c = _library()
        self._on_signal = on_signal
        self.senders = {DAEMON}
        self._waiting: dict[int, tuple[Callable[[Answer], None], Collection[str]]] = {}
        self._bus = c_void_p()
        code = (self._c.sd_bus_open_user if is_user else self._c.sd_bus_open_system)(byref(self._bus))
        if code < 0:
            raise BusBroken(os.strerror(-code))
        self._own_fd = int(self._c.sd_bus_get_fd(self._bus))
        # A second descriptor for waiting: sd-bus closes its own when the connection breaks, before it reports
        # that.
        self.fd = os.dup(self._own_fd)

    def events(self) -> int:
        """The events for which its descriptor waits now (poll(2))."""
        return max(0, int(self._c.sd_bus_get_events(self._bus)))

    def close(self) -> None:
        """Forget all calls and close the connection. Safe to repeat."""
        self._waiting.clear()
        if self._bus:
            os.close(self.fd)
            self._c.sd_bus_close_unref(self._bus)
            self._bus = c_void_p()

    def after_fork(self) -> None:
        """In a child: close the parent's connection, which sd-bus itself refuses to do."""
        os.close(self.fd)
        os.close(self._own_fd)
        self._bus = c_void_p()

    def call(
        self, destination: str, path: str, name: str, arguments: Arguments,
        done: Callable[[Answer], None], only: Collection[str] = (),
    ) -> int:  # fmt: skip
        """Send a call of INTERFACE.MEMBER. ``done`` gets the reply's values or its error, later.

        ``only``: the reply is a dictionary of properties ("a{sv}"), of which these are wanted. (Reading all
        of a unit's takes 2 ms.) Returns a cookie for :meth:`forget`. Raises BusBroken; BusError for arguments
        that do not fit into a message.
        """
        interface, _, member = name.rpartition(".")
        message = c_void_p()
        words = (destination.encode(), path.encode(), interface.encode(), member.encode())
        self._check(self._c.sd_bus_message_new_method_call(self._bus, byref(message), *words))
        try:
            try:
                for signature, value in arguments:
                    self._append(message, signature, value)
            except BusBroken as error:  # for example, no descriptors left
                raise BusError(UNSAID, error.reason) from error
            cookie = c_uint64()
            self._check(self._c.sd_bus_send(self._bus, message, byref(cookie)))
        finally:
            self._c.sd_bus_message_unref(message)
        self._waiting[cookie.value] = done, only
        return cookie.value

    def forget(self, cookie: int) -> None:
        """Do not call back when the reply comes."""
        self._waiting.pop(cookie, None)

    def process(self) -> bool:
        """Read and write, and call back for what came. True: there may be more. Raises BusBroken."""
        for _ in range(_AT_ONCE):
            if not self._bus:
                return False  # a callback closed it
            message = c_void_p()
            code = self._check(self._c.sd_bus_process(self._bus, byref(message)))
            if message:
                try:
                    self._take(message)
                finally:
                    self._c.sd_bus_message_unref(message)
            if not code:
                return False
        return True

    def _take(self, message: c_void_p) -> None:
        kind = c_uint8()
        self._check(self._c.sd_bus_message_get_type(message, byref(kind)))
        if kind.value == _SIGNAL:
            self._take_signal(message)
        elif kind.value in (_RETURN, _ERROR):
            cookie = c_uint64()
            self._check(self._c.sd_bus_message_get_reply_cookie(message, byref(cookie)))
            found = self._waiting.pop(cookie.value, None)
            if found is not None:
                done, only = found
                if kind.value == _ERROR:
                    done(self._error(message))
                else:
                    done((self._read_only(message, only),) if only else self._read(message))

    def _take_signal(self, message: c_void_p) -> None:
        sender = _text(self._c.sd_bus_message_get_sender(message))
        interface = _text(self._c.sd_bus_message_get_interface(message))
        if sender in self.senders:
            member = _text(self._c.sd_bus_message_get_member(message))
            self._on_signal(f"{interface}.{member}", self._read(message))
        elif interface == DISCONNECTED and sender == DISCONNECTED:  # sd-bus itself reports it
            raise BusBroken(os.strerror(errno.ECONNRESET))

    def _error(self, message: c_void_p) -> BusError:
        found = self._c.sd_bus_message_get_error(message)
        if not found:
            return BusError(f"{DAEMON}.Error.Failed", "an error without a name")
        return BusError(_text(found.contents.name), _text(found.contents.message))

    def _append(self, message: c_void_p, signature: str, value: Any) -> None:
        """Append one value of one complete type."""
        kind, rest = signature[0], signature[1:]
        if kind in _TEXTS:
            text = value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
            self._check(self._c.sd_bus_message_append_basic(message, kind.encode(), c_char_p(text)))
        elif kind in _NUMBERS:
            number = _NUMBERS[kind](value)
            self._check(self._c.sd_bus_message_append_basic(message, kind.encode(), byref(number)))
        elif signature == "ay":
            raw = bytes(value)
            self._check(self._c.sd_bus_message_append_array(message, b"y", raw, len(raw)))
        elif kind == "a":
            self._nest(message, "a", rest, [(rest, item) for item in value])
        elif kind == "(":
            self._nest(message, "r", rest[:-1], zip(_split(rest[:-1]), value, strict=True))
        elif kind == "v":
            inner, content = value
            self._nest(message, "v", inner, [(inner, content)])
        else:
            raise ValueError(f"no such type: {signature}")

    def _nest(self, message: c_void_p, kind: str, contents: str, items: Arguments) -> None:
        self._check(self._c.sd_bus_message_open_container(message, kind.encode(), contents.encode()))
        for signature, value in items:
            self._append(message, signature, value)
        self._check(self._c.sd_bus_message_close_container(message))

    def _read(self, message: c_void_p) -> tuple[Any, ...]:
        """All values from here to the end of the message, or of the container."""
        found: list[Any] = []
        kind, contents = c_char(), c_char_p()
        while self._check(self._c.sd_bus_message_peek_type(message, byref(kind), byref(contents))):
            if kind.value in _CONTAINERS:
                inside = contents.value
                self._check(self._c.sd_bus_message_enter_container(message, kind, inside))
                inner = self._read(message)
                self._check(self._c.sd_bus_message_exit_container(message))
                found.append(inner[0] if kind.value == b"v" else bytes(inner) if inside == b"y" else inner)
                continue
            basic = _Basic()
            self._check(self._c.sd_bus_message_read_basic(message, kind, byref(basic)))
            name = kind.value.decode("ascii")
            is_text = name in _TEXTS
            found.append(_text(basic.text) if is_text else getattr(basic, f"as_{name}"))
        return tuple(found)

    def _read_only(self, message: c_void_p, names: Collection[str]) -> dict[str, Any]:
        """Some entries of a dictionary of properties."""
        found, key = {}, c_char_p()
        self._check(self._c.sd_bus_message_enter_container(message, b"a", b"{sv}"))
        while self._check(self._c.sd_bus_message_enter_container(message, b"e", b"sv")):
            self._check(self._c.sd_bus_message_read_basic(message, b"s", byref(key)))
            name = _text(key.value)
            if name in names:
                found[name] = self._read(message)[0]
            else:
                self._check(self._c.sd_bus_message_skip(message, b"v"))
            self._check(self._c.sd_bus_message_exit_container(message))
        return found

    def _check(self, code: int) -> int:
        if code < 0:
            raise BusBroken(os.strerror(-code))
        return code


def _split(signature: str) -> list[str]:
    """The complete types of a signature, one after the other."""
    found, start, depth = [], 0, 0
    for at, letter in enumerate(signature):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth and letter != "a":
            found.append(signature[start : at + 1])
            start = at + 1
    return found


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


_loaded: list[ctypes.CDLL] = []


def _library() -> ctypes.CDLL:
    """libsystemd, with its functions' types. Raises BackendError."""
    if not _loaded:
        library = _load()
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = _RETURNS.get(name, c_int)
        _loaded.append(library)
    return _loaded[0]


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        # It is not where the loader looks (NixOS). pystemd knows its place, and a loaded library is found.
        from slicer.backend.pystemd_bus import load_dbuslib

        load_dbuslib()
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise BackendError(f"{_LIBRARY} cannot be loaded: {error}", hint="install libsystemd") from error
