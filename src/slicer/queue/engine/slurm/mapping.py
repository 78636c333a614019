"""From a job's needs to the arguments of sbatch; and which jobs no node can ever run. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import le
from typing import NamedTuple

from slicer.config.slurm import SlurmSettings
from slicer.model import Profile
from slicer.quantity import INFINITY
from slicer.queue.engine.slurm.parsing import Node

_SLACK_MIN = 2  # beyond a job's own time limit, so that slicer ends it and not Slurm
_NICE = 100  # for each step of a priority below 0; only operators may raise one
_BUILT_IN = "built-in"


class SlurmNeeds(NamedTuple):
    """What is asked of Slurm for one job, on one node. None: Slurm's own default."""

    gpus: int  # whole ones
    shards: int  # parts of one GPU
    cpus: int | None
    memory_mib: int | None
    minutes: int | None
    nice: int


def needs_of(profile: Profile, settings: SlurmSettings, *, exclusive: bool) -> SlurmNeeds:
    """A part of one GPU becomes shards, if there are any; several GPUs, or an exclusive one, are whole."""
    gib, shards = settings.gib_per_shard, 0
    if profile.gpus == 1 and profile.vram_mib is not None and gib is not None and not exclusive:
        shards = math.ceil(profile.vram_mib / (gib * 1024))
    limit_s = profile.timeout_s
    return SlurmNeeds(
        gpus=0 if shards else profile.gpus,
        shards=shards,
        cpus=_cpus(profile),
        memory_mib=_memory_mib(profile),
        minutes=None if limit_s is None else math.ceil(limit_s / 60) + _SLACK_MIN,
        nice=max(0, -profile.priority) * _NICE,
    )


def _cpus(profile: Profile) -> int | None:
    quota = _limit(profile, "CPUQuota")
    return None if quota is None else max(1, -(-quota // 1_000_000))


def _memory_mib(profile: Profile) -> int | None:
    limit = _limit(profile, "MemoryMax")
    return None if limit is None else max(1, limit >> 20)


def _limit(profile: Profile, name: str) -> int | None:
    """A limit that somebody has set; those of built-in profiles are scaled to this machine, not to a node."""
    found = profile.properties.get(name)
    is_set = found is not None and not profile.sources.get(name, "").startswith(_BUILT_IN)
    value = found.value if found is not None and is_set else None
    return value if isinstance(value, int) and value != INFINITY else None


def arguments(needs: SlurmNeeds, settings: SlurmSettings) -> tuple[str, ...]:
    """The arguments of sbatch. Jobs with the same can be in one array."""
    said: dict[str, object] = {
        "--gres": f"shard:{needs.shards}" if needs.shards else f"gpu:{needs.gpus}" if needs.gpus else None,
        "--cpus-per-task": needs.cpus,
        "--mem": None if needs.memory_mib is None else f"{needs.memory_mib}M",
        "--time": needs.minutes,
        "--nice": needs.nice or None,
        "--partition": settings.partition or None,
        "--qos": settings.qos or None,
        "--constraint": settings.constraint or None,
    }
    return (*(f"{name}={value}" for name, value in said.items() if value is not None), *settings.arguments)


def why_never(needs: SlurmNeeds, nodes: tuple[Node, ...], partition: str) -> str:
    """Why no node can ever run such a job; "" if one can, busy or not."""
    where = f"partition {partition}" if partition else "the cluster"
    offers = [
        (node.gpus, node.shards_each, node.cpus, node.memory_mib)
        for node in nodes if not partition or node.partition == partition
    ]  # fmt: skip
    wanted = (needs.gpus, needs.shards, needs.cpus or 0, needs.memory_mib or 0)
    for number, what in enumerate(("GPUs", "shards of one GPU", "CPUs", "MiB of memory")):
        most = max((offer[number] for offer in offers), default=0)
        if wanted[number] > most:
            return f"it needs {wanted[number]} {what}, and no node of {where} has more than {most}"
    if any(all(map(le, wanted, offer)) for offer in offers):
        return ""
    return f"no node of {where} has all that it needs"


def largest_mib(nodes: tuple[Node, ...], settings: SlurmSettings) -> int | None:
    """The memory of the largest GPU, as far as shards tell; None unknown."""
    if settings.gib_per_shard is None:
        return None
    return int(max((node.shards_each for node in nodes), default=0) * settings.gib_per_shard * 1024) or None


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for Slurm's commands: without what describes an allocation around the queue."""
    return {
        name: value
        for name, value in environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SLURMD_"))
    }
