"""Runs command lines of slicer, each in a fork of one process that has imported it: 5 ms in place of 80.

Reads requests on stdin and answers on stdout, a line of JSON each. Run as a program, never imported. Of the
machine, a job sees what the tests need: journald's socket is a file, ``/etc/slicer`` is empty, and with
SURFACE_HOST=1 there are 8 CPUs and 32 GiB of memory.
"""

from __future__ import annotations

import _socket
import importlib
import json
import os
import pkgutil
import sys
from typing import Any

import slicer
from slicer.__main__ import main

JOURNALD = "/run/systemd/journal/socket"
HIDDEN = ("/etc/slicer", "/sys/fs/cgroup/memory")
MEMORY_BYTES = 32 << 30


class Socket(_socket.socket):
    """A socket whose datagrams to journald become lines of a file."""

    __slots__ = ()

    def sendto(self, data: bytes, *where: Any) -> int:
        if where[-1] != JOURNALD:
            return super().sendto(data, *where)
        fd = os.open(os.environ["SURFACE_JOURNAL"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, f"{data.hex()}\n".encode())
        os.close(fd)
        return len(data)


def hide(name: str) -> None:
    """Have the function of ``os`` find nothing at the hidden paths."""
    real = getattr(os, name)

    def look(path: Any, *more: Any, **options: Any) -> Any:
        if isinstance(path, str) and path.startswith(HIDDEN):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *more, **options)

    setattr(os, name, look)


def fix_host() -> None:
    """Put a machine of one size in the place of this one."""
    pages = MEMORY_BYTES // os.sysconf("SC_PAGE_SIZE")
    real = os.sysconf
    os.sysconf = lambda name: pages if name == "SC_PHYS_PAGES" else real(name)
    os.sched_getaffinity = lambda pid: set(range(8))


def start(ask: dict[str, Any]) -> int:
    """Fork a process that runs ``slicer ARGUMENTS``, or with ``script`` that text as Python; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for fd, path in enumerate((os.devnull, ask["out"], ask["err"])):
            flags = os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            opened = os.open(path, flags, 0o600)
            os.dup2(opened, fd)
            os.close(opened)
        os.environ.update(ask["env"])
        if os.environ.get("SURFACE_HOST"):
            fix_host()
        if "script" in ask:
            sys.argv = ["script.py"]
            exec(ask["script"], {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
        sys.argv = ["slicer", *ask["arguments"]]
        main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(99)


def load_all() -> None:
    """Import all of slicer that can be here: once, and not in every fork."""
    for module in pkgutil.walk_packages(slicer.__path__, "slicer."):
        try:
            importlib.import_module(module.name)
        except ImportError:
            pass  # a library is missing that no test here needs


def wait(pid: int) -> int:
    """The exit code of what was started, -N after signal N."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve() -> None:
    """Answer requests until stdin ends: with a pid, or with the exit code of the pid to wait for."""
    _socket.socket = Socket
    load_all()
    hide("open")
    hide("listdir")
    for line in sys.stdin:
        ask = json.loads(line)
        answer = wait(ask["wait"]) if "wait" in ask else start(ask)
        os.write(1, f"{answer}\n".encode())


if __name__ == "__main__":
    serve()
