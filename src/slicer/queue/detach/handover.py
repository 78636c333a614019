"""The hand-over from the caller to a detached queue: its environment, directory, limits and umask.

systemd could be told all of this. But it shows a service's environment to every user, refuses values that it
cannot print, and opens files in other ways than the queue. So the manager executes this file, with nothing
but the standard library (``python -I -S``), and this process becomes the queue.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import sys
from typing import Any, NoReturn


def write(path: str, handed: dict[str, object]) -> None:
    """Write a file that only its owner can read: the environment may hold secrets. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump(handed, file)  # bytes that are no UTF-8 become lone surrogates


def open_log(path: str | bytes) -> int:
    """The log, to append. Raises OSError, also for a symbolic link or a directory where others may write."""
    above, name = os.path.split(path)
    directory = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(directory)
        if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "others may write to its directory", path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
        fd = os.open(name, flags | os.O_NONBLOCK, 0o666, dir_fd=directory)
    finally:
        os.close(directory)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def soft_limits() -> dict[int, int]:
    """This process's soft limits, by the numbers of getrlimit(2)."""
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {number: resource.getrlimit(number)[0] for number in sorted(numbers)}


def _become(handed: dict[str, Any]) -> NoReturn:
    os.umask(handed["umask"])
    for number, wanted in handed["soft_limits"].items():
        _, most = resource.getrlimit(int(number))
        is_too_much = most != resource.RLIM_INFINITY and not 0 <= wanted <= most
        resource.setrlimit(int(number), (most if is_too_much else wanted, most))
    os.chdir(_bytes(handed["directory"]))
    log = open_log(_bytes(handed["log"]))
    os.dup2(log, 1)
    os.dup2(log, 2)
    own = [_bytes(name) for name in handed["from_manager"]]
    environ = {name: os.environb[name] for name in own if name in os.environb}
    environ.update((_bytes(name), _bytes(value)) for name, value in handed["environment"].items())
    command = [_bytes(word) for word in handed["command"]]
    os.execve(command[0], command, environ)


def _bytes(text: str) -> bytes:
    """The bytes that were handed over, whatever the service's locale."""
    return text.encode("utf-8", "surrogateescape")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="ascii") as handed_over:
        _become(json.load(handed_over))
