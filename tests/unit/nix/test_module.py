"""What `programs.slicer` sets on a NixOS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slicer.backend import closed_shop, serve_units, slice_limits
from slicer.backend.install_units import plan
from slicer.broker.rules import policy_text
from slicer.broker.rules.policy import NO_CAP, Caps, Together
from slicer.config import check, routes, serve, slices, slurm
from slicer.config.build import SLICE_KEYS, TABLES, builtin_profiles
from slicer.config.files import Layer
from slicer.config.profiles import Config, load
from slicer.config.properties import KEYS, find_key, parse_property
from slicer.config.route_slots import MODES
from slicer.model import SLICES, Host
from slicer.quantity import INFINITY
from slicer.state.statedir import PUBLIC_DIRS
from tests.machines.host import REPO
from tests.unit.config.test_documented import SERVE_KEYS
from tests.unit.nix import evaluation
from tests.unit.nix.evaluation import Refused, evaluate
from tests.unit.nix.toml import written

MACHINE = Host(tuple(range(16)), 64 << 30)
UNITS = REPO / "units"
SETTINGS = "programs.slicer.settings"


def made(settings: dict[str, Any] | None = None, **options: object) -> dict[str, Any]:
    """What the module sets, from the settings and the other options of programs.slicer. Raises Refused."""
    said = {"enable": True, "settings": settings or {}, **options}
    found: dict[str, Any] = evaluate("machine.nix", given={"programs": {"slicer": said}})
    return found


def refused(settings: dict[str, Any]) -> str:
    with pytest.raises(Refused) as error:
        made(settings)
    return str(error.value)


def read(directory: Path, settings: dict[str, Any]) -> Config:
    """The configuration that slicer reads from the file that comes out."""
    (directory / "config.toml").write_text(written(settings))
    return load({"HOME": str(directory)}, MACHINE, system_dir=str(directory))


@pytest.mark.parametrize("path", evaluation.FILES, ids=lambda path: str(path.name))
def test_every_file_is_nix(path: Path) -> None:  # K5
    assert evaluation.run("--parse", path)


def test_enable_is_all_it_takes() -> None:  # K5
    found = made()
    assert found["failed"] == []
    assert found["packages"] == found["unitPackages"] == ["slicer"]
    assert found["etc"] == []  # slicer's own defaults hold
    assert found["slices"] == {}
    assert sorted(found["services"]) == ["slicer-catalog", "slicer-queues"]
    assert found["services"]["slicer-queues"] == {"wantedBy": ["multi-user.target"]}  # U16
    assert found["userServices"] == {"slicer-queues": {"wantedBy": ["default.target"]}}
    (place,) = found["fileSystems"]  # the same as of `slicer install`
    unit = (Path(__file__).parents[3] / "units/system/run-slicer.users.mount").read_text()
    assert place == PUBLIC_DIRS[1]
    assert f"\nWhere={place}\n" in unit
    assert f"\nOptions={','.join(found['fileSystems'][place]['options'])}\n" in unit


def test_disabled_it_sets_nothing() -> None:  # K5
    found = made({"slots": {"cpu": 3}}, enable=False)
    assert not any(found.values()), found


def test_journalctl_finds_the_catalog_of_the_package() -> None:  # K5, K7
    found = made()
    # The one of the two directories that systemd's package on NixOS does not replace by its own.
    (place,) = found["tmpfiles"]["10-slicer"]
    assert (os.path.dirname(place), place[-8:]) == ("/usr/local/lib/systemd/catalog", ".catalog")
    assert place not in [action.destination for action in plan().actions]  # `slicer doctor` looks at those
    (link,) = found["tmpfiles"]["10-slicer"][place].items()
    assert link == ("L+", {"argument": "/nix/store/none-slicer/lib/systemd/catalog/slicer.catalog"})
    service = found["services"]["slicer-catalog"]
    assert service["serviceConfig"]["ExecStart"].endswith("/bin/journalctl --update-catalog")
    assert service["restartTriggers"] == ["/nix/store/none-slicer", "false"]


def test_every_key_of_a_configuration_is_an_option_and_nothing_else_is() -> None:  # K5
    names = {option["name"].replace('"', "") for option in evaluate("options.nix")}
    below = {name.removeprefix(f"{SETTINGS}.") for name in names if name.startswith(f"{SETTINGS}.")}
    profile = {f"profiles.<name>.{key}" for key in (*check.OWN_KEYS, *KEYS)}
    tables = {f"{table}.{key}" for table, keys in TABLES.items() for key in keys}
    slices = {f"slices.{name}" for name in SLICES}
    slices |= {f"slices.{name}.{key}" for name in SLICES for key in SLICE_KEYS}
    route = {f"routes.<name>.{key}" for key in (*routes.KEYS, *MODES, "to")}
    ways = {*(f"{mode}.{key}" for mode in MODES for key in routes.DESTINATION_KEYS)}
    ways |= {f"to.<name>.{key}" for key in routes.TO_KEYS}
    route |= {f"routes.<name>.{key}" for key in ways}
    server = {f"serve.<name>.{key}" for key in SERVE_KEYS}
    engine = {"engine.slurm", *(f"engine.slurm.{key}" for key in (*slurm.KEYS, "profiles"))}
    engine |= {f"engine.slurm.profiles.<name>.{key}" for key in slurm.PROFILE_KEYS}
    assert below == {*check.TOP_KEYS, *tables, *slices, *profile, *route, *server, *engine}


def test_a_property_is_described_with_the_directive_that_slicer_sets() -> None:  # K5
    options = evaluate("options.nix")
    descriptions = {option["name"].rpartition(".")[2]: option["description"] for option in options}
    for key in KEYS:
        assert descriptions[key].startswith(f"`{find_key(key).name}=`: "), key


def test_the_module_knows_the_built_in_profiles() -> None:  # K5
    for name in builtin_profiles(MACHINE, 1):
        assert made({"profiles": {"mine": {"inherits": name}}, "default_profile": name})["failed"] == []


WHOLE: dict[str, Any] = {
    "default_profile": "train",
    "compat_gpu_lock": "/tmp/gpu.lock",
    "slots": {"cpu": 3, "license-matlab": 2},
    "gpu": {"idle_threshold": "100M", "margin": "1G", "spike_buffer": "5%"},
    "waiting": {"reserve_after": "10m"},
    "logs": {"max_size": "1G", "keep": "90d"},
    "history": {"keep": "2y"},
    "slices": {"gpu": {"memory_max": "60G"}},
    "engine": {
        "slurm": {
            "partition": "main", "gib_per_shard": 2, "arguments": ["--account=lab"],
            "profiles": {"heavy": {"qos": "long"}},
        },
    },
    "profiles": {
        "train": {
            "inherits": "gpu",
            "vram": "20G",
            "gpu": [0, 1],
            "gpus": 1,
            "memory_max": "80%",
            "io_read_bandwidth_max": ["/dev/sda 10M"],
            "timeout": "12h",
            "then": "fail",
            "max_wait": "2h",
            "env": {"WANDB_MODE": "offline", "WORKERS": 4, "TERM": False},
        },
        "heavy": {"cpu_quota": "400%"},
        "as_it_was": {"inherits": "light"},
    },
    "routes": {
        "whisper": {
            "probe": ["duration", "size"],
            "threshold": ["1h", "2G"],
            "input": -1,
            "gpu": {"args": ["--device", "cuda"], "max_jobs": 2, "vram": "10G", "replace": {"--fp16": False}},
            "cpu": {},  # a destination all the same
        },
        "pages": {"probe": "count", "to": {"few": {"mode": "cpu", "up_to": 10}, "many": {"mode": "gpu"}}},
    },
    "serve": {
        "ollama": {
            "kind": "ollama", "command": ["ollama", "serve"], "env": {"OLLAMA_KEEP_ALIVE": "-1"},
            "profile": "train", "give_way": False,
        },
    },
}  # fmt: skip


def test_the_file_says_what_the_options_say_and_slicer_reads_it(tmp_path: Path) -> None:  # K5
    found = made(WHOLE)
    assert found["etc"] == ["slicer/config.toml"]
    assert found["failed"] == []
    assert found["settings"] == WHOLE
    config = read(tmp_path, found["settings"])
    assert (config.default_profile, config.slots["cpu"], config.margin_mib) == ("train", 3, 1024)
    train = config.profile("train")
    assert (train.vram_mib, train.gpus, train.gpu_choice, train.timeout_s) == (20480, 1, ("0", "1"), 43200)
    assert train.env == {"WANDB_MODE": "offline", "WORKERS": "4"}
    found_routes = routes.load(config).values()
    destinations = {route.name: [each.name for each in route.destinations] for route in found_routes}
    assert destinations == {"pages": ["few", "many"], "whisper": ["gpu", "cpu"]}
    (server,) = serve.load(config).values()
    assert (server.command, server.profile, server.give_way) == (("ollama", "serve"), "train", False)


def test_what_is_not_said_is_not_in_the_file() -> None:  # K5
    found = made({"profiles": {"train": {"memory_max": "8G", "timeout": None}}, "slots": {"cpu": None}})
    assert found["settings"] == {"profiles": {"train": {"memory_max": "8G"}}}


def test_a_key_of_a_later_slicer_gets_through() -> None:  # K5
    later = {"profiles": {"train": {"later": [1]}}, "later": {"on": True}, "slices": {"disk": {"later": 3}}}
    assert made(later)["settings"] == later


POLICY: dict[str, Any] = {
    "half_life": "3d", "patience": "infinity", "fence": "on", "devices": ["/dev/nvidia-modeset"],
    "allow_services": True, "on_idle": "stop", "user_uids": "108000-119999, 300000",
    "preemptible_free": True, "max_min_run": "30m",
    "default": {"max_gpus": 2, "max_hold": "24h", "idle_timeout": "1h"},
    "users": {
        "alice": {"max_gpus": "infinity", "max_vram": "infinity", "max_priority": "infinity", "weight": 2},
    },
    "groups": {
        "phd": {"max_vram": "40G", "max_cpu_slots": 0, "max_priority": 5, "max_waiting": 9, "weight": 0.5},
        "lab": {"together": {"max_gpus": 3, "max_vram": "96G"}},
    },
}  # fmt: skip


def test_the_broker_is_its_socket_and_a_policy_that_it_reads() -> None:  # K5, L1
    assert made()["sockets"] == {}
    found = made(broker={"enable": True})
    assert found["sockets"] == {"slicer-broker": {"wantedBy": ["sockets.target"]}}
    assert found["services"]["slicer-broker"] == {"stopIfChanged": False}  # N2: the socket stays
    assert (found["etc"], found["failed"]) == ([], [])  # no caps, and equal shares
    found = made(broker={"enable": True, "policy": POLICY})
    assert found["etc"] == ["slicer/policy.toml"]
    assert {key: value for key, value in found["policy"].items() if value} == POLICY
    said = policy_text.read(written(found["policy"]).encode(), "policy.toml")
    policy, _ = policy_text.resolve(said, {"alice": 1001}, {"phd": 2001, "lab": 2002})
    assert (policy.default.max_gpus, policy.default.max_hold_s) == (2, 86400.0)
    assert (policy.default.idle_timeout_s, policy.on_idle) == (3600.0, "stop")
    assert policy.users[1001].max_gpus == policy.users[1001].max_vram_mib == NO_CAP
    assert (policy.weights, policy.user_weights) == ({2001: 0.5}, {1001: 2.0})
    assert policy.groups[2001] == Caps(None, 40960, 0, 5, None, 9)
    assert policy.together == {2002: Together("lab", 3, 98304)}


def test_every_key_of_a_policy_is_an_option_and_nothing_else_is() -> None:  # K5
    names = {option["name"] for option in evaluate("options.nix")}
    top = "programs.slicer.broker.policy."
    below = {name.removeprefix(top) for name in names if name.startswith(top)}
    caps = tuple(policy_text.CAPS)
    places = {
        "default": caps, "users.<name>": (*caps, "weight"), "groups.<name>": (*caps, "weight", "together"),
        "groups.<name>.together": policy_text.OF_ALL,
    }  # fmt: skip
    assert below == {*policy_text.TOP_KEYS, *(f"{at}.{key}" for at, keys in places.items() for key in keys)}


def test_a_wrong_policy_is_refused_before_the_broker_reads_it() -> None:  # K5
    wrongs = {"default": {"max_gpu": 2}}, {"users": {"a": {"max_hold": "0"}}}, {"fence": "yes"}, {"x": 1}
    for wrong in wrongs:
        with pytest.raises(Refused):
            made(broker={"enable": True, "policy": wrong})
    (message,) = made(broker={"policy": POLICY})["failed"]
    assert "nothing keeps it without broker.enable" in message


def test_a_closed_shop_is_what_install_makes_of_it() -> None:  # X1
    (message,) = made(broker={"closedShop": True})["failed"]
    assert "without broker.enable" in message
    found = made(broker={"enable": True, "closedShop": True})
    assert found["failed"] == []
    drop_in = closed_shop.drop_in("user.slice").decode()
    lines = [line for line in drop_in.splitlines() if line.startswith("Device")]
    shown = found["slices"]["user"]["sliceConfig"]
    allowed = [f"DeviceAllow={each}" for each in shown["DeviceAllow"]]
    assert [*allowed, f"DevicePolicy={shown['DevicePolicy']}"] == lines
    assert found["slices"]["user"]["overrideStrategy"] == "asDropin"
    # Something has to start, for systemd to give the rules to who is logged in.
    triggers = [each["services"]["slicer-catalog"]["restartTriggers"] for each in (found, made())]
    assert triggers[0] != triggers[1]


CHAT: dict[str, Any] = {
    "kind": "openai", "listen": ["127.0.0.1:8000", "[::1]:8000", "unix:/run/chat.sock"],
    "upstream": "http://127.0.0.1:8001", "drain": "5m", "release_timeout": 60,
}  # fmt: skip
PODMAN = ["podman", "run", "-p", "${PORT}:80", "x"]
SERVERS: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "code": {**CHAT, "upstream": "http://10.0.0.7:80"},
    "ollama": {"kind": "ollama", "command": ["/bin/ollama", "serve"]},
    "outside": {"kind": "raw", "listen": ["10.0.0.7:80"], "public": True, "command": PODMAN},
}


@pytest.mark.parametrize("name", ["chat", "ollama", "outside"])
def test_a_server_has_the_units_that_install_would_write(name: str, tmp_path: Path) -> None:  # B6, S9
    found = made({"serve": SERVERS}, serve=[name])
    assert found["failed"] == []
    config = read(tmp_path, found["settings"])
    server = serve.find(config, name)
    beside = (serve.find(config, "code"),) if name == "chat" else ()
    units = serve_units.Units(name, (server, *beside), "/nix/store/none-slicer/bin/slicer", is_user=False)
    socket = found["sockets"].pop(f"slicer-serve-{name}")
    assert found["sockets"] == {}
    shown = {"ListenStream": socket["listenStreams"], **socket["socketConfig"]}
    assert said(shown) == lines(serve_units.socket_text(units), "Socket")
    service = found["services"][f"slicer-serve-{name}"]
    wanted = lines(serve_units.service_text(units), "Service")
    wanted.pop("ExecStopPost")  # a store path does not go while a unit names it
    shown = said(service["serviceConfig"])
    for each in (shown, wanted):
        each.pop("TimeoutStopSec")
    assert shown == wanted


def said(config: dict[str, Any]) -> dict[str, list[str]]:
    """Settings of a unit as its lines have them."""
    flags = {True: "yes", False: "no"}
    return {
        key: [flags.get(each, str(each)) if isinstance(each, bool) else str(each) for each in found]
        for key, value in config.items()
        if (found := value if isinstance(value, list) else [value])
    }


def lines(text: str, section: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.partition(f"[{section}]\n")[2].partition("\n[")[0].splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_the_board_and_the_metrics_are_units_of_the_package_that_are_switched_on() -> None:  # U13, X8
    nothing = made()
    assert "slicer-web" not in nothing["sockets"]
    wanted = {"enable": True, "directory": "/srv/m"}
    found = made(broker={"enable": True}, web={"enable": True}, metrics=wanted)
    assert found["failed"] == []
    assert found["sockets"]["slicer-web"]["wantedBy"] == ["sockets.target"]
    assert found["timers"]["slicer-metrics"]["wantedBy"] == ["timers.target"]
    service = found["services"]["slicer-metrics"]
    assert service["environment"]["DIRECTORY"] == "/srv/m"
    assert service["serviceConfig"]["ReadWritePaths"] == ["-/srv/m"]
    (message,) = made(web={"enable": True})["failed"]
    assert "Set broker.enable" in message


def test_a_stop_of_a_server_may_take_what_the_configuration_allows() -> None:  # B6
    found = made({"serve": SERVERS}, serve=["ollama", "chat"])["services"]
    assert found["slicer-serve-ollama"]["serviceConfig"]["TimeoutStopSec"] == "30s 30s 20s"
    # systemd adds these up, and a number is of seconds.
    assert found["slicer-serve-chat"]["serviceConfig"]["TimeoutStopSec"] == "5m 60 5m 60 20s"


def test_a_server_that_there_is_not_is_refused() -> None:  # B6
    (message,) = made({"serve": SERVERS}, serve=["olama"])["failed"]
    assert 'there is no server "olama" in' in message
    (message,) = made({"serve": SERVERS}, serve=["chat", "code"])["failed"]
    assert "of several servers at one address name one" in message


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"slots": {"cpu": "four"}}, "slots.cpu", "whole number, 1 or more"),
    ({"slots": {"license-matlab": "two"}}, "slots.license-matlab", "whole number, 1 or more"),
    ({"compat_gpu_lock": "gpu.lock"}, "compat_gpu_lock", "absolute path"),
    ({"gpu": {"spike_buffer": 10}}, "gpu.spike_buffer", 'percentage from 0% to 100% such as "10%"'),
    ({"slices": {"gpu": {"memory_max": 60}}}, "slices.gpu.memory_max", '1M or more'),
    ({"profiles": {"x": {"memory_max": "8GB"}}}, "profiles.x.memory_max", 'size such as "8G"'),
    ({"profiles": {"x": {"cpu_weight": 0}}}, "profiles.x.cpu_weight", "whole number from 1 to 10000"),
    ({"profiles": {"x": {"timeout": "soon"}}}, "profiles.x.timeout", "a duration such as"),
    ({"profiles": {"x": {"slice": "gpu.slice"}}}, "profiles.x.slice", 'one of "cpu", "gpu"'),
    ({"profiles": {"x": {"env": {"A": True}}}}, "profiles.x.env.A", "false to remove an inherited"),
    ({"serve": {"x": {"kind": "olama"}}}, "serve.x.kind", 'one of "ollama", "openai"'),
    ({"serve": {"x": {"command": "ollama serve"}}}, "serve.x.command", "list of texts"),
    ({"routes": {"x": {"exit_code": 0}}}, "routes.x.exit_code", "whole number from 1 to 255"),
    ({"routes": {"x": {"cpu": {"args": "-v"}}}}, "routes.x.cpu.args", "list of texts"),
    ({"profiles": {"x": {"later": None}}}, "profiles.x.later", "TOML value"),
]


@pytest.mark.parametrize(("settings", "option", "expected"), WRONG, ids=[option for _, option, _ in WRONG])
def test_a_wrong_value_is_refused_with_what_was_expected(
    settings: dict[str, Any], option: str, expected: str
) -> None:  # K5
    said = refused(settings)
    assert f"`{SETTINGS}.{option}'" in said
    assert expected in said


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"default_profile": "trian"}, 'default_profile: there is no profile "trian" (known: gpu, heavy, light'),
    ({"profiles": {"a": {"inherits": "b"}}}, 'profiles.a.inherits: there is no profile "b" (known: a, gpu,'),
    ({"profiles": {"a b": {}}}, '"a b" is not a valid profile name'),
    ({"profiles": {"a": {"timeout": 1, "runtime_max": 2}}}, "profiles.a: timeout and runtime_max are the"),
    ({"profiles": {"a": {"gpus": 0, "vram": "8G"}}}, "profiles.a: gpus = 0 contradicts vram and gpu"),
    ({"profiles": {"a": {"gpus": 3, "gpu": [0, 1]}}}, "profiles.a: gpus = 3 is more than gpu names"),
]


@pytest.mark.parametrize(("settings", "expected"), CONTRADICTIONS, ids=[said for _, said in CONTRADICTIONS])
def test_a_contradiction_is_refused_as_slicer_would(
    tmp_path: Path, settings: dict[str, Any], expected: str
) -> None:  # K5
    (said,) = made(settings)["failed"]
    assert said.startswith("programs.slicer.settings")
    assert expected in said
    with pytest.raises(Exception, match=r"config\.toml"):
        read(tmp_path, settings)


def test_delegation_to_users_is_that_of_the_drop_in() -> None:  # K5
    (drop_in,) = (UNITS / "system/user@.service.d").iterdir()
    _, _, delegated = drop_in.read_text().partition("\nDelegate=")
    found = made(userDelegation=True)["services"]["user@"]
    assert found == {"serviceConfig": {"Delegate": delegated.strip()}}


# For each key of a slice, spellings of which some are not systemd's own.
LIMITS: list[dict[str, Any]] = [
    {
        "cpu_weight": 80, "cpu_quota": "1200%", "allowed_cpus": [0, 1, 2, 8], "memory_high": "50G",
        "memory_max": "62.5%", "memory_swap_max": 0, "tasks_max": 4000, "io_weight": 80,
    },
    {
        "cpu_weight": "idle", "cpu_quota": "infinity", "allowed_cpus": "0-3,8", "memory_high": "51200M",
        "memory_max": 64424509440, "memory_swap_max": "infinity", "tasks_max": "10%",
    },
    {"cpu_quota": "37.5%", "allowed_cpus": "0 1", "memory_max": "1.5G", "tasks_max": "infinity"},
]  # fmt: skip


@pytest.mark.parametrize("limits", LIMITS, ids=["plain", "words", "fractions"])
@pytest.mark.parametrize("name", SLICES)
def test_a_slice_gets_the_limits_that_install_would_write(name: Any, limits: dict[str, Any]) -> None:  # K5
    found = made({"slices": {name: limits}})
    assert list(found["slices"]) == [name]
    assert found["slices"][name]["overrideStrategy"] == "asDropin"  # the slice itself is the package's file
    settled = slices.settled([Layer("config.toml", found["settings"], {})], MACHINE)
    drop_in = slice_limits.drop_in(name, settled[name], user=False).decode()
    wanted = dict(line.split("=", 1) for line in drop_in.splitlines() if "=" in line and line[0] != "#")
    assert {key: meant(key, text) for key, text in found["slices"][name]["sliceConfig"].items()} == {
        key: meant(key, text) for key, text in wanted.items()
    }


def meant(directive: str, text: str) -> object:
    """What systemd makes of a line of a unit file."""
    if directive == "CPUQuota" and not text:
        return INFINITY
    assert (directive, text) != ("CPUQuota", "infinity"), "only slicer knows this"
    return parse_property(directive, text, MACHINE, "").value
