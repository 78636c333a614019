"""``slicer serve --check``: examines what a server needs. Starts nothing and keeps nothing."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable, Mapping

from slicer.backend import serve_units
from slicer.backend.install_units import data_home
from slicer.cli.dryrun import Forecast
from slicer.config.profiles import Config, Overrides
from slicer.config.serve import Server
from slicer.errors import SlicerError, UsageError
from slicer.kernel import on_host, proc
from slicer.record import record

UNIX = "unix:"
_UNITS = ("/usr/local/lib/systemd/system", "/etc/systemd/system")
_OLDEST_AIOHTTP = (3, 9)
_LONGEST_PATH = 107  # bytes of a unix socket's path
_CONNECT_S = 2.0


class NoAiohttp(SlicerError):
    """The HTTP library is missing or too old."""

    kind = "no-aiohttp"

    def __init__(self, why: str) -> None:
        hint = "pip install aiohttp in slicer's environment (Debian: apt install python3-aiohttp)"
        super().__init__(f"slicer serve needs aiohttp 3.9 or later ({why})", hint=hint)


@record
class Address:
    """An address from ``listen``, and why slicer cannot listen there now."""

    text: str
    is_public: bool  # other machines can reach it
    error: str = ""  # the kernel's message; "" if the address is free
    pid: int = 0  # of the process that listens there; 0: none, or unknown
    name: str = ""  # of that process


@record
class ServerCheck:
    """What was found about one server. An empty text means that nothing is wrong."""

    server: Server
    beside: tuple[Server, ...]  # other configured servers at one of its addresses
    addresses: tuple[Address, ...]
    aiohttp: str  # why aiohttp cannot be used
    command: str  # what is wrong with the command
    lease: str  # what it would lease, and whether that is free
    gpus: int | None  # the lease's number of GPUs; None: the profile is wrong
    profile: str  # what is wrong with the profile, or why its needs can never be met
    upstream: str  # why a server that runs on its own does not answer
    proxy_pid: int  # of the `slicer serve` that serves it now; 0: none
    socket: str = ""  # the systemd socket unit that listens for it


def aiohttp_version() -> str:
    """The version of aiohttp. Raises NoAiohttp."""
    from importlib import metadata

    try:
        found = metadata.version("aiohttp")
    except metadata.PackageNotFoundError:
        raise NoAiohttp("it is not installed") from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST_AIOHTTP:
        raise NoAiohttp(f"this is {found:.20}")
    return found


def look(
    server: Server, everyone: Iterable[Server], config: Config, environ: Mapping[str, str]
) -> ServerCheck:
    """Check everything that the server needs. Problems are in the result, not raised."""
    from slicer.serve import standings

    standing = (each for each in standings.read(environ, lambda _: None) if each.name == server.name)
    others = beside(server, everyone)
    lease, gpus, profile, command = _lease(server, config, environ)
    aiohttp = ""
    try:
        aiohttp_version()
    except NoAiohttp as error:
        aiohttp = str(error)
    return ServerCheck(
        server=server,
        beside=others,
        addresses=tuple(_address(text) for text in server.listen),
        aiohttp=aiohttp,
        command=command,
        lease=lease,
        gpus=gpus,
        profile=profile,
        upstream="" if server.command else _unreachable(server.upstream),
        proxy_pid=next((each.pid for each in standing), 0),
        socket=_socket_of((server, *others), environ),
    )


def _socket_of(servers: Iterable[Server], environ: Mapping[str, str]) -> str:
    """The installed socket of one of these servers, which share an address."""
    folders = (*map(on_host, _UNITS), f"{data_home(environ)}/systemd/user")
    units = (serve_units.socket_of(each.name) for each in servers)
    found = (unit for unit in units for folder in folders if os.path.exists(f"{folder}/{unit}"))
    return next(found, "")


def beside(server: Server, everyone: Iterable[Server]) -> tuple[Server, ...]:
    """The other servers that listen at one of this server's addresses. Pure."""
    own = set(server.listen)
    return tuple(each for each in everyone if each.name != server.name and own.intersection(each.listen))


