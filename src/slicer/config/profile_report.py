"""The data for ``slicer profiles``, and the file that ``slicer profiles init`` writes."""

from __future__ import annotations

import textwrap
from typing import Any

from slicer.config import build
from slicer.config.profiles import NO_OVERRIDES, Config, Overrides
from slicer.model import CPU, Host
from slicer.quantity import duration_text, format_cpus, format_size, percent_text, size_text
from slicer.record import record

# The keys of what a job needs; ``--dry-run`` has lines of their own for the others.
_OTHERWISE = ("description", "slice", "threads", "timeout", "linger", "fence")
NEEDS = tuple(key for key in map(build.key_of, build.PROFILE) if key not in _OTHERWISE)
_ALWAYS = ("description", "slice", "gpus", "cpu_slots", "threads", "timeout", "linger")  # defaults, too
_HIDDEN = ("queue.shell", "notify.on", "notify.command", "notify.urls")  # urls may have passwords
# What None means, of a kind of values.
_UNSET = {"time": "infinity", "wait": "infinity", "auto-time": "auto", "keep": "forever"}


@record
class Setting:
    """One value, spelled as in a configuration file, and its origin."""

    name: str
    value: str
    source: str


@record
class Summary:
    """One line of the list of profiles. ``inherits`` is the chain of parents, nearest first."""

    name: str
    description: str
    slice: str
    gpus: int
    cpu_slots: int
    slots: dict[str, int]  # other than CPU slots
    inherits: tuple[str, ...]
    is_default: bool


def summaries(config: Config) -> tuple[Summary, ...]:
    """All profiles, in alphabetical order. Raises ConfigError for an invalid one."""

    def summary(name: str) -> Summary:
        made, parents = config.profile(name), config.chain(name)[1:]
        is_default = name == config.default_profile
        slots = dict(made.slots)
        cpu_slots = slots.pop(CPU, 0)
        return Summary(
            name, made.description, made.slice, made.gpus, cpu_slots, slots, parents, is_default
        )  # fmt: skip

    return tuple(summary(name) for name in config.names())


def general_settings(config: Config) -> tuple[Setting, ...]:
    found = []
    for path, (kind, _) in build.SETTINGS.items():
        if path == f"slots.{CPU}":
            slots = {f"slots.{name}": str(limit) for name, limit in config.slots.items()}
            found += [Setting(name, limit, config.sources[name]) for name, limit in slots.items()]
        elif path not in _HIDDEN:
            found.append(Setting(path, text_of(kind, config.settings[path]) or "none", config.sources[path]))
    return tuple(found)


