"""Routes of the configuration: a job goes to the GPU or the CPU, depending on the size of its input."""

from __future__ import annotations

from slicer.config import build, route_values, values
from slicer.config.build import Said
from slicer.config.route_slots import MODES, slot_name, tables
from slicer.errors import ConfigError
from slicer.quantity import INFINITY
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from slicer.config.build import Row
    from slicer.config.files import Layer
    from slicer.config.metric_units import ProbeKind as ProbeKind
    from slicer.config.route_slots import Mode as Mode
    from slicer.config.route_values import AnyConfig
    from slicer.config.values import Entry
    from slicer.model import Host

    OnBusy = Literal["fail", "wait", "other"]
    OnProbeError = Literal["fail", "gpu", "cpu"]
    OnGpuOom = Literal["fail", "cpu"]

ON_BUSY: tuple[OnBusy, ...] = ("fail", "wait", "other")
_PROFILES = {"gpu": "gpu", "cpu": "heavy"}  # the defaults


@record
class Probe:
    """The measurement of one metric of the input. :mod:`slicer.config.metric_units` defines its unit."""

    kind: ProbeKind
    command: tuple[str, ...]  # of "command", with "{}" for the input; () for built-in probes
    timeout_s: float
    tokens_per_word: float  # of "tokens"


@record
class Destination:
    """One possible destination of a route's jobs."""

    name: str  # "gpu", "cpu", or the file's name for it
    mode: Mode
    up_to: tuple[float | None, ...]  # the largest metric of each probe that it takes; None: any
    args: tuple[str, ...]  # appended to the command's own arguments
    prepend: tuple[str, ...]  # inserted before them
    # Options and their new values; None removes the option, with its value if the name ends in "=".
    replace: tuple[tuple[str, str | None], ...]
    profile: str
    max_jobs: int | None  # at a time; None: as many as the ledger grants
    slot: str  # their slot in the ledger: "whisper-gpu"; "" without max_jobs
    vram_mib: int | None  # of one GPU; None: the profile's
    memory_bytes: int | None  # MemoryMax of a job; None: the profile's
    on_busy: OnBusy
    exit_code: int  # for a blocked job


@record
class Route:
    """One ``[routes.NAME]``, with every default decided. Its destinations are in the order of their bounds.

    A job goes to the first destination whose bounds hold for all metrics. Without probes that is the first.
    ``sources`` names the origin of each key ("threshold", "gpu.args", "to.small.up_to") and table ("gpu").
    """

    name: str
    description: str
    probes: tuple[Probe, ...]
    input: int | str | None  # an index (from 1, or from -1), an option, a glob, "stdin"; None: find it
    destinations: tuple[Destination, ...]
    on_probe_error: OnProbeError
    on_gpu_oom: OnGpuOom
    idempotent: bool  # whether a job that has written something may run again
    memory_reserve_bytes: int | None  # of the machine, for all other uses; None: the default
    sources: dict[str, str]


def names(layers: Iterable[Layer]) -> tuple[str, ...]:
    """The names of all routes, in alphabetical order."""
    return route_values.names(layers, "routes")


def load(config: AnyConfig) -> dict[str, Route]:
    """All routes by name, in alphabetical order. Raises ConfigError."""
    return {name: _route(name, config.layers, config.host) for name in names(config.layers)}


def find(config: AnyConfig, name: str) -> Route:
    """The route of that name. Raises UsageError if there is none, ConfigError for an error in a file."""
    route_values.check_known(config.layers, "routes", name, "route")
    return _route(name, config.layers, config.host)


def source(route: Route, destination: Destination, key: str = "") -> str:
    """The place where a key of a destination is set; without ``key``, the start of its table."""
    path = destination.name if f"{destination.name}.profile" in route.sources else f"to.{destination.name}"
    return route.sources[f"{path}.{key}" if key else path]


class _Said(Said):
    """The entries of one route, and its destinations. Later files win."""

    def __init__(self, name: str, layers: Iterable[Layer]) -> None:
        super().__init__({})
        self.tables: dict[tuple[str, ...], str] = {}  # the destinations, and where each begins
        for layer in layers:
            table = layer.data.get("routes", {}).get(name)
            if table is None:
                continue
            self.where = layer.where("routes", name)
            self.entries |= layer.entries("routes", name)
            for path, _ in tables(table):
                self.tables[path] = layer.where("routes", name, *path)
                below = layer.entries("routes", name, *path)
                self.entries |= {".".join((*path, key)): entry for key, entry in below.items()}


