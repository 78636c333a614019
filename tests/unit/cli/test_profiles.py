"""``slicer profiles``: the list, every value with its source, and a file to begin with."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

CONFIG = """\
default_profile = "train"
[slots]
cpu = 2
[profiles.train]
inherits = "gpu"
description = "a run of training"
timeout = "12h"
env = { WANDB_MODE = "offline" }
"""


@pytest.fixture
def config(cli: Cli) -> Path:
    path = Path(cli.environ["XDG_CONFIG_HOME"], "slicer", "config.toml")
    path.parent.mkdir(parents=True)
    path.write_text(CONFIG)
    del cli.environ["CPU_RUN_SLOTS"]
    return path


def test_the_list(cli: Cli, config: Path) -> None:
    shown = cli.run("profiles").stdout.splitlines()
    assert shown[0] == "PROFILE  SLICE  GPUS  SLOTS  INHERITS  DESCRIPTION"
    assert "train *  gpu       1      0  gpu       a run of training" in shown
    about = "a long CPU job: takes one CPU slot and its share of the machine"
    assert f"heavy    cpu       0      1  -         {about}" in shown
    settings = [line.split() for line in shown]
    assert ["default_profile", "train", f"{config}:1"] in settings
    assert ["slots.cpu", "2", f"{config}:3"] in settings
    assert ["gpu.margin", "512M", "built-in"] in settings


def test_the_list_as_data(cli: Cli, config: Path) -> None:
    found = cli.json("profiles")
    assert sorted(found) == ["profiles", "settings", "version"]
    assert found["version"] == 1
    assert {
        "name": "train",
        "description": "a run of training",
        "slice": "gpu",
        "gpus": 1,
        "cpu_slots": 0,
        "slots": {},
        "inherits": ["gpu"],
        "is_default": True,
    } in found["profiles"]
    assert {"name": "slots.cpu", "value": "2", "source": f"{config}:3"} in found["settings"]


def test_every_value_with_its_source(cli: Cli, config: Path) -> None:  # K3
    shown = cli.run("profiles", "show", "train").stdout
    assert shown.startswith("train: a run of training\n\nSETTING ")
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in shown.splitlines()[3:]}
    assert rows["timeout", "12h"] == [f"{config}:7"]
    assert rows["env.WANDB_MODE", "offline"] == [f"{config}:8"]
    assert rows["gpus", "1"] == ["built-in", "gpu"]
    assert cli.run("profiles", "show").stdout == shown  # the default one
    for line in (["profiles", "show", "train", "--json"], ["profiles", "--json", "show", "train"]):
        assert '"profile": "train"' in cli.run(*line).stdout
    found = cli.json("profiles", "show", "train")
    assert {"name": "timeout", "value": "12h", "source": f"{config}:7"} in found["settings"]


def test_an_unknown_profile_is_2_with_the_nearest(cli: Cli) -> None:
    said = cli.run("profiles", "show", "hevy", code=2).stderr
    assert said == "slicer: unknown profile 'hevy' (did you mean \"heavy\"? known: gpu, heavy, light)\n"


def test_a_broken_file_is_named_with_its_place(cli: Cli, config: Path) -> None:
    config.write_text("[slots]\ncpu = = 2\n")
    said = cli.run("profiles", code=125).stderr
    assert said.startswith(f"slicer: {config}:2:7: not valid TOML")


def test_init_writes_a_file_that_changes_nothing(cli: Cli) -> None:
    before = cli.json("profiles")
    path = Path(cli.environ["XDG_CONFIG_HOME"], "slicer", "config.toml")
    assert cli.run("profiles", "init", "--user").stdout == f"wrote {path}\n"
    assert tomllib.loads(path.read_text()) == {}
    assert cli.json("profiles") == before
    assert os.listdir(path.parent) == ["config.toml"]


def test_init_never_loses_what_the_user_wrote(cli: Cli, config: Path) -> None:
    done = cli.run("profiles", "init", "--user", code=125)
    assert done.stderr.startswith(f"slicer: {config}: the configuration file already exists (--force ")
    assert config.read_text() == CONFIG
    assert f"the old one is now {config}~" in cli.run("profiles", "init", "--user", "--force").stdout
    assert Path(f"{config}~").read_text() == CONFIG
    assert config.read_text() != CONFIG
    assert len(os.listdir(config.parent)) == 2


def test_init_says_where_it_cannot_write(cli: Cli) -> None:
    (cli.root / "config").write_text("in the way")
    done = cli.run("profiles", "init", "--user", code=125)
    assert (
        done.stderr == f"slicer: {cli.root}/config/slicer/config.toml: cannot be written: Not a directory\n"
    )
