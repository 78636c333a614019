"""The sockets of a proxy: those from systemd, or its own; and when it leaves them."""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from slicer.errors import UsageError

_UNIX = "unix:"
_FIRST_FD = 3  # sd_listen_fds(3)
BACKLOG = 1024  # connections that are not accepted yet
_LEAVES_AFTER_S = 30.0  # without use, if systemd's socket can start it again


def open_all(addresses: Iterable[str], environ: Mapping[str, str]) -> dict[str, socket.socket]:
    """A listening socket for each address. Raises UsageError for an address that cannot be used."""
    given = {_address_of(each): each for each in handed(environ)}
    found: dict[str, socket.socket] = {}
    try:
        for address in addresses:
            known = _canonical(address)
            found[address] = given.pop(known) if known in given else _open(address)
    except BaseException:
        for each in found.values():
            each.close()
        raise
    finally:
        for each in given.values():
            each.close()
    return found


def remove(sockets: Mapping[str, socket.socket], environ: Mapping[str, str]) -> None:
    """Remove the files of our own unix sockets, but not of systemd's."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        for address in sockets:
            if address.startswith(_UNIX):
                with suppress(FileNotFoundError):
                    os.unlink(address[len(_UNIX) :])


async def until_the_end(is_used: Callable[[], bool], *, leaves: bool) -> None:
    """Return at SIGTERM or SIGINT; with ``leaves`` also once nothing was used for long enough."""
    import asyncio  # not for those who only ask about addresses

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    used_s = loop.time()
    while not ended.is_set() and not (leaves and loop.time() - used_s >= _LEAVES_AFTER_S):
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVES_AFTER_S / 10 if leaves else None):
                await ended.wait()
        used_s = loop.time() if is_used() else used_s


def handed(environ: Mapping[str, str]) -> list[socket.socket]:
    """The sockets that systemd passed to this very process."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(environ.get("LISTEN_FDS", "0"))
    found = [socket.socket(fileno=_FIRST_FD + number) for number in range(count)]
    for each in found:
        each.setblocking(False)
        each.set_inheritable(False)
    return found


def split(address: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:11434" or "[::1]:11434". Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _open(address: str) -> socket.socket:
    try:
        made = _unix(address[len(_UNIX) :]) if address.startswith(_UNIX) else tcp(*split(address))
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        hint = "move what listens there: its clients keep this address" if is_taken else ""
        raise UsageError(f"cannot listen: {error.strerror or error}", where=address, hint=hint) from error
    made.listen(BACKLOG)
    made.setblocking(False)
    return made


def tcp(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address. Raises OSError."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # 0.0.0.0 is a separate address
        made.bind(where)
    except BaseException:
        made.close()
        raise
    return made


def _unix(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        if _is_abandoned(path):
            os.unlink(path)
        made.bind(path)
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


def _is_abandoned(path: str) -> bool:
    """Whether it is our own socket on which nobody listens, left by a killed proxy."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _canonical(address: str) -> str:
    if address.startswith(_UNIX):
        return address
    host, port = split(address)
    with suppress(ValueError):
        host = str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    return f"{host}:{port}"


def _address_of(sock: socket.socket) -> str:
    name = sock.getsockname()
    return f"{_UNIX}{name}" if sock.family == socket.AF_UNIX else f"{name[0]}:{name[1]}"
