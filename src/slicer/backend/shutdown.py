"""Whether a systemd is about to end: the machine's at a shutdown, a user's at the last logout.

At that moment its processes are told to end, and its bus may be closed already. So it is asked through its
own socket, if that is open to us: libsystemd's sd-bus, through ctypes.
"""

from __future__ import annotations

import ctypes
import errno
import os
from ctypes import byref, c_char_p, c_uint64, c_void_p

from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Manager

_LIBRARY = "libsystemd.so.0"
_ANSWER_US = 1_000_000
_NAME = b"org.freedesktop.systemd1"
_PATH = b"/org/freedesktop/systemd1"
_MANAGER = b"org.freedesktop.systemd1.Manager"
_GONE = (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE)


def is_shutting_down(manager: Manager) -> bool:
    """Whether it is, or has ended already. One that does not answer within a second is not."""
    try:
        lib = ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    bus, state = c_void_p(), c_char_p()
    # A SIGCONT follows systemd's SIGTERM, and systemd 252's library gives up if one is handled meanwhile.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        code = _open(lib, bus, manager)
        if code >= 0:
            asked = bus, _NAME, _PATH, _MANAGER, b"SystemState"
            code = lib.sd_bus_get_property_string(*asked, None, byref(state))
    finally:
        lib.sd_bus_close_unref.restype = c_void_p
        lib.sd_bus_close_unref(bus)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return state.value == b"stopping" if code >= 0 else -code in _GONE


def _open(lib: Any, bus: c_void_p, manager: Manager) -> int:
    """Connect; below 0, the error."""
    private = _private_socket(manager)
    if private:
        code = lib.sd_bus_new(byref(bus))
        code = lib.sd_bus_set_address(bus, f"unix:path={private}".encode()) if code >= 0 else code
        code = lib.sd_bus_start(bus) if code >= 0 else code
    else:
        code = lib.sd_bus_open_system(byref(bus))
    if code >= 0:
        lib.sd_bus_set_method_call_timeout(bus, c_uint64(_ANSWER_US))
    return int(code)


def _private_socket(manager: Manager) -> str:
    """The path of its own socket; "" if only root may use it."""
    if manager == "system":
        return "" if os.geteuid() else "/run/systemd/private"
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return f"{runtime}/systemd/private"
