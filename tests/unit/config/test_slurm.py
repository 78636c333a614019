"""``[engine.slurm]``: what it comes to, and what is said of what cannot be meant. (X9)"""

from __future__ import annotations

import pytest

from slicer.config import slurm
from slicer.config.slurm import SlurmSettings
from slicer.errors import ConfigError
from tests.unit.config.machine import Machine

WHOLE = """\
[engine.slurm]
partition = "main"
qos = "normal"
constraint = "a100&nvlink"
arguments = ["--account=lab", "--cpus-per-gpu=8"]
gib_per_shard = 2
slicer = "/opt/slicer/bin/slicer"

[engine.slurm.profiles.heavy]
partition = "cpu"
arguments = []
"""


def test_every_key_arrives_and_a_profiles_own_come_first(machine: Machine) -> None:  # X9
    machine.system(WHOLE)
    config = machine.load()
    assert slurm.settings(config, "gpu") == SlurmSettings(
        "main", "normal", "a100&nvlink", ("--account=lab", "--cpus-per-gpu=8"), 2.0, "/opt/slicer/bin/slicer"
    )
    assert slurm.settings(config, "heavy") == SlurmSettings(
        "cpu", "normal", "a100&nvlink", (), 2.0, "/opt/slicer/bin/slicer"
    )


def test_nothing_is_needed(machine: Machine) -> None:  # X9
    assert slurm.settings(machine.load(), "gpu") == SlurmSettings("", "", "", (), None, "slicer")


# X9
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\nslrum = 1", "unknown key 'slrum' in [engine]"),
        ('[engine.slurm]\nparttion = "x"', "did you mean partition?"),
        ('[engine.slurm]\npartition = "a b"', "partition: 'a b' is not a name"),
        ('[engine.slurm]\npartition = "-x"', "partition: '-x' is not a name"),
        ("[engine.slurm]\ngib_per_shard = 0", "gib_per_shard: expected a number above 0"),
        ('[engine.slurm]\narguments = "--x"', "arguments: expected a list of texts"),
        ('[engine.slurm]\narguments = ["lab"]', "arguments: 'lab' is not an option"),
        ('[engine.slurm]\narguments = ["--array=0-9"]', "arguments: --array is slicer's to say"),
        ('[engine.slurm]\narguments = ["-pmain"]', "arguments: -p is slicer's to say"),
        ('[engine.slurm.profiles.nope]\nqos = "x"', "there is no profile 'nope'"),
        ('[engine.slurm.profiles.gpu]\nslicer = "x"', "unknown key 'slicer' in [engine.slurm.profiles.gpu]"),
    ],
)
def test_mistakes_are_told_with_their_place(machine: Machine, text: str, said: str) -> None:
    machine.system(text)
    with pytest.raises(ConfigError) as failure:
        machine.load()
    assert said in str(failure.value)
    assert "config.toml:" in failure.value.where
