"""Limits of a whole slice in the configuration: whose files count, and what systemd gets to read. (K3)"""

from __future__ import annotations

import pytest

from slicer.config import slices
from slicer.config.slices import read
from slicer.errors import ConfigError
from slicer.kernel import SYSROOT
from tests.unit.config.machine import Machine

_MEANT = "in [slices.gpu] (did you mean memory_max?)"


@pytest.fixture(autouse=True)
def possible(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own files are below its root, and it has eight CPUs."""
    monkeypatch.setenv(SYSROOT, str(machine.etc.parent.parent))
    monkeypatch.setattr(slices, "_POSSIBLE_CPUS", str(machine.write(machine.home / "possible", "0-7\n")))


def limits(machine: Machine, *, user: bool = False) -> dict[str, dict[str, str]]:
    found, _ = read(machine.environ, machine.host, user=user)
    return {name: {limit.name: limit.value for limit in each} for name, each in found.items()}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ('memory_max = "48 GiB"', "MemoryMax", "48G"),
        ('memory_max = "1.5G"', "MemoryMax", "1536M"),
        ('memory_high = "37.50 %"', "MemoryHigh", "37.5%"),  # of the machine that reads it
        ('memory_max = "infinity"', "MemoryMax", "infinity"),
        ("memory_swap_max = 0", "MemorySwapMax", "0"),
        ('cpu_quota = "250%"', "CPUQuota", "250%"),
        ('cpu_quota = "infinity"', "CPUQuota", ""),  # systemd has no word for it in a unit file
        ('cpu_weight = "idle"', "CPUWeight", "idle"),
        ("cpu_weight = 30", "CPUWeight", "30"),
        ("io_weight = 30", "IOWeight", "30"),
        ('tasks_max = "10%"', "TasksMax", "10%"),
        ("tasks_max = 500", "TasksMax", "500"),
        ('tasks_max = "infinity"', "TasksMax", "infinity"),
        ("allowed_cpus = [3, 0, 1]", "AllowedCPUs", "0-1,3"),
    ],
)
def test_a_value_is_written_as_in_a_profile_and_read_by_systemd(
    machine: Machine, line: str, name: str, value: str
) -> None:
    machine.system(f"[slices.gpu]\n{line}\n")
    assert limits(machine) == {"gpu": {name: value}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[slices.gpu]\nmemory_max = '48GB'", ":2: memory_max: expected a size"),
        ("[slices.gpu]\nmemory_max = 24", ":2: memory_max: expected a size"),
        ("[slices.gpu]\ncpu_quota = 300", ":2: cpu_quota: expected a percentage of one CPU in quotes"),
        ("[slices.cpu]\ncpu_weight = 0", ":2: cpu_weight: expected a weight from 1 to 10000"),
        ("[slices.gpu]\nmemroy_max = '8G'", f":2: unknown key 'memroy_max' {_MEANT}"),
        ("[slices.gpu]\nMemoryMax = '8G'", f":2: unknown key 'MemoryMax' {_MEANT}"),
        ("[slices.gpu]\ntimeout = '8h'", ":2: unknown key 'timeout' in [slices.gpu]"),
        ("[slices.cpus]\ncpu_weight = 1", ":1: unknown key 'cpus' in [slices] (did you mean cpu?)"),
        ("[slices]\ngpu = 3", ":2: slices.gpu must be a table, [slices.gpu], not 3"),
        ("[slice.gpu]\ncpu_weight = 1", ":1: unknown key 'slice' (did you mean slices?)"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_by_every_command(machine: Machine, text: str, said: str) -> None:
    path = machine.system(text)
    for act in (machine.load, lambda: limits(machine)):
        with pytest.raises(ConfigError) as caught:
            act()
        assert str(caught.value).startswith(f"{path}{said}")


def test_later_files_win_key_by_key(machine: Machine) -> None:
    machine.system("[slices.gpu]\nmemory_max = '1G'\ntasks_max = 1\n")
    machine.write(machine.etc / "conf.d" / "10-a.toml", "[slices]\ngpu = { memory_max = '2G' }\n")
    found = read(machine.environ, machine.host)[0]["gpu"]
    assert [(limit.value, limit.source) for limit in found] == [
        ("2G", f"{machine.etc}/conf.d/10-a.toml:2"),
        ("1", f"{machine.etc}/config.toml:3"),
    ]


def test_each_manager_follows_its_own_files(machine: Machine) -> None:  # S6
    machine.system("[slices.gpu]\nmemory_max = '1G'\n")
    machine.write(machine.user, "[slices.gpu]\nmemory_max = '2G'\n")
    explicit = machine.write(machine.home / "mine.toml", "[slices.cpu]\ncpu_weight = 3\n")
    machine.environ["SLICER_CONFIG"] = str(explicit)
    assert limits(machine) == {"gpu": {"MemoryMax": "1G"}}
    assert limits(machine, user=True) == {"gpu": {"MemoryMax": "2G"}, "cpu": {"CPUWeight": "3"}}


def test_what_the_user_wrote_never_gets_into_the_unit_file_as_it_is(machine: Machine) -> None:
    """A newline in a value is a line of the drop-in."""
    machine.system("[slices.gpu]\nmemory_max = \"\\n1G\\n\"\nallowed_cpus = \"0\\n[Install]\\n\"\n")
    with pytest.raises(ConfigError):
        limits(machine)
    machine.system("[slices.gpu]\nmemory_max = \"\\n1G\\n\"\nallowed_cpus = \"0\\n1\"\n")
    assert limits(machine) == {"gpu": {"AllowedCPUs": "0-1", "MemoryMax": "1G"}}


def test_a_slice_gets_no_cpu_that_the_machine_cannot_have(machine: Machine) -> None:
    """The kernel refuses a whole list for one of them."""
    machine.system("[slices.gpu]\nallowed_cpus = '0,7,8'\n")
    assert limits(machine) == {"gpu": {"AllowedCPUs": "0,7"}}
