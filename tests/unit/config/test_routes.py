"""Routes in a configuration: what they come to, and what is said of what cannot be meant. (C1, C2, C3)"""

from __future__ import annotations

import pytest

from slicer.config import routes
from slicer.config.profiles import Config
from slicer.config.route_profiles import profile_for
from slicer.config.route_slots import slot_limits
from slicer.config.routes import Probe, Route
from slicer.errors import ConfigError, UsageError
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
P = R + "probe = 'size'\n"
ONE = "mode = 'gpu'\nmax_jobs = 1\n"
T = "[routes.r.to.one]\nmode = 'gpu'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (R, ":1: route r has no destination (add [routes.r.gpu] and [routes.r.cpu]"),
        (R + "probes = 'size'\n" + G, ":2: unknown key 'probes' in [routes.r] (did you mean probe?)"),
        (G + "arg = []", ":2: unknown key 'arg' in [routes.r.gpu] (did you mean args?)"),
        (G + "up_to = '1G'", ":2: unknown key 'up_to' in [routes.r.gpu]"),
        (T + "threshold = 3", ":3: unknown key 'threshold' in [routes.r.to.one]"),
        ("routes = 3", ":1: routes must be a table, [routes], not 3"),
        (R + "gpu = 1", ":2: routes.r.gpu must be a table"),
        (R + "to = []", ":2: routes.r.to must be a table"),
        ("[routes.'a b'.gpu]", ":1: 'a b' is not a valid route name"),
        ("[routes.-a.gpu]", ":1: '-a' is not a valid route name"),
        (f"[routes.{'a' * 32}.gpu]", ":1: 'aaa"),
        ("[routes.r.to.'a,b']", ":1: 'a,b' is not a valid destination name"),
        (R + "probe = 'length'\n" + G, ':2: probe: expected one of "duration", "size"'),
        (R + "probe = []\n" + G, ":2: probe: expected at least one"),
        (R + "probe = ['size', 'size']\n" + G, ":2: probe: is listed twice"),
        (R + "probe = 3\n" + G, ":2: probe: expected one of"),
        (R + "probe = 'command'\n" + G, ":2: probe: a probe \"command\" needs a probe_command"),
        (P + "probe_command = ['x']\n" + G, ':3: probe_command: requires probe = "command"'),
        (R + "probe = 'command'\nprobe_command = 'x {}'\n" + G, ":3: probe_command: expected a list"),
        (R + "probe = 'command'\nprobe_command = []\n" + G, ":3: probe_command: names no program"),
        (R + "probe = 'command'\nprobe_command = [3]\n" + G, ":3: probe_command: expected a list"),
        (R + "probe = 'command'\nprobe_command = [\"a\\u0000\"]\n" + G, ":3: probe_command: a NUL"),
        (P + "probe_timeout = '0s'\n" + G, ":3: probe_timeout: expected a time of more than 0s"),
        (P + "probe_timeout = 'infinity'\n" + G, ":3: probe_timeout: expected a time"),
        (P + "tokens_per_word = 0\n" + G, ":3: tokens_per_word: expected a number above 0"),
        (P + "tokens_per_word = nan\n" + G, ":3: tokens_per_word: expected a number above 0"),
        (P + "input = 0\n" + G, ":3: input: expected an index from 1"),
        (P + "input = true\n" + G, ":3: input: expected an index"),
        (P + "input = '-1'\n" + G, ':3: input: "-1" is an index (write -1, without quotes)'),
        (P + "input = '--audio='\n" + G, ":3: input: expected an index"),
        (P + "input = 'audio'\n" + G, ":3: input: expected an index"),
        (P + "threshold = '1h'\n" + G, ":3: threshold: expected a size such as \"2G\" for probe"),
        (P + "threshold = ['1G', '2G']\n" + G, ":3: threshold: expected 1 of them, one for each probe"),
        (P + "threshold = '1G'\n" + C, ":3: threshold: is the bound of [routes.r.gpu], which does not exist"),
        (R + "threshold = '1G'\n" + G, ":2: threshold: the route has no probe"),
        (P + "threshold = '1G'\n" + T, ":3: threshold: is the bound of [routes.r.gpu]"),
        (P + G + C + T, ":5: route r has destinations of both kinds"),
        (P + "[routes.r.to.one]\n", ":3: one needs a mode"),
        (P + "[routes.r.to.one]\nmode = 'tpu'\n", ':4: mode: expected one of "gpu", "cpu", not'),
        (P + T + "up_to = '1h'", ":5: up_to: expected a size"),
        (P + "on_probe_error = 'cpu'\n" + G, ':3: on_probe_error: is "cpu", and route r has no such'),
        (P + "on_gpu_oom = 'cpu'\n" + G, ':3: on_gpu_oom: is "cpu", and route r has no such destination'),
        (P + "on_gpu_oom = 'gpu'\n" + G, ':3: on_gpu_oom: expected one of "fail", "cpu"'),
        (P + "on_busy = 'retry'\n" + G, ':3: on_busy: expected one of "fail", "wait", "other"'),
        (P + "idempotent = 'no'\n" + G, ":3: idempotent: expected true or false"),
        (P + "exit_code = 0\n" + G, ":3: exit_code: expected a whole number from 1 to 255"),
        (G + "exit_code = 256", ":2: exit_code: expected a whole number"),
        (G + "exit_code = true", ":2: exit_code: expected a whole number"),
        (G + "args = '--device cuda'", ":2: args: expected a list of texts"),
        (G + "prepend = [1]", ":2: prepend: expected a list of texts"),
        (G + "replace = ['--model']", ":2: replace: expected a table"),
        (G + "replace = { model = 'x' }", ":2: replace: 'model' is not an option"),
        (G + "replace = { '--fp16' = true }", ":2: replace: --fp16: expected a text, or false"),
        (G + "replace = { '--temp' = 0.5 }", ":2: replace: --temp: expected a text, or false"),
        (G + "max_jobs = 0", ":2: max_jobs: expected a whole number"),
        (G + "vram = '0M'", ":2: vram: a job cannot share a GPU without any of its memory"),
        (C + "vram = '1G'", ":2: vram: cpu is for CPU jobs, which have no GPU memory"),
        (G + "memory = 'infinity'", ":2: memory: must be finite"),
        (G + "memory = 6", ":2: memory: expected a size"),
        (P + "memory_reserve = '2GB'\n" + G, ":3: memory_reserve: expected a size"),
        (G + "profile = 'none'", ":2: profile: there is no profile 'none' (known: gpu, heavy, light)"),
        (G + "profile = 'light'", ":2: profile light requests no GPU, but gpu is for GPU jobs (add vram"),
        (C + "profile = 'gpu'", ":2: profile gpu requests GPUs, but cpu is for CPU jobs"),
        ("[routes.a-b.to.c]\n" + ONE + "[routes.a.to.b-c]\n" + ONE, "slot a-b-c"),
        (R + "probe = 'count'\ninput = 'stdin'\n" + G, ":3: input: probe \"count\" counts files"),
        (R + "probe = ['count', 'lines']\n" + G, ':2: probe: "count" measures a directory and'),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(machine: Machine, text: str, said: str) -> None:  # C1
    machine.system(text)
    with pytest.raises(ConfigError) as refused:
        machine.load()
    assert said in str(refused.value)


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
    assert made.sources["vram_mib"].endswith(":3")