def _route(name: str, layers: Iterable[Layer], host: Host) -> Route:
    said = _Said(name, layers)
    probes = _probes(said)
    destinations = _destinations(name, said, probes, host)
    found = said.read(_ROWS, readers={"finite-memory": _memory_reader(host)})
    route = Route(name=name, probes=probes, destinations=destinations, **found, sources=said.sources)
    _check_modes(route)
    _check_input(route)
    return route


def _probes(said: _Said) -> tuple[Probe, ...]:
    entry, command = said.get("probe"), said.get("probe_command")
    kinds = route_values.kinds(entry, "probe") if entry else ()
    if command and "command" not in kinds:
        message = 'probe_command: requires probe = "command"'
        raise ConfigError(message, where=command[1], hint='add probe = "command", or leave it out')
    if entry and not command and "command" in kinds:
        hint = 'add probe_command = ["my-probe", "{}"]'
        raise values.refuse(entry, "probe", 'a probe "command" needs a probe_command', hint)
    timeout_s, per_word = said.read(_PROBE_ROWS).values()
    words = route_values.probe_command(command, "probe_command") if command else ()
    return tuple(Probe(kind, words if kind == "command" else (), timeout_s, per_word) for kind in kinds)


def _destinations(name: str, said: _Said, probes: tuple[Probe, ...], host: Host) -> tuple[Destination, ...]:
    """The destinations in the order of their bounds. Raises ConfigError if there are none, or two kinds."""
    threshold = said.get("threshold")
    several = {path: where for path, where in said.tables.items() if len(path) > 1}
    pair = {path: where for path, where in said.tables.items() if len(path) == 1}
    hint = f"[routes.{name}.gpu] and [routes.{name}.cpu], or a table [routes.{name}.to.NAME] for each"
    if not said.tables:
        message = f"route {name} has no destination"
        raise ConfigError(message, where=said.where, hint=f"add {hint}")
    if several and pair:
        message = f"route {name} has destinations of both kinds"
        raise ConfigError(message, where=next(iter(several.values())), hint=f"keep {hint}")
    if threshold and ("gpu",) not in pair:
        message = f"threshold: is the bound of [routes.{name}.gpu], which does not exist"
        hint = "up_to is the bound of a destination in [routes.….to.…]" if several else f"add {hint}"
        raise ConfigError(message, where=threshold[1], hint=hint)
    # Of two with the same bounds the file's first one goes first; of gpu and cpu, the GPU.
    paths = sorted(said.tables, key=lambda path: path == ("cpu",))
    found = [_destination(name, path, said, probes, host) for path in paths]
    return tuple(sorted(found, key=lambda each: [float("inf") if b is None else b for b in each.up_to]))


def _destination(
    route: str, path: tuple[str, ...], said: _Said, probes: tuple[Probe, ...], host: Host
) -> Destination:
    prefix, name = ".".join((*path, "")), path[-1]
    said.sources[prefix[:-1]] = said.tables[path]
    mode, bound, label = _mode_and_bound(path, said)
    kinds = tuple(probe.kind for probe in probes)
    vram = said.entries.get(f"{prefix}vram")
    if vram and mode == "cpu":
        raise values.refuse(vram, "vram", f"{name} is for CPU jobs, which have no GPU memory", "leave it out")
    up_to = route_values.bounds(bound, label, kinds) if bound else (None,) * len(probes)
    rows = _DESTINATION_ROWS | {"profile": ("text", _PROFILES[mode])}
    found = said.read(rows, prefix, readers={"finite-memory": _memory_reader(host)})
    slot = slot_name(route, name) if found["max_jobs"] else ""
    return Destination(name=name, mode=mode, up_to=up_to, slot=slot, **found)


def _mode_and_bound(path: tuple[str, ...], said: _Said) -> tuple[Mode, Entry | None, str]:
    """The mode of a destination, its bound, and the key of the bound."""
    if path == ("gpu",):
        return "gpu", said.get("threshold"), "threshold"
    if path == ("cpu",):
        return "cpu", None, ""
    prefix = ".".join((*path, ""))
    entry = said.get(f"{prefix}mode")
    if entry is None:
        message = f"{path[-1]} needs a mode"
        raise ConfigError(message, where=said.tables[path], hint='add mode = "gpu" or mode = "cpu"')
    return values.choice(entry, "mode", MODES), said.get(f"{prefix}up_to"), "up_to"


