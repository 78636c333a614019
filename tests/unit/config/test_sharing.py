"""How a profile says that a job shares its GPUs, and which mistakes are noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slicer.config import profiles
from slicer.config.profiles import Overrides
from slicer.errors import ConfigError, UsageError
from slicer.model import Profile


def made(tmp_path: Path, text: str, **said: Any) -> Profile:
    path = tmp_path / "config.toml"
    path.write_text(f'[profiles.x]\ninherits = "gpu"\n{text}\n')
    config = profiles.load({"SLICER_CONFIG": str(path)}, profiles.host(), system_dir=str(tmp_path / "none"))
    return config.profile("x", Overrides(**said))


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("", {}, ("off", "yield", 0, "warn")),
        ('vram = "8G"\nshare = "both"', {}, ("both", "yield", 0, "warn")),
        ('vram = "8G"\nshare = "both"', {"share": "off"}, ("off", "yield", 0, "warn")),
        ('vram = "8G"', {"share": "lock", "share_mode": "launches"}, ("lock", "launches=10", 0, "warn")),
        ("", {"vram": "8G", "share": "cap"}, ("cap", "yield", 0, "warn")),
        ('share = "cap"\nover_cap = "end"\nshare_skip_syncs = 2', {}, ("cap", "yield", 2, "end")),
        ('share_mode = "time=0.005s"', {}, ("off", "time=5ms", 0, "warn")),
        ('share_mode = "launches=3"', {"share_mode": None}, ("off", "launches=3", 0, "warn")),
        ('share_mode = "each"', {}, ("off", "each", 0, "warn")),
    ],
)
def test_what_is_said_is_taken(  # D2, X7
    tmp_path: Path, text: str, said: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    found = made(tmp_path, text, **said)
    assert (found.share, found.share_mode, found.share_skip_syncs, found.over_cap) == expected


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"share": "lock"}, "--share: requires part of a GPU.*add --vram"),
        ({"share": "cap", "vram": "8G", "share_mode": "each"}, "--share-mode: is a mode.*add --share lock"),
        ({"vram": "8G", "share_mode": "each"}, "--share-mode: is a mode of the lock"),
        ({"vram": "8G", "share": "lock", "share_mode": "eech"}, "--share-mode: has no mode.*each"),
    ],
)
def test_a_mistake_on_the_command_line_is_told(tmp_path: Path, said: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(tmp_path, "", **said)


def test_a_profile_of_whole_gpus_may_say_it_in_case_vram_is_added(tmp_path: Path) -> None:
    assert made(tmp_path, 'share = "both"').vram_mib is None
    assert made(tmp_path, 'share = "both"', vram="8G").share == "both"


def test_where_it_comes_from_is_told(tmp_path: Path) -> None:
    found = made(tmp_path, 'vram = "8G"\nshare = "both"', share_mode="each").sources
    assert (found["share"], found["share_mode"], found["over_cap"]) == (
        f"{tmp_path}/config.toml:4", "--share-mode", "default",
    )  # fmt: skip


def test_what_is_said_of_idle_gpus_is_taken(tmp_path: Path) -> None:  # U4
    found = made(tmp_path, 'idle_timeout = "45m"\non_idle = "stop"')
    assert (found.idle_timeout_s, found.on_idle) == (2700.0, "stop")
    found = made(tmp_path, 'idle_timeout = "infinity"')
    assert (found.idle_timeout_s, found.on_idle) == (None, "warn")


def test_hold_takes_nothing_of_it(tmp_path: Path) -> None:
    profile = made(tmp_path, 'vram = "8G"\nshare = "both"')
    assert profiles.without_limits(profile, Overrides()).share == "off"


def test_gpus_are_named_by_uuid_unless_it_says_otherwise(tmp_path: Path) -> None:  # U18
    assert made(tmp_path, "").gpu_ids == "uuid"
    assert made(tmp_path, 'gpu_ids = "index"').gpu_ids == "index"
    assert made(tmp_path, 'gpu_ids = "index"', gpu_ids="uuid").gpu_ids == "uuid"
    with pytest.raises(ConfigError, match=r"gpu_ids: .*indices"):
        made(tmp_path, 'gpu_ids = "indices"')
