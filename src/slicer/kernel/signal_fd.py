"""Waits for signals and descriptors at once, and preserves who sent a signal.

``sigwaitinfo(2)`` reports the sender, but waits for nothing else. signalfd(2) shows when it would return at
once.
"""

from __future__ import annotations

import os

_SIGSET_BYTES = 128  # of glibc's and musl's sigset_t
_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK  # SFD_CLOEXEC and SFD_NONBLOCK have these values


def signal_fd(signals: frozenset[int]) -> int:
    """A descriptor that is readable while one of the (blocked) signals is pending. Raises OSError."""
    import ctypes  # slow to load, and most jobs do not need it

    libc = ctypes.CDLL(None, use_errno=True)
    bits = sum(1 << (signo - 1) for signo in signals)
    mask = ctypes.create_string_buffer(bits.to_bytes(_SIGSET_BYTES, "little"), _SIGSET_BYTES)
    fd = int(libc.signalfd(-1, mask, _CLOEXEC_NONBLOCK))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd
