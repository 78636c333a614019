"""The hand-over from the caller to a detached job or queue: environment, directory, limits, umask and log.

systemd could set all of this. But it shows a service's environment to every user, refuses values that it
cannot print, and opens files differently from slicer. So the manager executes this file with only the
standard library (``python -I -S``), and this process becomes the queue or the job. Without a manager, a child
of the caller does the same.

A queue's hand-over is a file (:mod:`slicer.outcome.queue_files`), because its service may be restarted, also
after a boot. A job's comes through its stdin, one of a pair of sockets; on it the job also reports to the
caller that it waits or runs. So it is never on a disk, nobody else can connect, and the job begins only if
its caller completes it.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

CALLER_FD = 3  # the socket to the caller, in the job's process
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class _Json:
    """The interface that the scanner requires. ``json`` around it takes as long to load as Python."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


_scan: Any = make_scanner(_Json)  # type: ignore[arg-type]
_encode: Any = make_encoder(None, list, encode_basestring_ascii, None, ":", ",", False, False, False)


def packed(handed: dict[str, object]) -> bytes:
    """The hand-over as JSON; bytes that are no UTF-8 become lone surrogates."""
    return "".join(_encode(handed, 0)).encode("ascii")


def open_log(path: str | bytes, mode: int = 0o666) -> int:
    """The log, to append. Raises OSError, also for a symbolic link or a directory writable by others.

    The caller has followed the links on the way, as far as it trusts them, so nothing on it may be a link. A
    sticky directory (/tmp) is accepted, because others cannot replace our files in it.
    """
    above, name = os.path.split(os.fsencode(path))
    directory = os.open("/", _WAY)
    try:
        for part in filter(None, above.split(b"/")):
            below = os.open(part, _WAY, dir_fd=directory)
            os.close(directory)
            directory = below
        info = os.fstat(directory)
        is_sticky = bool(info.st_mode & stat.S_ISVTX)
        if info.st_uid not in (0, os.geteuid()) or (info.st_mode & _OTHERS and not is_sticky):
            raise PermissionError(errno.EPERM, "others may write to its directory", path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
        fd = os.open(name, flags | os.O_NONBLOCK, mode, dir_fd=directory)
    finally:
        os.close(directory)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and (not is_sticky or (found.st_uid, found.st_nlink) == (os.geteuid(), 1)):
        return fd
    os.close(fd)
    if stat.S_ISREG(found.st_mode):
        raise PermissionError(errno.EPERM, "it is not yours alone", path)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def soft_limits() -> dict[int, int]:
    """This process's soft limits, by the numbers of getrlimit(2)."""
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {number: resource.getrlimit(number)[0] for number in sorted(numbers)}


def _received() -> tuple[dict[str, Any], int]:
    """The hand-over from the socket that is our stdin, and the socket. Raises OSError, ValueError."""
    os.write(0, b"%d\0" % os.getpid())
    data = b""
    while not data.endswith(b"\0"):
        more = os.read(0, 1 << 16)
        if not more:
            os._exit(125)  # the caller has ended: there is no job
        data += more
    caller, null = os.dup(0), os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    return _scan(data[:-1].decode("ascii"), 0)[0], caller


def _become(handed: dict[str, Any], caller: int) -> NoReturn:
    os.umask(handed["umask"])
    for number, wanted in handed["soft_limits"].items():
        _, most = resource.getrlimit(int(number))
        is_too_much = most != resource.RLIM_INFINITY and not 0 <= wanted <= most
        resource.setrlimit(int(number), (most if is_too_much else wanted, most))
    os.chdir(_bytes(handed["directory"]))
    log = open_log(_bytes(handed["log"]), handed["log_mode"])
    os.dup2(log, 1)
    os.dup2(log, 2)
    if caller >= 0:
        os.dup2(caller, CALLER_FD)  # perhaps over the log's own descriptor, which is no longer needed
        os.set_inheritable(CALLER_FD, True)  # perhaps it was this one
    own = [_bytes(name) for name in handed["from_manager"]]
    environ = {name: os.environb[name] for name in own if name in os.environb}
    environ.update((_bytes(name), _bytes(value)) for name, value in handed["environment"].items())
    command = [_bytes(word) for word in handed["command"]]
    os.execve(command[0], command, environ)


def _bytes(text: str) -> bytes:
    """The bytes that were handed over, whatever the service's locale."""
    return text.encode("utf-8", "surrogateescape")


def take(path: str = "") -> NoReturn:
    """Become what is handed over in the file ``path``, or through our stdin."""
    if path:
        with open(path, encoding="ascii") as file:
            _become(_scan(file.read(), 0)[0], -1)
    handed, caller = _received()
    try:
        _become(handed, caller if handed["reports"] else -1)
    except OSError as error:  # the caller reports it, because nobody may read our own output
        place = os.fsdecode(error.filename) if error.filename else handed["log"]
        os.write(caller, f"m{place}: {error.strerror}\0f125\0".encode("utf-8", "backslashreplace"))
        os._exit(125)


if __name__ == "__main__":
    take("".join(sys.argv[1:]))
