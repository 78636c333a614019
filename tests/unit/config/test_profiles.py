"""Profiles: how values resolve, and what is said of bad ones. (K1, K3, K4, A6, A7)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slicer
from slicer.config.profiles import THREAD_VARIABLES, host, load, thread_env
from slicer.errors import ConfigError
from slicer.model import Host
from tests.unit.config.machine import GIB, Machine, values

# ---- built-ins ----


def test_builtins_scale_with_the_machine(machine: Machine) -> None:  # K3, A6
    config = machine.load()
    assert config.slots["cpu"] == 4
    assert config.names() == ("gpu", "heavy", "light")
    heavy = config.profile("heavy")
    assert (heavy.slice, heavy.gpus, heavy.slots, heavy.threads) == ("cpu", 0, {"cpu": 1}, 3)
    assert values(heavy) == {
        "CPUQuota": 3_000_000,
        "CPUWeight": 20,
        "MemoryHigh": 64 * GIB * 80 // 400 >> 20 << 20,
        "MemoryMax": 64 * GIB * 90 // 400 >> 20 << 20,
        "IOWeight": 20,
    }
    light = config.profile("light")
    assert (light.slice, light.gpus, light.slots, light.threads) == ("cpu", 0, {}, 12)
    assert values(light) == {"CPUWeight": 50, "MemoryMax": 32 * GIB, "IOWeight": 50}
    gpu = config.profile("gpu")
    assert (gpu.slice, gpu.gpus, gpu.slots, gpu.threads) == ("gpu", 1, {}, 12)
    assert values(gpu) == {"MemoryMax": 64 * GIB * 90 // 100 >> 20 << 20}


@given(
    st.sets(st.integers(min_value=0, max_value=500), min_size=1),
    st.integers(min_value=2**20, max_value=2**45),
    st.none() | st.integers(min_value=1, max_value=8192),
)
def test_builtins_make_sense_on_any_machine(cpus: set[int], memory: int, slots: int | None) -> None:  # K3
    environ = {"HOME": "/nonexistent"} | ({"CPU_RUN_SLOTS": str(slots)} if slots else {})
    config = load(environ, Host(tuple(sorted(cpus)), memory), system_dir="/nonexistent")
    for name in config.names():
        profile = config.profile(name)
        assert 1 <= profile.threads <= len(cpus)
        assert profile.properties["MemoryMax"].value >= 2**20  # type: ignore[operator]
    heavy = config.profile("heavy")
    quota = heavy.properties["CPUQuota"].value
    assert isinstance(quota, int)
    # N jobs with all their threads busy stay within the machine, rounded up to whole threads. (A6)
    assert config.slots["cpu"] * quota <= max(len(cpus) * 1_000_000, config.slots["cpu"] * 10_000)


def test_default_profile_is_light_and_a_file_can_change_it(machine: Machine) -> None:  # K3
    assert machine.profile().name == "light"
    machine.system('default_profile = "heavy"\n')
    assert machine.profile().name == "heavy"
    assert machine.profile("light").name == "light"


def test_this_machine_is_read() -> None:
    here = host()
    assert set(here.cpus) == os.sched_getaffinity(0)
    assert 2**26 < here.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# ---- keys and values ----


def test_values_are_taken_as_text_or_as_number_where_that_is_natural(machine: Machine) -> None:  # K3
    machine.system(
        "[profiles.a]\nio_weight = 20\ncpu_weight = 'idle'\nmemory_max = '24G'\nmemory_swap_max = 0\n"
        "cpu_quota = '250%'\nallowed_cpus = [0, 2]\ntasks_max = 100\ntimeout = 1.5\nsend_sigkill = false\n"
        "stop_signal = 2\ntimeout_stop = 5\ndevice_allow = ['/dev/null rw', '/dev/zero r']\n"
        "env = { A = 'x', B = 7 }\nlinger = true\ndescription = 'd'\n"
    )
    profile = machine.profile("a")
    assert values(profile) == {
        "IOWeight": 20,
        "CPUWeight": 0,
        "MemoryMax": 24 * GIB,
        "MemorySwapMax": 0,
        "CPUQuota": 2_500_000,
        "AllowedCPUs": b"\x05",
        "TasksMax": 100,
        "SendSIGKILL": False,
        "KillSignal": 2,
        "TimeoutStopSec": 5_000_000,
        "DeviceAllow": (("/dev/null", "rw"), ("/dev/zero", "r")),
    }
    assert profile.timeout_s == 1.5
    assert profile.env == {"A": "x", "B": "7"}
    assert (profile.linger, profile.description, profile.threads) == (True, "d", 2)


def test_timeout_is_no_property(machine: Machine) -> None:  # K3
    machine.system(
        "[profiles.a]\ntimeout = '2h'\n[profiles.b]\nruntime_max = '2h'\n[profiles.c]\ninherits='a'\n"
    )
    machine.write(machine.user, "[profiles.c]\nruntime_max = 'infinity'\n")
    for name, timeout in (("a", 7200.0), ("b", 7200.0), ("c", None)):
        profile = machine.profile(name)
        assert profile.timeout_s == timeout
        assert "RuntimeMaxSec" not in profile.properties
    assert machine.profile("c").sources["timeout"] == f"{machine.user}:2"


def test_inherits_takes_what_the_profile_does_not_say(machine: Machine) -> None:  # K3
    machine.system(
        "[profiles.train]\ninherits = 'heavy'\ngpus = 1\n[profiles.long]\ninherits = 'train'\nio_weight = 5\n"
    )
    machine.write(machine.user, "[profiles.heavy]\nmemory_max = '3G'\n")
    config = machine.load()
    assert config.chain("long") == ("long", "train", "heavy")
    made = config.profile("long")
    assert (made.gpus, made.slots, made.slice) == (1, {"cpu": 1}, "gpu")
    assert (values(made)["IOWeight"], values(made)["MemoryMax"]) == (5, 3 * GIB)
    assert made.sources["MemoryMax"] == f"{machine.user}:2"
    assert made.sources["gpus"] == f"{machine.etc}/config.toml:3"


def test_a_description_is_not_inherited(machine: Machine) -> None:  # W13
    machine.system("[profiles.a]\ninherits = 'heavy'\n[profiles.b]\ninherits = 'a'\ndescription = 'mine'")
    assert machine.load().profile("a").description == ""
    assert machine.load().profile("b").description == "mine"
    assert machine.load().profile("heavy").description  # extended, not inherited


def test_env_is_merged_by_variable_and_false_takes_one_back(machine: Machine) -> None:  # K4
    machine.system(
        "[profiles.a.env]\nX = '1'\nY = '1'\nZ = '1'\n"
        "[profiles.b]\ninherits = 'a'\nenv = { Y = '2', Z = false }\n"
    )
    made = machine.profile("b")
    assert made.env == {"X": "1", "Y": "2"}
    assert made.sources["env.Y"] == f"{machine.etc}/config.toml:7"
    assert "env.Z" not in made.sources


@pytest.mark.parametrize(
    ("text", "name", "gpus", "expected"),
    [
        ("", "heavy", None, "cpu"),
        ("", "heavy", 1, "gpu"),
        ("", "gpu", None, "gpu"),
        ("", "gpu", 0, "cpu"),
        ("[profiles.a]\ngpus = 2\n", "a", None, "gpu"),
        ("[profiles.a]\nslice = 'cpu'\ngpus = 2\n", "a", None, "cpu"),
        ("[profiles.a]\nslice = 'gpu'\n", "a", None, "gpu"),
        ("[profiles.heavy]\nslice = 'cpu'\n", "heavy", 1, "cpu"),
    ],
)
def test_slice_follows_the_gpus_unless_a_file_says_otherwise(
    machine: Machine, text: str, name: str, gpus: int | None, expected: str
) -> None:  # K1
    machine.system(text)
    assert machine.profile(name, gpus=gpus).slice == expected


# ---- threads ----


@pytest.mark.parametrize(
    ("text", "threads", "why"),
    [
        ("", 12, "the machine's CPUs"),
        ("cpu_quota = '300%'", 3, "CPUQuota=300%"),
        ("cpu_quota = '250%'", 3, "CPUQuota=250%"),
        ("cpu_quota = '10%'", 1, "CPUQuota=10%"),
        ("cpu_quota = '9900%'", 12, "the machine's CPUs"),
        ("cpu_quota = 'infinity'", 12, "the machine's CPUs"),
        ("allowed_cpus = '0-4'", 5, "AllowedCPUs=0-4"),
        ("allowed_cpus = '10-99'", 2, "AllowedCPUs=10-99"),
        ("cpu_quota = '300%'\nallowed_cpus = '0-1'", 2, "AllowedCPUs=0-1"),
        ("cpu_quota = '300%'\nthreads = 40", 40, "config.toml:3"),
        ("cpu_quota = '300%'\nthreads = 'auto'", 3, "config.toml:3, auto: CPUQuota=300%"),
    ],
)
def test_threads_follow_quota_cpus_and_cores(
    machine: Machine, text: str, threads: int, why: str
) -> None:  # K4
    machine.system(f"[profiles.a]\n{text}\n")
    made = machine.profile("a")
    assert made.threads == threads
    assert made.sources["threads"].endswith(why)


def test_threads_follow_what_the_command_line_sets(machine: Machine) -> None:  # K4
    assert machine.profile("heavy", assignments=("CPUQuota=150%",)).threads == 2


def test_cpu_run_variables_go_before_the_files(machine: Machine) -> None:  # A6, A7
    machine.system("[slots]\ncpu = 2\n[profiles.heavy]\nthreads = 5\n")
    assert (machine.load().slots["cpu"], machine.profile("heavy").threads) == (2, 5)
    machine.environ |= {"CPU_RUN_SLOTS": "6", "CPU_RUN_THREADS": "9"}
    config = machine.load()
    assert (config.slots["cpu"], config.sources["slots.cpu"]) == (6, "CPU_RUN_SLOTS")
    heavy = config.profile("heavy")
    assert (heavy.threads, heavy.sources["threads"]) == (9, "CPU_RUN_THREADS")
    assert values(heavy)["CPUQuota"] == 2_000_000


def test_thread_variables_cap_every_library() -> None:  # K4
    assert thread_env(3) == dict.fromkeys(THREAD_VARIABLES, "3")
    required = {f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    assert required | {"VECLIB_MAXIMUM_THREADS"} <= set(THREAD_VARIABLES)


# ---- the command line ----


def test_command_line_goes_before_everything_with_its_name_as_the_source(machine: Machine) -> None:  # K3
    machine.system("[profiles.heavy]\nmemory_max = '1G'\ntimeout = 5\nslice = 'gpu'\n")
    made = machine.profile(
        "heavy",
        gpus="2",
        timeout="90s",
        linger=True,
        assignments=("MemoryMax=8G", "MemoryMax=9G", "DeviceAllow=/dev/a r", "DeviceAllow=/dev/b"),
    )
    assert (made.gpus, made.timeout_s, made.linger) == (2, 90.0, True)
    assert values(made)["MemoryMax"] == 9 * GIB
    assert values(made)["DeviceAllow"] == (("/dev/a", "r"), ("/dev/b", "rwm"))
    wanted = {"gpus": "--gpus", "timeout": "--timeout", "linger": "--linger", "MemoryMax": "--set"}
    assert wanted.items() <= made.sources.items()


def test_set_runtime_max_is_the_timeout(machine: Machine) -> None:  # K3
    made = machine.profile("heavy", assignments=("RuntimeMaxSec=1h",))
    assert (made.timeout_s, made.sources["timeout"]) == (3600.0, "--set")
    assert "RuntimeMaxSec" not in made.properties


def test_cpus_missing_here_matter_only_to_a_profile_in_use(machine: Machine) -> None:  # K3
    machine.system("[profiles.big]\nallowed_cpus = '64-127'\n")
    assert machine.profile("heavy").name == "heavy"
    with pytest.raises(ConfigError, match=r":2: allowed_cpus: none of the CPUs '64-127' is usable here"):
        machine.profile("big")


# ---- the hot path ----

_BANNED = {
    "dataclasses",
    "typing",
    "re",
    "enum",
    "json",
    "pathlib",
    "shutil",
    "difflib",
    "tomllib",
    "subprocess",
}
_BANNED |= {
    "functools",
    "inspect",
    "signal",
    "collections",
    "click",
    "pystemd",
    "psutil",
    "pynvml",
    "contextlib",
}


def _imported(code: str, tmp_path: Path) -> set[str]:
    """The modules a clean interpreter holds after running ``code``; without site, which imports its own."""
    source = str(Path(slicer.__file__).parent.parent)
    start = f"import sys; sys.path.insert(0, {source!r})"
    home = f"environ = dict(HOME={str(tmp_path)!r})"
    end = "print(*sys.modules)"
    command = [sys.executable, "-S", "-E", "-c", "\n".join([start, home, code, end])]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_making_a_profile_imports_nothing_heavy(tmp_path: Path) -> None:  # K3
    code = """
from slicer.config.profiles import Overrides, host, load, thread_env
config = load(environ, host(), system_dir="/nonexistent")
thread_env(config.profile("heavy", Overrides(1, "2h", True, ("MemoryMax=1G", "AllowedCPUs=0"))).threads)
"""
    assert not _imported(code, tmp_path) & _BANNED


def test_configuration_from_the_cache_imports_nothing_heavy(tmp_path: Path) -> None:  # K3
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "config.toml").write_text("[profiles.heavy]\nmemory_max = '1G'\n")
    code = f"""
from slicer.config import cache
cache._SETTLED_NS = -10**12
from slicer.config.profiles import host, load
load(environ, host(), system_dir={str(tmp_path / "etc")!r}).profile("heavy")
"""
    assert "tomllib" in _imported(code, tmp_path)
    assert not _imported(code, tmp_path) & _BANNED
