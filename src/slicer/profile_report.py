"""What ``slicer profiles`` shows, as data, and the file that ``slicer profiles init`` writes."""

from __future__ import annotations

from slicer.profiles import NO_OVERRIDES, Config, Overrides, builtin_profiles, default_slots
from slicer.quantity import duration_text, format_cpus, format_size
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Host


@record
class Setting:
    """One value, spelled as a configuration file would, and where it comes from."""

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
    inherits: tuple[str, ...]
    is_default: bool


def summaries(config: Config) -> tuple[Summary, ...]:
    """All profiles, in alphabetical order. Raises ConfigError where one does not make sense."""
    made = []
    for name in config.names():
        profile = config.profile(name)
        is_default = name == config.default_profile
        made.append(
            Summary(
                name,
                profile.description,
                profile.slice,
                profile.gpus,
                profile.cpu_slots,
                config.chain(name)[1:],
                is_default,
            )
        )
    return tuple(made)


def general_settings(config: Config) -> tuple[Setting, ...]:
    """The settings outside of profiles."""
    values = {
        "default_profile": config.default_profile,
        "slots.cpu": str(config.slots_cpu),
        "compat_gpu_lock": config.compat_gpu_lock or "none",
    }
    return tuple(Setting(name, value, config.sources[name]) for name, value in values.items())


def settings(
    config: Config, name: str | None = None, overrides: Overrides = NO_OVERRIDES
) -> tuple[Setting, ...]:
    """Every value of a profile with its source; raises what :meth:`Config.profile` raises."""
    profile = config.profile(name, overrides)
    limit = "infinity" if profile.timeout_s is None else duration_text(round(profile.timeout_s * 1e6))
    rows = [
        ("description", profile.description, "description"),
        ("slice", profile.slice, "slice"),
        ("gpus", str(profile.gpus), "gpus"),
        ("cpu_slots", str(profile.cpu_slots), "cpu_slots"),
        ("threads", str(profile.threads), "threads"),
        ("timeout", limit, "timeout_s"),
        ("linger", "true" if profile.linger else "false", "linger"),
    ]
    rows += [(each.name, ", ".join(each.text.split("\n")), each.name) for each in profile.properties.values()]
    rows += [(f"env.{variable}", value, f"env.{variable}") for variable, value in profile.env.items()]
    return tuple(Setting(shown, value, profile.sources[key]) for shown, value, key in rows)


_HEAD = """\
# slicer's configuration. Read in this order, later files winning key by key:
#   /etc/slicer/config.toml, /etc/slicer/conf.d/*.toml, ~/.config/slicer/config.toml, $SLICER_CONFIG
# "slicer profiles show NAME" shows every value and the file it comes from.
#
# What stands below without a blank after the "#" is what slicer does by itself on this machine
# ({machine}). Take the "#" away to change it.
"""

_TAIL = """\

# A profile of your own takes what it does not say from the one it inherits from:
#
#   [profiles.train]
#   inherits = "gpu"
#   memory_max = "80%"                      # of this machine's memory
#   timeout = "12h"
#   threads = 8                             # "auto": as many as CPUs that the limits leave
#   env = {{ WANDB_MODE = "offline", TERM = false }}   # false: not what the parent sets
#
# Other keys: linger, cpu_quota_period, allowed_cpus, memory_swap_max, tasks_max, device_allow, and every
# other resource property of systemd in this spelling (MemorySwapMax is memory_swap_max).
#
# Hold this file's lock too with a whole GPU, for scripts that use flock(1) on it:
#   compat_gpu_lock = "/tmp/gpu.lock"       # must stand above the first [table]
"""

_COMMENTS = {
    "cpu_slots": "how many of the slots above it takes",
    "cpu_quota": "CPU time: 100% is one core",
    "cpu_weight": "against other jobs in the slice, 1 to 10000; systemd's default is 100",
    "io_weight": "likewise for disks; the user manager needs a drop-in for it",
    "memory_high": "slowed down above this",
    "memory_max": "killed above this",
    "threads": "OMP_NUM_THREADS and its kin",
    "gpus": "whole GPUs",
}


def default_config_text(host: Host) -> str:
    """A commented configuration file that says what the built-ins do on this machine."""
    slots = default_slots(host)
    machine = f"CPUs {format_cpus(host.cpus)}, {format_size(host.memory_bytes)} of memory"
    lines = [
        _HEAD.format(machine=machine),
        _line("default_profile", "light", "for a job that names no profile"),
        "",
        "#[slots]",
        _line("cpu", slots, "heavy CPU jobs at a time"),
    ]
    for name, table in builtin_profiles(host, slots).items():
        lines += ["", f"#[profiles.{name}]"]
        lines += [_line(key, value, _COMMENTS.get(key, "")) for key, value in table.items()]
    return "\n".join(lines) + "\n" + _TAIL.format()


def _line(key: str, value: str | int, comment: str) -> str:
    written = f'"{value}"' if isinstance(value, str) else str(value)
    setting = f"#{key} = {written}"
    return f"{setting:<34}# {comment}" if comment else setting