def _memory_reader(host: Host) -> Callable[[Entry, str], int]:
    """A reader of an amount of this machine's memory."""

    def read(entry: Entry, key: str) -> int:
        found = build.property_of("memory_max", entry, host, key).value
        if not isinstance(found, int) or found == INFINITY:
            raise values.refuse(entry, key, "must be finite", 'write a size such as "6G"')
        return found

    return read


_ROWS: dict[str, Row] = {
    "description": ("text", ""),
    "input": ("input", None),
    "on_probe_error": (("fail", "gpu", "cpu"), "fail"),
    "on_gpu_oom": (("fail", "cpu"), "fail"),
    "idempotent": ("flag", True),
    "memory_reserve_bytes": ("finite-memory", None),
}
_PROBE_ROWS: dict[str, Row] = {"probe_timeout_s": ("some-time", 30.0), "tokens_per_word": ("factor", 1.3)}
_DESTINATION_ROWS: dict[str, Row] = {
    "args": ("words", ()),
    "prepend": ("words", ()),
    "replace": ("replacements", ()),
    "profile": ("text", None),
    "max_jobs": ("some-count", None),
    "vram_mib": ("some-gpu-memory", None),
    "memory_bytes": ("finite-memory", None),
    "on_busy": (ON_BUSY, "fail"),
    "exit_code": ("exit-code", 75),
}
# The kind of each key. Those without a row are read with what else the route says.
KEYS = {
    **build.kinds({**_ROWS, **_PROBE_ROWS}), "probe": "probes", "probe_command": "command",
    "threshold": "bounds", "on_busy": ON_BUSY, "exit_code": "exit-code",
}  # fmt: skip
DESTINATION_KEYS = build.kinds(_DESTINATION_ROWS)
TO_KEYS = {"mode": MODES, "up_to": "bounds", **DESTINATION_KEYS}


def _check_modes(route: Route) -> None:
    """Raise ConfigError for a mode that no destination has."""
    there = {each.mode for each in route.destinations}
    for key, mode in (("on_probe_error", route.on_probe_error), ("on_gpu_oom", route.on_gpu_oom)):
        if mode != "fail" and mode not in there:
            message = f'{key}: is "{mode}", and route {route.name} has no such destination'
            hint = f'add [routes.{route.name}.{mode}], or write "fail"'
            raise ConfigError(message, where=route.sources[key], hint=hint)


def _check_input(route: Route) -> None:
    kinds = {probe.kind for probe in route.probes}
    if "count" in kinds and route.input == route_values.STDIN:
        message = 'input: probe "count" counts files in a directory, which standard input is not'
        raise ConfigError(message, where=route.sources["input"])
    if "count" in kinds and len(kinds - {"command"}) > 1:
        other = min(kinds - {"command", "count"})
        message = f'probe: "count" measures a directory and "{other}" a file, but there is one input'
        raise ConfigError(message, where=route.sources["probe"], hint="keep one of them")


# -- beside profiles and each other ----------------------------------------------------------------------


def check(config: AnyConfig) -> None:
    """Raise ConfigError for a route that is invalid, by itself or in combination with profiles and others."""
    owners: dict[str, str] = {}
    for route in load(config).values():
        for each in route.destinations:
            _check_profile(route, each, config)
            own = f"route {route.name}, destination {each.name}"
            other = owners.setdefault(each.slot or own, own)
            if other != own:
                where = source(route, each, "max_jobs")
                message = f"its slot {each.slot} is also that of {other}"
                raise ConfigError(message, where=where, hint="give one of them another name")


def _check_profile(route: Route, each: Destination, config: AnyConfig) -> None:
    where = source(route, each, "profile")
    if where == "default":
        where = source(route, each)
    if each.profile not in config.names():
        hint = f"known: {', '.join(config.names())}"
        raise ConfigError(f"profile: there is no profile {each.profile!r:.60}", where=where, hint=hint)
    gpus = config.profile(each.profile).gpus
    if each.mode == "gpu" and not gpus and not each.vram_mib:
        message = f"profile {each.profile} requests no GPU, but {each.name} is for GPU jobs"
        raise ConfigError(message, where=where, hint='add vram = "…", or name a profile with gpus')
    if each.mode == "cpu" and gpus:
        message = f"profile {each.profile} requests GPUs, but {each.name} is for CPU jobs"
        raise ConfigError(message, where=where, hint="name a profile without gpus, gpu and vram")