def split(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[HOST]:PORT". Pure. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise ValueError(address)
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_public(address: str) -> bool:
    """Whether other machines can reach the address. Pure."""
    if address.startswith(UNIX):
        return False
    host, _ = split(address)
    return not (host in ("localhost", "::1") or host.startswith("127."))


def _address(text: str) -> Address:
    if text.startswith(UNIX):
        return _unix_address(text)
    host, port = split(text)
    error = ""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
            tried.listen(1)
    except OSError as failed:
        error = failed.strerror or str(failed)
        if failed.errno == errno.EADDRINUSE:
            pid = listener(port)
            return Address(text, is_public(text), error, pid, proc.comm(pid) if pid else "")
    return Address(text, is_public(text), error)


def _unix_address(text: str) -> Address:
    path = text.removeprefix(UNIX)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        return Address(text, False, f"the path is longer than {_LONGEST_PATH} bytes")
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Address(text, False, f"{folder} does not exist, or you may not write to it")
    try:
        info = os.lstat(path)
    except OSError:
        return Address(text, False)
    if not stat.S_ISSOCK(info.st_mode):
        return Address(text, False, "the path exists and is not a socket")
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(_CONNECT_S)
            tried.connect(path)
    except OSError as failed:
        is_left = failed.errno == errno.ECONNREFUSED  # left by a killed server; it is replaced
        return Address(text, False, "" if is_left else failed.strerror or str(failed))
    return Address(text, False, os.strerror(errno.EADDRINUSE))


def listener(port: int) -> int:
    """The process that listens at a TCP port, if we may see it; 0 if none is found."""
    inodes = {inode for family in ("tcp", "tcp6") for inode in _listening(f"/proc/net/{family}", port)}
    for pid in proc.pids() if inodes else ():
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # exited, or another user's
        for name in names:
            try:
                if os.readlink(f"/proc/{pid}/fd/{name}") in inodes:
                    return pid
            except OSError:
                continue  # closed meanwhile
    return 0


def _listening(path: str, port: int) -> list[str]:
    """The sockets of one of /proc/net's tables that listen at the port, as links in /proc/PID/fd."""
    found = []
    try:
        lines = proc.read_text(path).splitlines()[1:]
    except OSError:
        return []  # without IPv6
    for line in lines:
        words = line.split()  # sl local_address rem_address st … inode
        if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
            found.append(f"socket:[{words[9]}]")
    return found


def _unreachable(url: str) -> str:
    """Why no server answers at the URL's host and port; "" if one does."""
    _, _, rest = url.partition("://")
    place = rest.partition("/")[0]
    try:
        with socket.create_connection(split(place if ":" in place else f"{place}:80"), _CONNECT_S):
            return ""
    except (OSError, ValueError) as failed:
        return getattr(failed, "strerror", None) or str(failed)


def overrides_of(server: Server) -> Overrides:
    """The server's overrides of its profile, as options of ``slicer run``. Pure."""
    vram = None if server.vram_mib is None else f"{server.vram_mib}M"
    return Overrides(gpus=server.gpus, vram=vram)


def _lease(server: Server, config: Config, environ: Mapping[str, str]) -> tuple[str, int | None, str, str]:
    """The lease, its number of GPUs, an error in the profile, and an error in the command."""
    from slicer.errors import CannotExecute, CommandNotFound

    try:
        profile = config.profile(server.profile, overrides_of(server))
    except SlicerError as error:
        return "", None, str(error), ""
    try:
        found = _forecast(server, environ)
        is_never = found.is_free is False and found.busy is None
        return found.text, profile.gpus, found.text if is_never else "", ""
    except (CannotExecute, CommandNotFound) as error:
        return "", profile.gpus, "", str(error)
    except UsageError as error:
        return "", profile.gpus, str(error), ""
    except SlicerError as error:
        return f"not known: {error}", profile.gpus, "", ""


def _forecast(server: Server, environ: Mapping[str, str]) -> Forecast:
    """The ledger's answer at this moment. Raises SlicerError."""
    from slicer.cli.dryrun import forecast_of, usable_backend
    from slicer.job.plan import Invocation, plan_of
    from slicer.ledger.status import existing_ledger

    invocation = Invocation(
        command=server.command or ("true",), profile=server.profile, overrides=overrides_of(server),
        name=f"serve:{server.name}",
    )  # fmt: skip
    ledger = existing_ledger(environ, lambda _: None)
    plan = plan_of(invocation, {**environ, **server.env}, ledger)
    return forecast_of(plan, usable_backend(plan), ledger)
