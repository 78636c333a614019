"""From configuration files to profiles in which every value is decided, with its source.

:func:`load` returns a :class:`Config`, its :meth:`~Config.profile` a :class:`slicer.model.Profile` for this
machine. Precedence, lowest first: a parent (``inherits``), the built-in profile of the name, the files in
their order key by key, the command line.
"""

from __future__ import annotations

import os

from slicer import quantity
from slicer.config import build, values
from slicer.config.files import Layer, read_files, store
from slicer.config.properties import find, split_assignment, unknown
from slicer.errors import ConfigError, SlicerError, UnknownProfile, UsageError
from slicer.kernel.proc import text_of
from slicer.model import CPU, Host, Profile
from slicer.placement.settings import Policy
from slicer.record import as_dict, record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from slicer.config.values import Entry
    from slicer.model import Notify
    from slicer.placement.pressure import StallLimit

_GPU_PROFILE = "gpu"

# One variable for each library that has its own. PyTorch, NumPy, SciPy, scikit-learn and Arrow read those of
# OpenMP, MKL and OpenBLAS.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",  # OpenMP: GCC, Clang, Intel; PyTorch, Arrow
    "OPENBLAS_NUM_THREADS",  # OpenBLAS built without OpenMP, as in NumPy's wheels
    "MKL_NUM_THREADS",  # Intel MKL
    "BLIS_NUM_THREADS",  # BLIS, AMD's AOCL
    "VECLIB_MAXIMUM_THREADS",  # Apple Accelerate, for scripts shared with a Mac
    "NUMEXPR_NUM_THREADS",  # numexpr, under pandas.eval
    "NUMEXPR_MAX_THREADS",  # numexpr's pool, which it warns about when it is smaller than the above
    "NUMBA_NUM_THREADS",  # Numba's parallel loops
    "RAYON_NUM_THREADS",  # Rust: tokenizers, ripgrep-like tools
    "POLARS_MAX_THREADS",  # Polars
    "JULIA_NUM_THREADS",  # Julia
    "GOMAXPROCS",  # Go, which before 1.25 does not see a CPU quota
    "TF_NUM_INTRAOP_THREADS",  # TensorFlow, inside one operation
)


