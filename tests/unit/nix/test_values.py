"""The options take what a configuration file may say, and nothing that slicer refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slicer.config.profiles import load
from slicer.errors import SlicerError
from slicer.model import Host
from tests.unit.nix.evaluation import evaluate
from tests.unit.nix.toml import written

MACHINE = Host(tuple(range(16)), 64 << 30)

SIZES = ("8G", "1.5G", "512M", "1048576", "50%", "37.5%", "infinity")
NO_SIZES = ("8 gigs", "8GB", "8g8", "", "-1G", "120%", "G", True, 1.5, [], {}, ["8G"])
DURATIONS = ("90s", "1h30m", "2 days", "infinity", "90", 90, 1.5)
NO_DURATIONS = ("soon", "-5s", -5, "5 fortnights", "", True, [], ["5m"], {})
CPUS = ("0", "0-3,8", "0 1", [0, 1], [3])
NO_CPUS = ("", "all", "0-", "-1", "0--3", [-1], [], ["0"], 3, True, [8192], "99999")
LISTS = {
    "io_device_weight": (["/dev/sda 200"], "/dev/sda 1"),
    "io_read_bandwidth_max": (["/dev/sda 10M", "/dev/sdb 1.5G"], "/dev/sda infinity"),
    "io_device_latency_target": (["/dev/sda 25ms"], "/dev/sda 1s"),
    "device_allow": (["/dev/nvidia0 rw", "char-pts r"], "/dev/nvidia0", "block-loop rwm"),
}
NO_LISTS = {
    "io_device_weight": ([], "", "/dev/sda", ["/dev/sda 0"], ["sda 200"], ["/dev/sda 10001"], 200, [200]),
    "io_read_bandwidth_max": ([], "/dev/sda", ["/dev/sda 0"], ["sda 10M"], ["/dev/sda fast"], 10),
    "io_device_latency_target": ([], "/dev/sda", ["/dev/sda soon"], ["/dev/sda 0"]),
    "device_allow": ([], "", "nvidia0 rw", ["/dev/nvidia0 rx"], ["nvidia0 rw"], 0),
}
NO_FLAGS = ("perhaps", 1, 0, "", [])
NO_WORDS = ("", "sometimes", True, 1, [])

# Key -> what both take, what both refuse. A key with a point stands outside of profiles.
TAKEN: dict[str, tuple[object, ...]] = {
    "cpu_quota": ("300%", "37.5%", "infinity"),
    "cpu_quota_period": ("10ms", "1s", "1500us"),
    "cpu_weight": (1, 50, 10000, "idle"),
    "memory_max": (*SIZES, 1048576, 2**40),
    "memory_high": SIZES,
    "memory_swap_max": (*SIZES, 0, "0", "0%", 5),
    "memory_zswap_writeback": (True, False),
    "allowed_cpus": CPUS,
    "allowed_memory_nodes": CPUS,
    "tasks_max": (1, 500, 4194304, "10%", "infinity"),
    "io_weight": (1, 10000),
    "device_policy": ("auto", "closed", "strict"),
    "oom_policy": ("continue", "stop", "kill"),
    "managed_oom_swap": ("auto", "kill"),
    "managed_oom_memory_pressure_limit": ("60%", "0%", "12.25%"),
    "managed_oom_preference": ("none", "avoid", "omit"),
    "timeout": DURATIONS,
    "timeout_stop": DURATIONS,
    "stop_signal": ("SIGTERM", "INT", 15),
    "kill_mode": ("control-group", "mixed"),
    "send_sigkill": (True, False),
    "description": ("nightly training", ""),
    "inherits": ("gpu",),
    "slice": ("cpu", "gpu"),
    "gpus": (0, 1, 8),
    "gpu": ("0", "0,1", [0, 1], 0, "GPU-5a3c", ["GPU-5a3c", 1]),
    "vram": ("8G", "500M", "1.5G"),
    "margin": ("8G", "0"),
    "share": ("off", "lock", "cap", "both"),
    "share_mode": ("yield", "each", "launches", "launches=1", "launches=1000000", "time=1ms", "time=60s"),
    "retry": ("any:2", "gpu:0", "any:2, gpu:5"),
    "share_skip_syncs": (0, 1000000),
    "over_cap": ("warn", "end"),
    "idle_timeout": DURATIONS,
    "on_idle": ("warn", "stop"),
    "gpu_ids": ("uuid", "index"),
    "fence": ("auto", "on", "off"),
    "devices": ([], ["/dev/nvidia-modeset"], ["/dev/nvidia-caps/nvidia-cap1", "char-nvidia-nvswitch"]),
    "cpu_slots": (0, 1),
    "slots": ({"cpu": 1}, {"cpu": 0}),
    "priority": (-100, 0, 100),
    "max_wait": (*DURATIONS, 0, "0"),
    "then": ("run", "fail"),
    "threads": (1, 64, "auto"),
    "grace": DURATIONS,
    "linger": (True, False),
    "env": ({"A": "x", "B": 3, "C": False},),
    "top.default_profile": ("heavy",),
    "top.compat_gpu_lock": ("/tmp/gpu.lock",),
    "slots.cpu": (1, 4),
    "notify.on": (["idle"], ["done", "desktop"], ["off"]),
    "notify.command": ("my-notify --now", ["my-notify"]),
    "gpu.idle_threshold": ("200M", "0"),
    "gpu.margin": ("512M",),
    "gpu.spike_buffer": ("10%", "0%"),
    "waiting.reserve_after": ("auto", "5m", 0, 300),
    "waiting.order": ("auto", "arrival"),
    "logs.max_size": ("256M", "1G"),
    "logs.keep": ("30d", 0, "infinity"),
    "history.keep": ("forever", "infinity", "1y", "2 years", "90d", 86400),
    "route.description": ("captions",),
    "route.probe": ("lines", ["lines"]),
    "route.probe_command": (["my-probe", "{}"], ["x"]),
    "route.probe_timeout": ("30s", 5, 1.5, "1d"),
    "route.tokens_per_word": (1, 1.3),
    "route.input": (1, -1, "--audio", "*.mp4", "stdin"),
    "route.threshold": (1000, "10k", "1.5M", [5], "infinity"),
    "route.on_probe_error": ("fail", "gpu", "cpu"),
    "route.on_gpu_oom": ("fail", "cpu"),
    "route.idempotent": (True, False),
    "route.memory_reserve": ("2G", "10%"),
    "route.on_busy": ("fail", "wait", "other"),
    "route.exit_code": (1, 75, 255),
    "destination.args": ([], ["--device", "cpu"]),
    "destination.prepend": (["x"],),
    "destination.replace": ({"--model": "large", "--fp16": False, "--jobs": 4}, {}),
    "destination.profile": ("light",),
    "destination.max_jobs": (1, 2),
    "destination.memory": ("6G", "50%"),
    "destination.on_busy": ("fail", "wait", "other"),
    "destination.exit_code": (1, 255),
    "to.mode": ("cpu", "gpu"),
    "to.up_to": (1000, "10k", "infinity"),
    "to.vram": ("10G", "500M"),
    **LISTS,
}
REFUSED: dict[str, tuple[object, ...]] = {
    "cpu_quota": ("300", 300, "0%", "-5%", "1000001%", "12.345%", "", True),
    "cpu_quota_period": ("10", 10, "2s", "500us", "10m", "soon"),
    "cpu_weight": (0, 10001, -1, "low", True, 1.5, []),
    "memory_max": (*NO_SIZES, 24, "24", "0", 0, "0%", "99999999P"),
    "memory_high": (*NO_SIZES, 24),
    "memory_swap_max": (*NO_SIZES, -1),
    "memory_zswap_writeback": NO_FLAGS,
    "allowed_cpus": NO_CPUS,
    "allowed_memory_nodes": NO_CPUS,
    "tasks_max": (0, -1, 4194305, "0%", "100%", "many", True, 1.5),
    "io_weight": (0, 10001, "idle", "low", True),
    "device_policy": NO_WORDS,
    "oom_policy": NO_WORDS,
    "managed_oom_swap": NO_WORDS,
    "managed_oom_memory_pressure_limit": ("60", 60, "101%", True),
    "managed_oom_preference": NO_WORDS,
    "timeout": (*NO_DURATIONS, 0, "0", "0s"),
    "timeout_stop": (*NO_DURATIONS, 0),
    "stop_signal": ("", 0, 65, True, []),
    "kill_mode": (*NO_WORDS, "process", "none"),
    "send_sigkill": NO_FLAGS,
    "description": (3, True, []),
    "inherits": (3, True),
    "slice": (*NO_WORDS, "gpu.slice"),
    "gpus": (-1, "one", True, 1.5, 8193),
    "gpu": ("", [], "0,", "all of them", True, [True], 1.5, {}),
    "vram": ("8", 8, "0", "0M", "infinity", "50%", "8GB", True),
    "margin": ("8", 8, "infinity", "50%", True),
    "share": (*NO_WORDS, "on"),
    "share_mode": (
        *NO_WORDS, "each=1", "launches=0", "launches=1000001", "launches=x", "time=5", "time", "time=0ms",
        "time=61s", "time=1h",
    ),
    "retry": ("", "2", 2, "any", "any:-1", "any:x", "oom:1", "any:1,", "any:" + "9" * 10, True),
    "share_skip_syncs": (-1, 1000001, "2", True, 1.5),
    "over_cap": (*NO_WORDS, "kill"),
    "idle_timeout": (*NO_DURATIONS, 0, "0"),
    "on_idle": (*NO_WORDS, "end"),
    "gpu_ids": (*NO_WORDS, "indices"),
    "fence": (*NO_WORDS, "yes"),
    "devices": ("/dev/nvidia0", ["/dev/kvm"], ["/dev/nvidia*"], ["/dev/nvidia/../kvm"], [0], True),
    "cpu_slots": (-1, "one", True),
    "priority": (-101, 101, "high", True, 1.5),
    "max_wait": NO_DURATIONS,
    "then": NO_WORDS,
    "threads": (0, -1, "all", True),
    "grace": (*NO_DURATIONS, 0),
    "linger": NO_FLAGS,
    "top.default_profile": (3, True),
    "top.compat_gpu_lock": ("gpu.lock", 3, True),
    "notify.on": (["ended"], [], True),
    "notify.command": ("", [], True, [1]),
    "slots.cpu": (0, -1, "four", True, 1.5),
    "gpu.idle_threshold": ("200", 200, "infinity", True),
    "gpu.margin": ("512", "5%", True),
    "gpu.spike_buffer": ("10", 10, "101%", True),
    "waiting.reserve_after": (*NO_DURATIONS, "infinity"),
    "waiting.order": (*NO_WORDS, "fifo"),
    "logs.max_size": (256, "0", "infinity", "5%", True),
    "logs.keep": NO_DURATIONS,
    "history.keep": (*NO_DURATIONS, 0, "0", "ever"),
    "route.description": (3, True),
    "route.probe": (*NO_WORDS, ["lines", "sometimes"]),
    "route.probe_command": ("my-probe {}", [], [1], True),
    "route.probe_timeout": (*NO_DURATIONS, 0, "0", "infinity"),
    "route.tokens_per_word": (0, -1, "many", True, 1001),
    "route.input": (0, "", "1", True, 1.5, [], "audio"),
    "route.threshold": (-1, "", "many", True, [], {}),
    "route.on_probe_error": NO_WORDS,
    "route.on_gpu_oom": (*NO_WORDS, "gpu"),
    "route.idempotent": NO_FLAGS,
    "route.memory_reserve": (*NO_SIZES, "infinity", "0"),
    "route.on_busy": NO_WORDS,
    "route.exit_code": (0, 256, -1, "75", True),
    "destination.args": ("--device cpu", [1], True),
    "destination.prepend": ("x", {}),
    "destination.replace": ({"--model": True}, {"--model": []}, ["--model"], "x"),
    "destination.profile": (3, True),
    "destination.max_jobs": (0, -1, "two", True, 1.5),
    "destination.memory": (*NO_SIZES, "infinity"),
    "destination.on_busy": NO_WORDS,
    "destination.exit_code": (0, 256, "75"),
    "to.mode": NO_WORDS,
    "to.up_to": (-1, "", "many", True, [], {}),
    "to.vram": ("8", 8, "0", "infinity", "50%", True),
    **NO_LISTS,
}


def routed(table: str, name: str, value: object) -> dict[str, object]:
    """A route that says this, and what it does not go without."""
    if table == "to":
        return {"probe": "lines", "to": {"some": {"mode": "gpu", name: value}}}
    route: dict[str, object] = {"probe": "lines", "threshold": 1, "gpu": {}, "cpu": {}}
    if table == "destination":
        return route | {"cpu": {name: value}}
    route["probe"] = {"probe_command": "command", "tokens_per_word": "tokens"}.get(name, "lines")
    return route | {name: value}


def is_taken_by_slicer(directory: Path, key: str, value: object) -> bool:
    table, _, name = key.rpartition(".")
    said: dict[str, object] = {name: value}
    if table == "":
        # What some keys do not go without.
        said = {**({"gpus": 1} if key in ("gpu", "vram") else {}), **said}
        said = {"profiles": {"some": said}}
    elif table in ("route", "destination", "to"):
        said = {"routes": {"some": routed(table, name, value)}}
    elif table != "top":
        for each in reversed(table.split(".")):
            said = {each: said}
    path = directory / "config.toml"
    path.write_text(written(said))
    environ = {"HOME": str(directory), "SLICER_CONFIG": str(path)}
    try:
        load(environ, MACHINE, system_dir=str(directory / "none"))
    except SlicerError:
        return False
    return True


@pytest.mark.parametrize(("given", "expected"), [(TAKEN, True), (REFUSED, False)], ids=["taken", "refused"])
def test_an_option_and_slicer_take_the_same_values(
    tmp_path: Path, given: dict[str, tuple[object, ...]], expected: bool
) -> None:  # K5
    by_module = evaluate("values.nix", given=given)
    wrong = [
        f"{who} {'refuses' if expected else 'takes'} {key} = {json.dumps(value)}"
        for key, values in given.items()
        for value, checked in zip(values, by_module[key], strict=True)
        for who, takes in (("the module", checked), ("slicer", is_taken_by_slicer(tmp_path, key, value)))
        if takes != expected
    ]
    assert wrong == []
