"""Servers of the configuration, ``[serve.NAME]``: each has a GPU only while it is in use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from slicer.config import route_values, values
from slicer.config.build import Said, kinds
from slicer.config.files import Layer
from slicer.errors import ConfigError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.build import Kind as ValueKind
    from slicer.config.build import Row
    from slicer.config.route_values import AnyConfig
    from slicer.config.values import Entry, Reader


Kind = Literal["ollama", "openai", "llamacpp", "comfyui", "raw"]
OnOffload = Literal["warn", "fail"]


@record
class Server:
    """One ``[serve.NAME]``, with every default decided. Times in seconds.

    With a ``command`` slicer starts the server, as a job named ``serve:NAME``, and stops it when it is idle.
    Otherwise the server is already running, and slicer unloads its models when it is idle.
    """

    name: str
    description: str
    kind: Kind
    listen: tuple[str, ...]  # "127.0.0.1:11434", "[::1]:11434", "unix:/run/user/1000/ollama.sock"
    public: bool  # addresses other than loopback are intended
    hosts: tuple[str, ...]  # allowed names in the Host header, besides loopback's and addresses
    upstream: str  # "http://127.0.0.1:11435"; "" with a command: a free port is chosen
    command: tuple[str, ...]  # ${PORT} in a word becomes the upstream's port; () if it already runs
    env: dict[str, str]  # for the command; ${PORT} likewise
    profile: str  # of its job; for a running server, of its lease
    gpus: int | None  # None: the profile's
    vram_mib: int | None  # of each GPU; None: the profile's
    models: tuple[str, ...]  # of several servers at one address: this one's values of the JSON field "model"
    path: str  # of several at one address: this one's paths begin with this; "" is any
    default: bool  # of several at one address: this one gets requests that are for none of the others
    ready_path: str  # "": a connection to the port suffices
    ready_timeout_s: float
    idle_s: float  # from the end of the last request to the release
    min_hold_s: float  # the shortest time before another server at the same address gets the GPU
    max_wait_s: float  # for the lease; 0: an immediate 503
    give_way: bool  # release the GPU at once if it is idle and another job waits for one
    release_timeout_s: float  # for the unload and the release of the memory; then the job is killed
    drain_s: float  # how long requests may continue after SIGTERM
    on_offload: OnOffload  # a model that lies partly in the machine's memory: warn, or refuse the request
    load_first: bool  # slicer loads a model itself, so that a disconnecting client does not stop the load
    routes_gpu: tuple[str, ...]  # "POST /extra": further requests that need the GPU
    routes_free: tuple[str, ...]  # further requests that do not need it
    routes_allow: tuple[str, ...]  # administrative paths that are forwarded; by default none are
    ignore_websockets: bool  # an open websocket does not count as a request
    sources: dict[str, str]  # of each key


KINDS: tuple[Kind, ...] = ("ollama", "openai", "llamacpp", "comfyui", "raw")
LISTEN = {
    "ollama": "127.0.0.1:11434", "openai": "127.0.0.1:8000", "llamacpp": "127.0.0.1:8080",
    "comfyui": "127.0.0.1:8188",
}  # fmt: skip
_HEARS_ITS_PORT = ("ollama", "llamacpp")  # through a variable that slicer sets
_PORT = "${PORT}"
_LISTEN_HINT = 'write ["127.0.0.1:8080"], ["[::1]:8080"] or ["unix:/run/user/1000/model.sock"]'


def load(config: AnyConfig) -> dict[str, Server]:
    """All servers by name, in alphabetical order. Raises ConfigError."""
    found = {name: _server(name, config.layers) for name in route_values.names(config.layers, "serve")}
    defaults: dict[str, str] = {}
    for server in found.values():
        for address in server.listen if server.default else ():
            if defaults.setdefault(address, server.name) != server.name:
                message = f"serve.{defaults[address]} is the default at {address} already"
                raise ConfigError(message, where=server.sources["default"], hint="keep one of them")
    return found


def find(config: AnyConfig, name: str) -> Server:
    """The server of that name. Raises UsageError if there is none, ConfigError for an error in a file."""
    route_values.check_known(config.layers, "serve", name, "server")
    return _server(name, config.layers)


def _server(name: str, layers: Iterable[Layer]) -> Server:
    said, where = Said({}), ""
    for layer in layers:
        if name in layer.data.get("serve", {}):
            where = layer.where("serve", name)
            said.entries |= layer.entries("serve", name)
    kind = said.entries.get("kind")
    if kind is None:
        hint = 'add kind = "ollama", "openai", "llamacpp", "comfyui" or "raw"'
        raise ConfigError(f"serve.{name} has no kind", where=where, hint=hint)
    at = LISTEN.get(kind[0], "") if isinstance(kind[0], str) else ""
    found = said.read(ROWS | {"listen": ("addresses", (at,) if at else ())}, readers=_READERS)
    server = Server(name=name, **found, sources=said.sources)
    _check(server, where)
    return server


def _listen(entry: Entry, key: str) -> tuple[str, ...]:
    found = route_values.texts(entry, key)
    for each in found:
        if not (each.startswith("unix:/") or _host_of(each)):
            raise values.refuse(entry, key, f"{each!r:.60} is not an address", _LISTEN_HINT)
    if len(set(found)) < len(found):
        raise values.refuse(entry, key, "an address is listed twice")
    return found


def _host_of(address: str) -> str:
    """The host of "127.0.0.1:80", "[::1]:80" or "localhost:80"; "" for anything else."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return ""
    is_v6 = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_v6 else host
    if bare == "localhost" and not is_v6:
        return bare
    import ipaddress

    try:
        version = ipaddress.ip_address(bare).version
    except ValueError:
        return ""
    return bare if is_v6 == (version == 6) else ""