def text_of(kind: build.Kind, value: Any) -> str:
    """A value as a configuration file has it, without quotes."""
    if value is None:
        return _UNSET.get(str(kind), "")
    if isinstance(value, tuple):
        return ("," if kind == "gpus" else ", ").join(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind in ("gpu-memory", "some-gpu-memory"):
        return size_text(value << 20)
    if kind == "fraction":
        return percent_text(round(value * 10_000))
    return duration_text(round(value * 1e6)) if isinstance(value, float) else str(value)


def settings(
    config: Config, name: str | None = None, overrides: Overrides = NO_OVERRIDES
) -> tuple[Setting, ...]:
    """Every value of a profile with its source, except unset values and absent limits.

    Raises what :meth:`Config.profile` raises.
    """
    made = config.profile(name, overrides)
    texts: dict[str, str] = {}
    for field, (kind, _) in build.PROFILE.items():
        if field == "cpu_slots":
            texts[field] = str(made.slots.get(CPU, 0))
            texts |= {f"slots.{slot}": str(count) for slot, count in made.slots.items() if slot != CPU}
        elif field != "margin_mib" or made.vram_mib is not None:
            texts[build.key_of(field)] = text_of(kind, getattr(made, field))
    texts |= {each.name: each.text.replace("\n", ", ") for each in made.properties.values()}
    texts |= {f"env.{variable}": value for variable, value in made.env.items()}
    found = [Setting(key, text, made.sources[key]) for key, text in texts.items()]
    return tuple(each for each in found if each.name in _ALWAYS or each.source != "default")


_HEAD = """\
# slicer's configuration. Read in this order, later files winning key by key:
#   /etc/slicer/config.toml, /etc/slicer/conf.d/*.toml, ~/.config/slicer/config.toml, $SLICER_CONFIG
# "slicer profiles show NAME" shows every value and the file it comes from.
#
# Lines below without a blank after the "#" are slicer's defaults on this machine
# ({machine}). Remove the "#" to change one.
"""

_TAIL = """\

# Your own profile takes the values that it does not set from its parent (except the description):
#
#   [profiles.train]
#   inherits = "gpu"
#   memory_max = "80%"                      # of this machine's memory
#   vram = "20G"                            # on each GPU, shared with jobs that fit; without it whole GPUs
#   share = "both"                          # vram is a hard cap, and the jobs of a GPU take turns
#   gpu = [0, 1]                            # these GPUs; with gpus = 1 one of them
#   priority = 10                           # -100 to 100: of the waiting jobs, the highest is first
#   max_wait = "2h"                         # then = "fail" or "run" sets what follows
#   timeout = "12h"
#   slots = { cpu = 1 }                     # these and other slots of [slots]
#   threads = 8                             # "auto": the number of CPUs within the limits
#   env = { WANDB_MODE = "offline", TERM = false }   # false: unset the parent's
#
{others}
#
# Limits of all jobs of a slice together. `slicer install` (with --user, in your own file) tells systemd:
#   [slices.gpu]
#   memory_max = "48G"
#
# Each lease on a GPU also holds this file's lock, for scripts that use flock(1) on it:
#   compat_gpu_lock = "/tmp/gpu.lock"       # must stand above the first [table]
"""

_COMMENTS = {
    "cpu_slots": "the number of the slots above that it takes",
    "cpu_quota": "CPU time: 100% is one core",
    "cpu_weight": "against other jobs in the slice, 1 to 10000; systemd's default is 100",
    "io_weight": "likewise for disks; the user manager needs a drop-in for it",
    "memory_high": "slowed down above this",
    "memory_max": "killed above this",
    "threads": "OMP_NUM_THREADS and the like",
    "gpus": "whole GPUs",
    "gpu.idle_threshold": "a GPU with no more in use counts as idle",
    "gpu.margin": "kept free in addition to a job's vram",
    "gpu.spike_buffer": "what other programs may use beyond their peak",
    "waiting.reserve_after": "a job passed over for longer gets a reservation in its turn",
    "waiting.pressure": "nothing begins while some task stalls for more than that part of that time",
    "waiting.order": '"arrival": first come, first served, however long the jobs are',
    "logs.max_size": "of a detached job's log; the beginning goes first",
    "logs.keep": "how long logs of ended detached jobs stay",
    "history.keep": "how long outcomes stay; at least a day",
    "queue.shell": "it runs the lines of jobs files",
}


def default_config_text(host: Host) -> str:
    """A commented configuration file that shows the built-ins' settings on this machine."""
    slots = build.default_slots(host)
    machine = f"CPUs {format_cpus(host.cpus)}, {format_size(host.memory_bytes)} of memory"
    lines = [
        _HEAD.format(machine=machine),
        _line("default_profile", "light", "for a job without a profile; if unset, gpu for one with GPUs"),
        "",
        "#[slots]",
        _line("cpu", slots, "heavy CPU jobs at a time"),
        "# license-matlab = 2              # any other name, for other countable resources",
    ]
    table_of = ""
    for path in (path for path in build.SETTINGS if path in _COMMENTS):
        table_name, _, key = path.partition(".")
        if table_name != table_of:
            lines += ["", f"#[{table_name}]"]
            table_of = table_name
        lines.append(_line(key, text_of(*build.SETTINGS[path]), _COMMENTS[path]))
    for name, table in build.builtin_profiles(host, slots).items():
        lines += ["", f"#[profiles.{name}]"]
        lines += [_line(key, value, _COMMENTS.get(key, "")) for key, value in table.items()]
    shown = "\n".join(lines) + "\n" + _TAIL
    rest = [key for key in build.kinds(build.PROFILE) if f"{key} = " not in shown.partition("#[profiles")[2]]
    others = f"Other keys: {', '.join(rest)}, stop_signal, cpu_quota_period, allowed_cpus,"
    others += " memory_swap_max (MemorySwapMax), and every other property of systemd's in this spelling."
    return shown.replace("{others}", textwrap.fill(others, 105, initial_indent="# ", subsequent_indent="# "))


def _line(key: str, value: str | int, comment: str) -> str:
    written = f'"{value}"' if isinstance(value, str) else str(value)
    setting = f"#{key} = {written}"
    return f"{setting:<34}# {comment}" if comment else setting
