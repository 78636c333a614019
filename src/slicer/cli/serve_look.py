"""``slicer serve --dry-run``: examines what a server needs. Starts nothing and keeps nothing."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable, Mapping

from slicer.backend import serve_units
from slicer.backend.install_units import data_home
from slicer.backend.unit_files import SYSTEM_UNITS
from slicer.cli.common import NoLibrary
from slicer.cli.dryrun import Forecast, forecast_of, usable_backend
from slicer.config.profiles import Config, Overrides
from slicer.config.serve import Server
from slicer.errors import CannotExecute, CommandNotFound, SlicerError, UsageError
from slicer.job.plan import Invocation, plan_of
from slicer.kernel import listeners, on_host, proc
from slicer.ledger.status import existing_ledger
from slicer.record import record
from slicer.serve import listening
from slicer.state import standings

_UNIX = "unix:"
_UNITS = (SYSTEM_UNITS, "/etc/systemd/system")
_OLDEST_AIOHTTP = (3, 9)
_LONGEST_PATH = 107  # bytes of a unix socket's path
_CONNECT_S = 2.0


@record
class Address:
    """An address from ``listen``, and why slicer cannot listen there now."""

    text: str
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


def need_aiohttp(command: str = "slicer serve") -> None:
    """Raise NoLibrary without aiohttp, or if it is too old."""
    from importlib import metadata

    told = f"{command} needs aiohttp 3.9 or later"
    try:
        found = metadata.version("aiohttp")
    except metadata.PackageNotFoundError:
        raise NoLibrary("aiohttp", f"{told} (it is not installed)") from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST_AIOHTTP:
        raise NoLibrary("aiohttp", f"{told} (this is {found:.20})")


def look(
    server: Server, everyone: Iterable[Server], config: Config, environ: Mapping[str, str]
) -> ServerCheck:
    """Check everything that the server needs. Problems are in the result, not raised."""
    standing = (each for each in standings.read(environ, lambda _: None) if each.name == server.name)
    others = beside(server, everyone)
    lease, gpus, profile, command = _lease(server, config, environ)
    aiohttp = ""
    try:
        need_aiohttp()
    except NoLibrary as error:
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


def _address(text: str) -> Address:
    if text.startswith(_UNIX):
        return _unix_address(text)
    host, port = listening.split(text)
    try:
        with listening.tcp(host, port) as tried:
            tried.listen(1)
    except OSError as failed:
        pid = listeners.pid(host, port) if failed.errno == errno.EADDRINUSE else 0
        return Address(text, failed.strerror or str(failed), pid, proc.comm(pid) if pid else "")
    return Address(text)


def _unix_address(text: str) -> Address:
    path = text.removeprefix(_UNIX)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        return Address(text, f"the path is longer than {_LONGEST_PATH} bytes")
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Address(text, f"{folder} does not exist, or you may not write to it")
    try:
        info = os.lstat(path)
    except OSError:
        return Address(text)
    if not stat.S_ISSOCK(info.st_mode):
        return Address(text, "the path exists and is not a socket")
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(_CONNECT_S)
            tried.connect(path)
    except OSError as failed:
        is_left = failed.errno == errno.ECONNREFUSED  # left by a killed server; it is replaced
        return Address(text, "" if is_left else failed.strerror or str(failed))
    return Address(text, os.strerror(errno.EADDRINUSE))


def _unreachable(url: str) -> str:
    """Why no server answers at http://HOST:PORT; "" if one does."""
    try:
        with socket.create_connection(listening.split(url.removeprefix("http://")), _CONNECT_S):
            return ""
    except (OSError, ValueError) as failed:
        return getattr(failed, "strerror", None) or str(failed)


def overrides_of(server: Server) -> Overrides:
    """The server's overrides of its profile, as options of ``slicer run``. Pure."""
    vram = None if server.vram_mib is None else f"{server.vram_mib}M"
    return Overrides(gpus=server.gpus, vram=vram)


def _lease(server: Server, config: Config, environ: Mapping[str, str]) -> tuple[str, int | None, str, str]:
    """The lease, its number of GPUs, an error in the profile, and an error in the command."""
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
    invocation = Invocation(
        command=server.command or ("true",), profile=server.profile, overrides=overrides_of(server),
        name=f"serve:{server.name}",
    )  # fmt: skip
    ledger = existing_ledger(environ, lambda _: None)
    plan = plan_of(invocation, {**environ, **server.env}, ledger)
    return forecast_of(plan, usable_backend(plan), ledger)
