"""Routes in a configuration: what they come to, and what is said of what cannot be meant. (C1, C2, C3)"""

from __future__ import annotations

import pytest

from slicer.config import routes
from slicer.config.profiles import Config
from slicer.config.route_slots import slot_limits
from slicer.config.routes import Probe, Route
from slicer.errors import ConfigError, UsageError
from slicer.route.deciding import profile_for
from tests.unit.config.machine import GIB, Machine, values

WHOLE = """\
[slots]
cpu = 3

[routes.whisper]
description = "captions"
probe = ["duration", "pixels"]
probe_timeout = "10s"
input = "--audio"
threshold = ["1h", "8MP"]
on_probe_error = "cpu"
on_gpu_oom = "cpu"
idempotent = false
memory_reserve = "2G"
on_busy = "wait"
[routes.whisper.gpu]
args = ["--device", "cuda"]
prepend = ["-q"]
replace = { "--model" = "large", "--threads" = 4, "--fp16" = false, "--beam=" = false }
max_jobs = 2
vram = "10G"
memory = "6G"
exit_code = 1
[routes.whisper.cpu]
profile = "light"
on_busy = "other"
"""
SMALL = "[routes.r]\nprobe = 'size'\nthreshold = '1G'\n[routes.r.gpu]\n[routes.r.cpu]\n"


def only(machine: Machine, text: str, name: str = "r") -> Route:
    machine.system(text)
    return routes.find(machine.load(), name)


def test_every_key_of_a_route_arrives(machine: Machine) -> None:  # C1, C2
    route = only(machine, WHOLE, "whisper")
    assert route.probes == (Probe("duration", (), 10.0, 1.3), Probe("pixels", (), 10.0, 1.3))
    assert (route.description, route.input) == ("captions", "--audio")
    assert (route.on_probe_error, route.on_gpu_oom, route.idempotent) == ("cpu", "cpu", False)
    assert route.memory_reserve_bytes == 2 * GIB
    gpu, cpu = route.destinations
    assert (gpu.name, gpu.mode, gpu.up_to) == ("gpu", "gpu", (3600.0, 8e6))
    assert (gpu.args, gpu.prepend) == (("--device", "cuda"), ("-q",))
    assert gpu.replace == (("--model", "large"), ("--threads", "4"), ("--fp16", None), ("--beam=", None))
    assert (gpu.profile, gpu.max_jobs, gpu.slot) == ("gpu", 2, "whisper-gpu")
    assert (gpu.vram_mib, gpu.memory_bytes) == (10240, 6 * GIB)
    assert (gpu.on_busy, gpu.exit_code) == ("wait", 1)
    assert (cpu.name, cpu.mode, cpu.up_to, cpu.profile) == ("cpu", "cpu", (None, None), "light")
    assert (cpu.max_jobs, cpu.slot, cpu.on_busy, cpu.exit_code) == (None, "", "other", 75)


def test_each_value_knows_its_line(machine: Machine) -> None:  # C2
    route = only(machine, WHOLE, "whisper")
    path = machine.etc / "config.toml"
    assert route.sources["threshold"] == f"{path}:9"
    assert route.sources["gpu.vram"] == routes.source(route, route.destinations[0], "vram") == f"{path}:20"
    assert routes.source(route, route.destinations[0], "on_busy") == f"{path}:14"  # the route's own word
    assert routes.source(route, route.destinations[1], "exit_code") == "default"
    assert routes.source(route, route.destinations[1]) == f"{path}:23"


def test_what_is_left_out_has_a_default(machine: Machine) -> None:  # C2, C3
    route = only(machine, SMALL)
    assert (route.input, route.on_probe_error, route.on_gpu_oom, route.idempotent) == (
        None, "fail", "fail", True,
    )  # fmt: skip
    assert [each.profile for each in route.destinations] == ["gpu", "heavy"]
    assert [(each.on_busy, each.exit_code) for each in route.destinations] == [("fail", 75)] * 2
    assert route.probes[0].timeout_s == 30


def test_later_files_win_key_by_key(machine: Machine) -> None:  # C2
    machine.system(SMALL + "args = ['a']\nmax_jobs = 3\n")
    machine.write(machine.user, "[routes.r]\nthreshold = '2G'\n[routes.r.cpu]\nmax_jobs = 1\n")
    config = machine.load()
    gpu, cpu = routes.find(config, "r").destinations
    assert (gpu.up_to, cpu.args, cpu.max_jobs) == ((2.0 * GIB,), ("a",), 1)
    assert slot_limits(config.layers) == {"r-cpu": 1}