def is_public(address: str) -> bool:
    """Whether other machines can reach an address of ``listen``."""
    if address.startswith("unix:"):
        return False
    import ipaddress

    host = _host_of(address)
    return host != "localhost" and not ipaddress.ip_address(host).is_loopback


def _upstream(entry: Entry, key: str) -> str:
    found = values.text(entry, key).rstrip("/")
    host, _, port = found.removeprefix("http://").rpartition(":")
    is_url = found.startswith("http://") and host and not set("/@?# ") & set(host)
    if not (is_url and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise values.refuse(entry, key, f"{found!r:.60} is not a base URL", 'write "http://127.0.0.1:11435"')
    return found


def _env(entry: Entry, _: str) -> dict[str, str]:
    """Variables. The check of the file's keys also checks these."""
    return {name: str(value) for name, value in entry[0].items() if value is not False}


def _path(entry: Entry, key: str) -> str:
    found = values.text(entry, key)
    if found and not found.startswith("/"):
        raise values.refuse(entry, key, f"{found!r:.60} is not a path", 'write "/health"')
    return found


def _routes(entry: Entry, key: str) -> tuple[str, ...]:
    found = route_values.texts(entry, key)
    for each in found:
        method, _, path = each.rpartition(" ")
        if not (path.startswith("/") and (method == "" or (method.isascii() and method.isupper()))):
            hint = 'write "POST /extra", or "/extra" for every method; a * at the end stands for any rest'
            raise values.refuse(entry, key, f"{each!r:.60} is not a route", hint)
    return found


_READERS: dict[ValueKind, Reader] = {
    "addresses": _listen, "upstream": _upstream, "variables": _env, "url-path": _path, "requests": _routes
}  # fmt: skip
ROWS: dict[str, Row] = {
    "kind": (KINDS, None),
    "description": ("text", ""),
    "listen": ("addresses", ()),
    "public": ("flag", False),
    "hosts": ("words", ()),
    "upstream": ("upstream", ""),
    "command": ("words", ()),
    "env": ("variables", {}),
    "profile": ("text", "gpu"),
    "gpus": ("some-count", None),
    "vram_mib": ("some-gpu-memory", None),
    "models": ("words", ()),
    "path": ("url-path", ""),
    "default": ("flag", False),
    "ready_path": ("url-path", ""),
    "ready_timeout_s": ("finite-wait", 120.0),
    "idle_s": ("finite-wait", 300.0),
    "min_hold_s": ("finite-wait", 30.0),
    "max_wait_s": ("finite-wait", 600.0),
    "give_way": ("flag", True),
    "release_timeout_s": ("finite-wait", 30.0),
    "drain_s": ("finite-wait", 30.0),
    "on_offload": (("warn", "fail"), "warn"),
    "load_first": ("flag", True),
    "routes_gpu": ("requests", ()),
    "routes_free": ("requests", ()),
    "routes_allow": ("requests", ()),
    "ignore_websockets": ("flag", False),
}
KEYS = kinds(ROWS)


def _check(server: Server, where: str) -> None:
    """Raise ConfigError for keys that contradict each other."""
    named = f"serve.{server.name}"
    if not server.listen:
        raise ConfigError(f"{named} has no address", where=where, hint='add listen = ["127.0.0.1:8080"]')
    if not server.command and not server.upstream:
        hint = 'add command = ["…"], or upstream = "http://127.0.0.1:11435" where it runs already'
        raise ConfigError(f"{named} has neither a command nor an upstream", where=where, hint=hint)
    said = (*server.command, *server.env.values())
    hears = server.kind in _HEARS_ITS_PORT or any(_PORT in each for each in said)
    if not (server.upstream or hears):
        hint = 'add "--port", "${PORT}" or the like; where the port is fixed, upstream = "http://127.0.0.1:8001"'
        message = "command: the server is not told its port"
        raise ConfigError(message, where=server.sources["command"], hint=hint)
    for address in server.listen:
        if is_public(address) and not server.public:
            hint = "everybody who reaches it may use the server: add public = true if that is meant"
            message = f"listen: {address} can be reached from other machines"
            raise ConfigError(message, where=server.sources["listen"], hint=hint)
        if server.upstream.removeprefix("http://") == address:
            message = f"upstream: {address} is where slicer itself listens"
            hint = "let the server listen at another address"
            raise ConfigError(message, where=server.sources["upstream"], hint=hint)
