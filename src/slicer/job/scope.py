"""The request to systemd for a job's scope, and the command's environment. Pure."""

from __future__ import annotations

from slicer.config.properties import DEFAULT_STOP_TIMEOUT_S, LONGEST_STOP_S, in_order, time_limit
from slicer.model import LEASE_VARIABLE, ScopeSpec, unit_name
from slicer.quantity import short_mib
from slicer.text import counted, quote, slots_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.model import Manager, Profile, Property

OTHERS_S = 5.0  # for a job's other processes, between the grace of its command and SIGKILL
_DESCRIPTION_CHARS = 160


def label(name: str, command: tuple[str, ...]) -> str:
    """The job's name, or its program's: the part that users other than its owner may read."""
    return name or command[0].rpartition("/")[2] or command[0]


def stop_timeout_s(profile: Profile) -> float:
    """The seconds between the first signal and SIGKILL for a job that is stopped."""
    chosen = profile.properties.get("TimeoutStopSec")
    if chosen is not None and isinstance(chosen.value, int):
        return min(chosen.value / 1e6, LONGEST_STOP_S)
    return DEFAULT_STOP_TIMEOUT_S if profile.grace_s is None else profile.grace_s + OTHERS_S


def limits(profile: Profile) -> list[Property]:
    """The profile's properties, always with the time that a stopped job has."""
    chosen = in_order(profile.properties.values())
    if "TimeoutStopSec" not in profile.properties:
        chosen.append(time_limit("TimeoutStopSec", stop_timeout_s(profile)))
    return chosen


def spec(profile: Profile, manager: Manager, job: str, name: str, command: tuple[str, ...]) -> ScopeSpec:
    chosen = limits(profile)
    if profile.timeout_s is not None:
        # systemd enforces the limit, so it holds even if slicer is dead.
        chosen.append(time_limit("RuntimeMaxSec", profile.timeout_s))
    description = _description(profile, name, command)
    return ScopeSpec(unit_name(job), f"{profile.slice}.slice", description, tuple(chosen), manager)


def _description(profile: Profile, name: str, command: tuple[str, ...]) -> str:
    """The job's name and request: ``train (2 GPUs, profile gpu)``.

    Any user may read it (``systemctl list-units``), and the journal keeps it. So it leaves out the command's
    arguments. The job's id is in the unit's name. The GPUs are not yet known when the scope of a waiting job
    is started.
    """
    asked = []
    if profile.gpus:
        size = f"{short_mib(profile.vram_mib)} on " if profile.vram_mib else ""
        asked.append(size + counted(profile.gpus, "GPU"))
    asked += slots_words(profile.slots)
    asked.append(f"profile {profile.name}")
    return f"{quote(label(name, command)[:_DESCRIPTION_CHARS])} ({', '.join(asked)})"


def visible_gpus(gpus: tuple[str, ...]) -> dict[str, str]:
    """The variables that show CUDA only these GPUs, and tell older wrappers that they are held."""
    if not gpus:
        return {}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPU_LOCK_HELD": "1",
    }


def gpu_environment(profile: Profile, gpus: tuple[str, ...], skip_gpu_lock: bool) -> dict[str, str]:
    """The variables for its GPUs. Without GPUs, a job in cpu.slice sees none, unless ``skip_gpu_lock``."""
    if gpus:
        return visible_gpus(gpus)
    if skip_gpu_lock or profile.gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ""} if profile.slice == "cpu" else {}


def environment(
    base: Mapping[str, str], profile: Profile, threads: Mapping[str, str], gpu: Mapping[str, str], marker: str
) -> dict[str, str]:
    """The command's environment. The profile's ``env`` overrides the values that slicer derives."""
    return {**base, **threads, **gpu, **profile.env, LEASE_VARIABLE: marker}