def test_several_destinations_stand_in_the_order_of_their_bounds(machine: Machine) -> None:  # C1
    route = only(machine, """
        [routes.r]
        probe = "duration"
        [routes.r.to.rest]
        mode = "cpu"
        [routes.r.to.long]
        mode = "gpu"
        up_to = "1h"
        max_jobs = 2
        [routes.r.to.probe]
        mode = "gpu"
        up_to = "10m"
    """)  # fmt: skip
    assert [each.name for each in route.destinations] == ["probe", "long", "rest"]
    assert route.destinations[1].slot == "r-long"
    assert routes.source(route, route.destinations[0], "up_to").endswith("config.toml:12")


def test_the_gpu_goes_first_where_both_take_all(machine: Machine) -> None:  # C8
    route = only(machine, "[routes.r]\non_gpu_oom = 'cpu'\n[routes.r.cpu]\n[routes.r.gpu]\n")
    assert [each.name for each in route.destinations] == ["gpu", "cpu"]
    assert route.probes == ()
    machine.system("[routes.r.cpu]\n")
    machine.write(machine.user, "[routes.r.gpu]\n")
    assert [each.name for each in routes.find(machine.load(), "r").destinations] == ["gpu", "cpu"]


def test_max_jobs_are_slots_of_the_ledger(machine: Machine) -> None:  # C2
    machine.system(WHOLE)
    assert slot_limits(machine.load().layers) == {"whisper-gpu": 2}


def test_routes_are_found_by_name(machine: Machine) -> None:
    machine.system(WHOLE + SMALL)
    config = machine.load()
    assert routes.names(config.layers) == ("r", "whisper")
    assert list(routes.load(config)) == ["r", "whisper"]
    with pytest.raises(UsageError, match=r'unknown route \'wisper\' \(did you mean "whisper"'):
        routes.find(config, "wisper")
    machine.system("")
    with pytest.raises(UsageError, match="there are none"):
        routes.find(machine.load(), "whisper")


R, G, C = "[routes.r]\n", "[routes.r.gpu]\n", "[routes.r.cpu]\n"
def test_slots_and_max_jobs_cannot_contradict_each_other(machine: Machine) -> None:  # C2
    machine.system("[slots]\nr-gpu = 2\n" + G + "max_jobs = 2\n")
    assert machine.load().slots["r-gpu"] == 2
    machine.system("[slots]\nr-gpu = 3\n" + G + "max_jobs = 2\n")
    with pytest.raises(ConfigError, match=r":2: slots.r-gpu: the route has max_jobs = 2, but"):
        machine.load()


def profile_of(config: Config, route: Route, at: int) -> dict[str, object]:
    return values(profile_for(config, route, route.destinations[at]))


def test_a_destination_lies_over_its_profile(machine: Machine) -> None:  # C2, C7
    machine.system(SMALL + "memory = '20G'\n")
    config = machine.load()
    route = routes.find(config, "r")
    cpu = profile_for(config, route, route.destinations[1])
    assert values(cpu)["MemoryMax"] == 20 * GIB
    assert cpu.sources["MemoryMax"].endswith(":6")
    # heavy's own MemoryHigh is 12.8G here: a job that may use 20G would be slowed down from there on.
    assert values(cpu)["MemoryHigh"] == 2**64 - 1
    own = "profile = 'own'\n[profiles.own]\nslice = 'cpu'\nmemory_high = '1G'\n"
    machine.system(f"{SMALL}memory = '20G'\n{own}")
    config = machine.load()
    assert profile_of(config, routes.find(config, "r"), 1)["MemoryHigh"] == GIB  # the user's own word


def test_vram_of_a_destination_makes_a_gpu_job_of_any_profile(machine: Machine) -> None:  # C2
    machine.system("[routes.r.gpu]\nprofile = 'light'\nvram = '4G'\n")
    config = machine.load()
    route = routes.find(config, "r")
    made = profile_for(config, route, route.destinations[0])
    assert (made.gpus, made.vram_mib, made.margin_mib, made.slice) == (1, 4096, 512, "gpu")
    assert made.sources["vram"].endswith(":3")
