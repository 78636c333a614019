"""What a job asks of Slurm, and which jobs no node can ever run. (X9)"""

from __future__ import annotations

import pytest

from slicer.config.slurm import SlurmSettings
from slicer.model import Property
from slicer.queue.engine.slurm import mapping
from slicer.queue.engine.slurm.mapping import SlurmNeeds
from slicer.queue.engine.slurm.parsing import Node
from slicer.record import replace
from tests.unit import made_up

PLAIN = SlurmSettings("", "", "", (), None, "slicer")
SHARDS = replace(PLAIN, gib_per_shard=1.0)
NOTHING = SlurmNeeds(0, 0, None, None, None, 0)
NODES = (Node("main", 2, 24, 32, 16000), Node("main", 0, 0, 64, 4000), Node("big", 1, 80, 8, 64000))


# X9
@pytest.mark.parametrize(
    ("gpus", "vram_mib", "exclusive", "needs"),
    [
        (0, None, False, NOTHING),
        (1, None, False, NOTHING._replace(gpus=1)),
        (1, 18 << 10, False, NOTHING._replace(shards=18)),
        (1, (18 << 10) + 1, False, NOTHING._replace(shards=19)),
        (1, 18 << 10, True, NOTHING._replace(gpus=1)),
        (2, 18 << 10, False, NOTHING._replace(gpus=2)),  # Slurm gives no shards of several GPUs
    ],
)
def test_a_part_of_one_gpu_becomes_shards(
    gpus: int, vram_mib: int | None, exclusive: bool, needs: SlurmNeeds
) -> None:
    profile = made_up.profile(gpus=gpus, vram_mib=vram_mib)
    assert mapping.needs_of(profile, SHARDS, exclusive=exclusive) == needs
    if needs.shards:
        assert mapping.needs_of(profile, PLAIN, exclusive=exclusive) == NOTHING._replace(gpus=1)


# X9: the limits of built-in profiles are this machine's, and mean nothing on a node
def test_limits_of_a_profile_are_asked_for_if_somebody_has_set_them() -> None:
    properties = {
        "CPUQuota": Property("CPUQuota", "CPUQuotaPerSecUSec", "t", 2_500_000, "250%"),
        "MemoryMax": Property("MemoryMax", "MemoryMax", "t", 8 << 30, "8G"),
    }
    said = {"CPUQuota": "config.toml:3", "MemoryMax": "config.toml:4"}
    own = made_up.profile(properties=properties, sources=said, timeout_s=90.0, priority=-2)
    assert mapping.needs_of(own, PLAIN, exclusive=False) == SlurmNeeds(0, 0, 3, 8192, 4, 200)
    built_in = replace(own, sources=dict.fromkeys(said, "built-in heavy"), timeout_s=None, priority=2)
    assert mapping.needs_of(built_in, PLAIN, exclusive=False) == NOTHING


# X9
def test_needs_and_settings_become_arguments_of_sbatch() -> None:
    assert mapping.arguments(NOTHING, PLAIN) == ()
    settings = SlurmSettings("main", "high", "a100", ("--account=lab",), None, "slicer")
    assert mapping.arguments(SlurmNeeds(2, 0, 3, 8192, 4, 200), settings) == (
        "--gres=gpu:2", "--cpus-per-task=3", "--mem=8192M", "--time=4", "--nice=200", "--partition=main",
        "--qos=high", "--constraint=a100", "--account=lab",
    )  # fmt: skip
    assert mapping.arguments(NOTHING._replace(shards=18), PLAIN) == ("--gres=shard:18",)


# X9
@pytest.mark.parametrize(
    ("needs", "partition", "why"),
    [
        (NOTHING, "", ""),
        (NOTHING._replace(gpus=2), "", ""),
        (NOTHING._replace(gpus=3), "", "it needs 3 GPUs, and no node of the cluster has more than 2"),
        (NOTHING._replace(gpus=2), "big", "it needs 2 GPUs, and no node of partition big has more than 1"),
        (NOTHING._replace(shards=80), "", ""),
        (
            NOTHING._replace(shards=25), "main",
            "it needs 25 shards of one GPU, and no node of partition main has more than 24",
        ),
        (NOTHING._replace(gpus=1, cpus=64), "main", "no node of partition main has all that it needs"),
        (
            NOTHING._replace(memory_mib=64001), "",
            "it needs 64001 MiB of memory, and no node of the cluster has more than 64000",
        ),
    ],
)  # fmt: skip
def test_a_job_that_no_node_can_ever_run_is_known(needs: SlurmNeeds, partition: str, why: str) -> None:
    assert mapping.why_never(needs, NODES, partition) == why


def test_the_largest_gpu_is_known_by_its_shards() -> None:  # E9
    assert mapping.largest_mib(NODES, SHARDS) == 80 << 10
    assert mapping.largest_mib(NODES, PLAIN) is None


def test_slurms_commands_do_not_see_the_allocation_around_the_queue() -> None:  # X9
    environ = {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n",
        "SBATCH_X": "y",
    }
    assert mapping.environment(environ) == {"PATH": "/bin", "SLURM_CONF": "/c", "SBATCH_X": "y"}
