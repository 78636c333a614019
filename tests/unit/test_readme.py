"""What README.md shows is true: examples are run as they are printed."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.unit.made_up import Machine

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(language: str) -> str:
    """The only code block in that language."""
    (found,) = [part.partition("```")[0] for part in README.split(f"```{language}\n")[1:]]
    return found


def test_the_configuration_is_valid_and_its_profiles_do_what_they_say(tmp_path: Path) -> None:  # W13
    machine = Machine(tmp_path)
    machine.system(block("toml"))
    found = machine.load()
    train = found.profile("train")
    assert (train.cpu_slots, train.gpus, train.vram_mib, train.slice) == (0, 1, 20 << 10, "gpu")
    assert found.profile("heavy").cpu_slots == 1
    assert set(tomllib.loads(block("toml"))["profiles"]) == {"heavy", "train"}
