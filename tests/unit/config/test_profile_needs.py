"""What a profile and the command line want of the ledger, and the settings for sharing GPUs. (E2, X4)"""

from __future__ import annotations

import pytest

from slicer.config import profile_report, profiles
from slicer.config.profiles import Overrides
from slicer.errors import ConfigError, UsageError
from slicer.model import Profile
from slicer.placement.settings import Policy
from tests.unit.config.machine import Machine


def wanted(profile: Profile) -> tuple[object, ...]:
    return profile.gpus, profile.gpu_choice, profile.vram_mib, profile.margin_mib


# ---- GPUs: how many, which, and how much of each ----


@pytest.mark.parametrize(
    ("name", "overrides", "found"),
    [
        ("light", {}, (0, (), None, 0)),
        ("gpu", {}, (1, (), None, 0)),
        ("light", {"vram": "8G"}, (1, (), 8192, 512)),
        ("light", {"vram": "8G", "gpus": "2"}, (2, (), 8192, 512)),
        ("gpu", {"vram": "500M"}, (1, (), 500, 512)),
        ("light", {"vram": "1.5GiB", "margin": "0"}, (1, (), 1536, 0)),
        ("light", {"vram": "1K"}, (1, (), 1, 512)),  # whole MiB, never less than asked for
        ("light", {"vram": "8G", "margin": "1G"}, (1, (), 8192, 1024)),
        ("light", {"gpu": "0"}, (1, ("0",), None, 0)),
        ("light", {"gpu": "2, 00,GPU-5a3c"}, (3, ("2", "0", "GPU-5a3c"), None, 0)),
        ("gpu", {"gpu": "0,1"}, (2, ("0", "1"), None, 0)),  # both, though the profile says one
        ("gpu", {"gpu": "0,1", "gpus": "1"}, (1, ("0", "1"), None, 0)),
        ("light", {"gpu": "0,1", "vram": "4G"}, (2, ("0", "1"), 4096, 512)),
        ("gpu", {"gpus": "0"}, (0, (), None, 0)),
    ],
)
def test_what_the_command_line_wants_of_gpus(
    machine: Machine, name: str, overrides: dict[str, object], found: tuple[object, ...]
) -> None:  # E2
    made = machine.profile(name, **overrides)
    assert wanted(made) == found
    assert made.slice == ("gpu" if made.gpus else "cpu") or name == "gpu"


FILE = """\
[profiles.pair]
gpu = [0, "GPU-77"]
vram = "10G"
margin = "1G"
priority = 5
max_wait = "2h"
then = "run"
[profiles.one]
inherits = "pair"
gpus = 1
[profiles.other]
inherits = "pair"
gpu = 3
[profiles.none]
inherits = "pair"
gpus = 0
[profiles.infer]
inherits = "none"
vram = "2G"
"""


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("pair", (2, ("0", "GPU-77"), 10240, 1024)),
        ("one", (1, ("0", "GPU-77"), 10240, 1024)),  # any one of the two
        ("other", (1, ("3",), 10240, 1024)),
        ("none", (0, (), None, 0)),  # no GPUs: nothing of what the parent wants of them
        ("infer", (1, (), 2048, 1024)),  # memory on a GPU needs a GPU
    ],
)
def test_a_profile_says_of_its_gpus_what_its_parent_does_not(
    machine: Machine, name: str, found: tuple[object, ...]
) -> None:  # K3, E2
    machine.system(FILE)
    made = machine.profile(name)
    assert wanted(made) == found
    assert (made.priority, made.max_wait_s, made.then) == (5, 7200.0, "run")


def test_each_need_names_its_source(machine: Machine) -> None:  # K3
    etc = machine.system(FILE)
    made = machine.profile("pair", vram="8G", priority="-7", max_wait="0", then="fail", cpu_slots="2")
    assert (made.priority, made.max_wait_s, made.then, made.slots) == (-7, 0.0, "fail", {"cpu": 2})
    assert made.sources.items() >= {
        "gpu": f"{etc}:2", "gpus": f"{etc}:2", "vram": "--vram", "margin": f"{etc}:4",
        "priority": "--priority", "max_wait": "--max-wait", "then": "--then", "cpu_slots": "--cpu-slots",
    }.items()  # fmt: skip
    made = machine.profile("light", vram="8G")
    assert made.sources["gpus"] == "--vram"
    assert made.sources["slice"] == "gpus = 1 (--vram)"
    assert made.sources["margin"] == "built-in"


# ---- waiting ----


@pytest.mark.parametrize(
    ("written", "found"),
    [("0", 0.0), ("90", 90.0), ("1h30m", 5400.0), ("infinity", None), ("500ms", 0.5)],
)
def test_max_wait_may_be_nothing_or_for_ever(machine: Machine, written: str, found: float | None) -> None:
    assert machine.profile("heavy", max_wait=written).max_wait_s == found


def test_who_waits_for_ever_says_nothing_of_what_follows(machine: Machine) -> None:  # A8
    made = machine.profile("heavy")
    assert (made.max_wait_s, made.then, made.priority) == (None, None, 0)


