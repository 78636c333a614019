"""The data for ``slicer profiles``, and the file that ``slicer profiles init`` writes."""

from __future__ import annotations

from slicer.config import build, profiles
from slicer.config.profiles import NO_OVERRIDES, Config, Overrides
from slicer.model import CPU, Host
from slicer.quantity import duration_text, format_cpus, format_size, percent_text, size_text
from slicer.record import record

# A profile's needs from the ledger, spelled as in a file.
NEEDS = (
    "gpus", "gpu", "gpu_ids", "vram", "margin", "cpu_slots", "priority", "max_wait", "then", "share",
    "share_mode", "share_skip_syncs", "over_cap", "notify",
)  # fmt: skip
_ALWAYS = ("description", "slice", "gpus", "cpu_slots", "threads", "timeout", "linger")  # defaults, too
# Fields named unlike their keys.
_FIELDS = {
    "gpu": "gpu_choice", "vram": "vram_mib", "margin": "margin_mib", "cpu_slots": f"slots.{CPU}",
    "max_wait": "max_wait_s", "timeout": "timeout_s", "grace": "grace_s",
}  # fmt: skip


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
    """The settings outside of profiles."""
    reserve_after_s = config.policy.reserve_after_s
    values = {
        "default_profile": config.default_profile,
        **{f"slots.{name}": str(limit) for name, limit in config.slots.items()},
        "compat_gpu_lock": config.compat_gpu_lock or "none",
        "gpu.idle_threshold": size_text(config.policy.idle_threshold_mib << 20),
        "gpu.margin": size_text(config.margin_mib << 20),
        "gpu.spike_buffer": percent_text(round(config.policy.spike_buffer * 10_000)),
        "waiting.reserve_after": "auto" if reserve_after_s is None else _duration(reserve_after_s),
        "waiting.order": "arrival" if config.policy.by_arrival else "auto",
        "logs.max_size": size_text(config.log_mib << 20),
        "logs.keep": _duration(config.log_keep_s),
        "history.keep": _duration(config.history_keep_s, "forever"),
    }
    return tuple(Setting(name, value, config.sources[name]) for name, value in values.items())


def settings(
    config: Config, name: str | None = None, overrides: Overrides = NO_OVERRIDES
) -> tuple[Setting, ...]:
    """Every value of a profile with its source, except unset values and absent limits.

    Raises what :meth:`Config.profile` raises.
    """
    made = config.profile(name, overrides)
    values = {
        "description": made.description, "slice": made.slice, "gpus": str(made.gpus),
        "gpu": ",".join(made.gpu_choice), "gpu_ids": made.gpu_ids,
        "vram": size_text((made.vram_mib or 0) << 20), "margin": size_text(made.margin_mib << 20),
        "cpu_slots": str(made.slots.get(CPU, 0)),
        **{f"slots.{slot}": str(count) for slot, count in made.slots.items() if slot != CPU},
        "priority": str(made.priority), "max_wait": _duration(made.max_wait_s), "then": made.then or "",
        "threads": str(made.threads), "timeout": _duration(made.timeout_s),
        "linger": "true" if made.linger else "false", "grace": _duration(made.grace_s),
        "share": made.share, "share_mode": made.share_mode,
        "share_skip_syncs": str(made.share_skip_syncs), "over_cap": made.over_cap, "fence": made.fence,
        "devices": ", ".join(made.devices), "idle_timeout": _duration(made.idle_timeout_s),
        "on_idle": made.on_idle, "notify": ", ".join(made.notify or ()),
        **{each.name: each.text.replace("\n", ", ") for each in made.properties.values()},
        **{f"env.{variable}": value for variable, value in made.env.items()},
    }  # fmt: skip
    if made.vram_mib is None:
        del values["margin"]
    found = [Setting(key, value, made.sources[_FIELDS.get(key, key)]) for key, value in values.items()]
    return tuple(each for each in found if each.name in _ALWAYS or each.source != "default")


def _duration(seconds: float | None, unlimited: str = "infinity") -> str:
    return unlimited if seconds is None else duration_text(round(seconds * 1e6))


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
# Other keys: gpu_ids, margin, linger, grace, stop_signal, fence, devices, idle_timeout, on_idle,
# cpu_quota_period, allowed_cpus, memory_swap_max (MemorySwapMax), and every other property of systemd's in
# this spelling.
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
    for name, value in profiles.POLICY_SETTINGS.items():
        table_name, _, key = name.partition(".")
        if table_name != table_of:
            lines += ["", f"#[{table_name}]"]
            table_of = table_name
        lines.append(_line(key, value, _COMMENTS[name]))
    for name, table in build.builtin_profiles(host, slots).items():
        lines += ["", f"#[profiles.{name}]"]
        lines += [_line(key, value, _COMMENTS.get(key, "")) for key, value in table.items()]
    return "\n".join(lines) + "\n" + _TAIL


def _line(key: str, value: str | int, comment: str) -> str:
    written = f'"{value}"' if isinstance(value, str) else str(value)
    setting = f"#{key} = {written}"
    return f"{setting:<34}# {comment}" if comment else setting