def thread_env(threads: int) -> dict[str, str]:
    """The variables that cap the thread pools of common libraries at ``threads``."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def host() -> Host:
    """This machine: the CPUs that this process may use, and its memory in bytes.

    Memory is the physical memory, to which systemd's percentages refer, or the limit of the container around
    us if that is lower (the cgroup root's, as systemd sees it). A limit on slicer's own cgroup applies to the
    job anyway.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = text_of(path).strip()
        if not text:
            continue
        if text.isdigit() and int(text) > 0:
            memory = min(memory, int(text))
        break
    return Host(tuple(sorted(os.sched_getaffinity(0))), memory)


@record
class Overrides:
    """Options of ``slicer run`` that override the profile; None: not given.

    ``timeout`` and ``max_wait`` are durations, ``vram`` and ``margin`` sizes in the user's spelling, ``gpu``
    is a list of GPUs, ``assignments`` the ``NAME=VALUE`` of each ``--set``, ``slots`` the ``NAME=N`` (or
    ``NAME``, which is one) of each ``--slot``.
    """

    gpus: int | str | None = None
    timeout: str | None = None
    linger: bool | None = None
    assignments: tuple[str, ...] = ()
    gpu: str | None = None
    vram: str | None = None
    margin: str | None = None
    cpu_slots: int | str | None = None
    priority: int | str | None = None
    max_wait: str | None = None
    then: str | None = None
    slots: tuple[str, ...] = ()
    share: str | None = None
    share_mode: str | None = None
    notify: str | None = None
    gpu_ids: str | None = None
    preemptible: bool | None = None
    retry: str | None = None


NO_OVERRIDES = Overrides()


def without_limits(profile: Profile, overrides: Overrides) -> Profile:
    """The profile as ``slicer hold`` uses it: its needs, and a time limit only from the command line."""
    timeout_s = profile.timeout_s if overrides.timeout is not None else None
    return replace(profile, timeout_s=timeout_s, env={}, properties={}, share="off", preemptible=False)


@record
class Config:
    """The whole configuration, ready to make profiles. ``sources`` names the origin of its settings.

    ``warnings`` are lines for the user. ``compat_gpu_lock`` is "" if not set. ``margin_mib`` is the default
    of profiles that want memory on GPUs. ``slots`` has the number of slots of each name, including those that
    a route's ``max_jobs`` creates.
    """

    host: Host
    slots: dict[str, int]
    default_profile: str
    compat_gpu_lock: str
    threads: int | None  # CPU_RUN_THREADS
    settings: dict[str, Any]  # by their path
    sources: dict[str, str]
    warnings: tuple[str, ...]
    layers: tuple[Layer, ...]  # the built-in profiles first
    margin_mib: int
    policy: Policy
    log_mib: int  # of a detached job, at most
    log_keep_s: float | None  # how long the logs of ended jobs are kept; None: for ever
    shell: str  # of a queue's lines: a path, or a name in PATH
    history_keep_s: float | None = None  # how long outcomes are kept; None: for ever
    history_git: bool = True  # outcomes say which code ran
    notify: Notify | None = None  # None: it is not set

    def names(self) -> tuple[str, ...]:
        """The names of all profiles, in alphabetical order."""
        return tuple(sorted({name for layer in self.layers for name in layer.data.get("profiles", {})}))

    def profile(self, name: str | None = None, overrides: Overrides = NO_OVERRIDES) -> Profile:
        """The profile of that name (None: the default) for this machine.

        Raises UnknownProfile or UsageError for errors on the command line, ConfigError for those in a file.
        """
        chosen = name if name is not None else self.default_for(overrides)[0]
        if chosen not in self.names():
            message, hint = f"unknown profile {chosen!r:.60}", self._known(chosen)
            if name is not None:
                raise UnknownProfile(message, hint=hint)
            where = self.sources["default_profile"]
            raise ConfigError(f"default_profile: {message}", where=where, hint=hint)
        entries: dict[str, Entry] = {}
        for said in reversed(self._said(chosen).values()):
            entries.pop("description", None)  # a description applies to its own profile only
            _lay(entries, said)
        _override(entries, overrides)
        margin = self.margin_mib, self.sources["gpu.margin"]
        return build.profile(chosen, entries, self.host, self.threads, margin, self.slots)

    def default_for(self, overrides: Overrides) -> tuple[str, str]:
        """The profile of a job that names none, and why it is that.

        GPUs on the command line mean the profile gpu, unless a file sets a default.
        """
        source = self.sources["default_profile"]
        wants_gpus = overrides.gpu or overrides.vram or str(overrides.gpus or 0) != "0"
        if source == "built-in" and wants_gpus:
            return _GPU_PROFILE, "it wants GPUs"
        return self.default_profile, f"default: {source}"

    def chain(self, name: str) -> tuple[str, ...]:
        """The profile and those from which it inherits, nearest first. Raises ConfigError for a circle."""
        return tuple(self._said(name))

    def _said(self, name: str) -> dict[str, dict[str, Entry]]:
        """The entries of a profile and of each from which it inherits, nearest first."""
        found: dict[str, dict[str, Entry]] = {}
        while True:
            entries: dict[str, Entry] = {}
            found[name] = entries
            for layer in self.layers:
                _lay(entries, _said_in(layer, name))
            parent = entries.pop("inherits", None)
            if parent is None:
                return found
            value, source, error = parent
            if not isinstance(value, str):
                raise error(f"inherits: expected the name of a profile, not {value!r:.40}", where=source)
            if value in found:
                raise error(_circle(list(found), value), where=source)
            if value not in self.names():
                message = f'profile "{name}" inherits "{value}", which does not exist'
                raise error(message, where=source, hint=self._known(value))
            name = value

    def _known(self, name: str) -> str:
        from slicer.config.property_names import known_names

        return known_names(name, self.names())


def _circle(found: list[str], again: str) -> str:
    if found[-1] == again:
        return f'profile "{again}" inherits itself (a built-in of the same name is extended without it)'
    return f"profiles inherit in a circle: {' -> '.join([*found[found.index(again) :], again])}"


_OTHER_NAMES = {"runtime_max": "timeout", f"slots.{CPU}": "cpu_slots"}  # keys with the same meaning as others
_SAME = (("timeout", "runtime_max", "the same limit"), ("cpu_slots", f"slots.{CPU}", "the same"))


def _said_in(layer: Layer, name: str) -> dict[str, Entry]:
    """The entries of a profile in one file. Raises ConfigError if it sets one limit twice."""
    said = layer.entries("profiles", name)
    for table in ("env", "slots"):
        if said.pop(table, None):
            below = layer.entries("profiles", name, table)
            said |= {f"{table}.{key}": entry for key, entry in below.items()}
    for one, other, what in _SAME:
        if one in said and other in said:
            raise ConfigError(f"{one} and {other} are {what}", where=said[other][1], hint="keep one of them")
    return {_OTHER_NAMES.get(key, key): entry for key, entry in said.items()}


def _lay(entries: dict[str, Entry], said: dict[str, Entry]) -> None:
    """Lay the entries of one source over those with lower precedence.

    The GPU keys belong together. ``gpu`` without ``gpus`` requests all the GPUs that it names, ``vram`` over
    ``gpus = 0`` requests one GPU, and ``gpus = 0`` removes ``gpu`` and ``vram``.
    """
    if "gpu" in said or ("vram" in said and _is_zero(entries.get("gpus"))):
        entries.pop("gpus", None)
    if _is_zero(said.get("gpus")):
        entries.pop("gpu", None)
        entries.pop("vram", None)
    entries |= said


def _is_zero(entry: Entry | None) -> bool:
    return entry is not None and entry[0] in (0, "0") and entry[0] is not False


def _override(entries: dict[str, Entry], overrides: Overrides) -> None:
    for assignment in overrides.assignments:
        name, text = split_assignment(assignment, "--set")
        info = find(name)
        if info is None:
            raise unknown(name, "--set")
        key = _OTHER_NAMES.get(info.key, info.key)
        earlier = entries.get(key)
        if earlier and earlier[1] == "--set" and info.is_list:
            text = f"{earlier[0]}\n{text}"
        entries[key] = (text, "--set", UsageError)
    if overrides.timeout is not None and "timeout" in entries and entries["timeout"][1] == "--set":
        raise UsageError("--timeout and --set RuntimeMaxSec= are the same limit", hint="give one of them")
    said: dict[str, Entry] = {}
    for key, value in as_dict(overrides).items():
        if value is not None and key not in ("assignments", "slots"):
            said[key] = (value, "--" + key.replace("_", "-"), UsageError)
    for word in overrides.slots:
        _say_slot(said, word)
    _lay(entries, said)


def _say_slot(said: dict[str, Entry], word: str) -> None:
    """A slot of the command line. Raises UsageError for a name that is listed twice."""
    name, equals, count = word.partition("=")
    values.slot_name((name, "--slot", UsageError), "slot")
    key = _OTHER_NAMES.get(f"slots.{name}", f"slots.{name}")
    if key in said:
        which = said[key][1]
        message = f"{name} is listed twice" if which == "--slot" else f"{name} is already set by {which}"
        raise UsageError(message, where="--slot", hint=f"write --slot {name}=N once")
    said[key] = (count if equals else 1, "--slot", UsageError)


def load(
    environ: Mapping[str, str], machine: Host, *, system_dir: str = "", remembers: bool = True
) -> Config:
    """The configuration of this machine and user. ``remembers``: write new files to the cache.

    Raises ConfigError for an error in any file (after a change, also in an unused profile), UsageError for
    bad values of CPU_RUN_SLOTS and CPU_RUN_THREADS.
    """
    files = read_files(environ, system_dir)
    if files.fresh:
        from slicer.config.check import check_keys

        for layer in files.layers:
            check_keys(layer)
    config = _config(environ, machine, files.layers, files.warnings)
    if files.fresh:
        from slicer.config import slices

        slices.check(files.layers, machine)
        _check_profiles(config)
        if remembers:
            store(environ, files)
    return config


def _config(
    environ: Mapping[str, str], machine: Host, layers: tuple[Layer, ...], warnings: tuple[str, ...]
) -> Config:
    settings: dict[str, Entry] = {}
    for layer in layers:
        settings |= {key: entry for key, entry in layer.entries().items() if key in build.SETTINGS}
        for table in build.TABLES:
            settings |= {f"{table}.{key}": entry for key, entry in layer.entries(table).items()}
    for variable, name in (("CPU_RUN_SLOTS", f"slots.{CPU}"), ("GPU_LOCK_PATH", "compat_gpu_lock")):
        if environ.get(variable):
            settings[name] = (environ[variable], variable, UsageError)
    if environ.get("SLICER_SIM"):  # scripts lock real GPUs
        settings["compat_gpu_lock"] = ("", "SLICER_SIM", ConfigError)
    slots = _slots(settings, layers, machine)
    found = build.Said(settings).read(build.SETTINGS)
    builtin = tuple(
        Layer(f"built-in {name}", {"profiles": {name: table}}, {})
        for name, table in build.builtin_profiles(machine, slots[CPU]).items()
    )
    threads = (environ.get("CPU_RUN_THREADS"), "CPU_RUN_THREADS", UsageError)
    return Config(
        host=machine,
        slots=slots,
        default_profile=found["default_profile"],
        compat_gpu_lock=found["compat_gpu_lock"],
        threads=values.count(threads, "threads", lowest=1) if threads[0] else None,
        settings=found,
        sources={name: settings[name][1] if name in settings else "built-in" for name in (*found, *settings)},
        warnings=warnings,
        layers=builtin + layers,
        margin_mib=found["gpu.margin"],
        policy=Policy(
            idle_threshold_mib=found["gpu.idle_threshold"],
            spike_buffer=found["gpu.spike_buffer"],
            reserve_after_s=found["waiting.reserve_after"],
            out_of_service=tuple((word, "by the configuration") for word in found["gpu.out_of_service"]),
            by_arrival=found["waiting.order"] == "arrival",
            pressure=_pressure(settings) if found["waiting.pressure"] != "off" else None,
        ),
        log_mib=found["logs.max_size"],
        log_keep_s=found["logs.keep"],
        shell=found["queue.shell"],
        history_keep_s=found["history.keep"],
        history_git=found["history.git"],
        notify=_notify(found),
    )


def _pressure(settings: Mapping[str, Entry]) -> StallLimit | None:
    from slicer.placement.pressure import parsed

    entry = settings["waiting.pressure"]
    try:
        return parsed(entry[0])
    except ValueError as error:
        message = f'expected a text such as "memory 20% 10s", not {entry[0]!r:.40}'
        hint = "memory, io or cpu; a percentage; 10s, 1m or 5m"
        raise values.refuse(entry, "pressure", message, hint) from error


def _slots(settings: dict[str, Entry], layers: tuple[Layer, ...], machine: Host) -> dict[str, int]:
    """The number of slots of each name; those that only routes name are added to ``settings``."""
    found = {CPU: build.default_slots(machine)} | {
        key[len("slots.") :]: values.count(entry, key, lowest=1)
        for key, entry in settings.items()
        if key.startswith("slots.")
    }
    if not any("routes" in layer.data for layer in layers):
        return found
    from slicer.config.route_slots import slot_limits

    for name, most in slot_limits(layers).items():
        entry = settings.setdefault(f"slots.{name}", (most, "max_jobs of its route", ConfigError))
        if found.setdefault(name, most) != most:
            message = f"the route has max_jobs = {most}, but [slots] sets {found[name]} for the same"
            raise values.refuse(entry, f"slots.{name}", message, "leave it out of [slots]")
    return found


def _notify(found: dict[str, Any]) -> Notify | None:
    said = found["notify.on"], found["notify.command"], found["notify.urls"]
    if not any(said):
        return None
    from slicer.config.notify_keys import table

    return table(*said)


def _check_profiles(config: Config) -> None:
    """Check every profile, whether it is used or not.

    One file may serve machines of several sizes: a CPU that is missing here matters only to a profile in use.
    """
    anywhere = replace(config, host=replace(config.host, cpus=tuple(range(quantity.MAX_CPU + 1))))
    for name in anywhere.names():
        try:
            anywhere.profile(name)
        except ConfigError:
            raise
        except SlicerError as error:
            raise ConfigError(error.message, where=error.where, hint=error.hint) from None
    anywhere.profile()
    if any("routes" in layer.data for layer in anywhere.layers):
        from slicer.config import routes

        routes.check(anywhere)
    if any("engine" in layer.data for layer in anywhere.layers):
        from slicer.config import slurm

        slurm.check(anywhere)