def test_a_profile_may_prepare_what_the_command_line_turns_on(machine: Machine) -> None:
    machine.system("[profiles.p]\nmargin = '1G'\nthen = 'run'\n")
    assert wanted(machine.profile("p")) == (0, (), None, 0)
    made = machine.profile("p", vram="2G", max_wait="1m")
    assert (made.margin_mib, made.then) == (1024, "run")


# ---- mistakes ----


# ---- settings ----


def test_settings_for_sharing_gpus(machine: Machine) -> None:  # E2, E3
    assert machine.load().policy == Policy(idle_threshold_mib=200, spike_buffer=0.1, reserve_after_s=None)
    assert machine.load().margin_mib == 512
    etc = machine.system(
        "[gpu]\nidle_threshold = '1G'\nmargin = '2G'\nspike_buffer = '12.5%'\n[waiting]\nreserve_after = 90\n"
    )
    config = machine.load()
    assert config.policy == Policy(idle_threshold_mib=1024, spike_buffer=0.125, reserve_after_s=90.0)
    made = config.profile("light", Overrides(vram="8G"))
    assert (made.margin_mib, made.sources["margin"]) == (2048, f"{etc}:3")
    shown = {row.name: (row.value, row.source) for row in profile_report.general_settings(config)}
    assert shown["gpu.idle_threshold"] == ("1G", f"{etc}:2")
    assert shown["gpu.margin"] == ("2G", f"{etc}:3")
    assert shown["gpu.spike_buffer"] == ("12.5%", f"{etc}:4")
    assert shown["waiting.reserve_after"] == ("1m30s", f"{etc}:6")


# X8
@pytest.mark.parametrize(
    ("text", "keep_s", "shown"),
    [
        ("", None, "forever"),
        ("keep = 'forever'", None, "forever"),
        ("keep = 'infinity'", None, "forever"),
        ("keep = '1y'", 31_557_600.0, "1y"),
        ("keep = '30 days'", 30 * 86400.0, "30d"),
        ("keep = 86400", 86400.0, "1d"),
    ],
)
def test_how_long_outcomes_are_kept(machine: Machine, text: str, keep_s: float | None, shown: str) -> None:
    machine.system(f"[history]\n{text}\n")
    config = machine.load()
    assert config.history_keep_s == keep_s
    rows = {row.name: row.value for row in profile_report.general_settings(config)}
    assert rows["history.keep"] == shown


def test_one_word_turns_git_off(machine: Machine) -> None:  # U22
    assert machine.load().history_git
    machine.system("[history]\ngit = false\n")
    assert not machine.load().history_git


@pytest.mark.parametrize("text", ["'23h'", "0", "'ever'", "true", "['1y']", "-1"])
def test_a_history_that_is_kept_too_short_or_wrongly_is_refused(machine: Machine, text: str) -> None:  # X8
    etc = machine.system(f"[history]\nkeep = {text}\n")
    with pytest.raises(ConfigError, match=r"history\.keep") as caught:
        machine.load()
    assert caught.value.where == f"{etc}:2"


def test_the_plain_lock_by_file_and_by_variable(machine: Machine) -> None:  # A5
    etc = machine.system("compat_gpu_lock = '/tmp/a.lock'\n")
    machine.environ["GPU_LOCK_PATH"] = ""
    assert machine.load().compat_gpu_lock == "/tmp/a.lock"
    assert machine.load().sources["compat_gpu_lock"] == f"{etc}:1"
    machine.environ["GPU_LOCK_PATH"] = "/tmp/b.lock"
    assert machine.load().compat_gpu_lock == "/tmp/b.lock"
    assert machine.load().sources["compat_gpu_lock"] == "GPU_LOCK_PATH"
    machine.environ["GPU_LOCK_PATH"] = "b.lock"
    with pytest.raises(UsageError) as caught:
        machine.load()
    assert str(caught.value) == "GPU_LOCK_PATH: expected an absolute path, not 'b.lock'"


def test_only_what_is_said_is_shown(machine: Machine) -> None:  # K3
    machine.system(FILE)

    def shown(name: str, **overrides: object) -> dict[str, str]:
        rows = profile_report.settings(machine.load(), name, Overrides(**overrides))  # type: ignore[arg-type]
        return {row.name: row.value for row in rows if row.name in profile_report.NEEDS}

    assert shown("light") == {"gpus": "0", "cpu_slots": "0"}
    assert shown("light", vram="8G") == {"gpus": "1", "vram": "8G", "margin": "512M", "cpu_slots": "0"}
    assert shown("pair") == {
        "gpus": "2", "gpu": "0,GPU-77", "vram": "10G", "margin": "1G", "cpu_slots": "0", "priority": "5",
        "max_wait": "2h", "then": "run",
    }  # fmt: skip


def test_hold_takes_a_profiles_needs_and_none_of_its_limits(machine: Machine) -> None:
    machine.system("[profiles.p]\ninherits='gpu'\nvram='8G'\ntimeout='1h'\nenv={ X = '1' }\npriority=3\n")
    full = machine.profile("p")
    bare = profiles.without_limits(full, Overrides())
    assert (bare.properties, bare.env, bare.timeout_s) == ({}, {}, None)
    assert (wanted(bare), bare.priority) == (wanted(full), 3)
    limited = Overrides(timeout="5m")
    assert profiles.without_limits(machine.profile("p", timeout="5m"), limited).timeout_s == 300.0
