"""slicer.toml(5) has every key there is, and each of its examples is right (X10)."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from slicer.config import profiles, serve, slices, slurm
from slicer.config.build import SLICE_KEYS, TABLES, TOP_SETTINGS
from slicer.config.check import OWN_KEYS, TOP_KEYS
from slicer.config.properties import KEYS, find_key
from slicer.config.routes import DESTINATION_KEYS, TO_KEYS
from slicer.config.routes import KEYS as ROUTE_KEYS
from slicer.config.values import key_of

SOURCE = Path(__file__).parents[3] / "docs" / "man" / "slicer.toml.5.rst"
UNITS = Path(__file__).parents[3] / "units" / "system"
# As a file has them: what they become has its unit in its name.
SERVE_KEYS = [key_of(name) for name in serve.Server.__annotations__ if name not in ("name", "sources")]
TOP, PROFILE, SLICE = "TOP LEVEL", "[profiles.NAME]", "[slices.gpu] and [slices.cpu]"
ROUTE, TO = "[routes.NAME]", "[routes.NAME.to.DESTINATION]"
DESTINATION = "[routes.NAME.gpu] and [routes.NAME.cpu]"
SERVER = "[serve.NAME]"
SLURM = "[engine.slurm]"


def _documented() -> dict[tuple[str, str], str]:
    """What is said of each key, by its table (as a section is called) and its name."""
    found = {}
    table = ""
    text = SOURCE.read_text(encoding="utf-8")
    for part in re.split(r"\n(?=[^\n]+\n=+\n)", text):
        table = part.lstrip("\n").partition("\n")[0]
        for key, about in re.findall(r"^\*\*(\w+)\*\* = (.*\n(?: +.*\n|\n(?= ))*)", part, re.M):
            found[table, key] = " ".join(about.split())
    return found


DOCUMENTED = _documented()
EXAMPLES = {each: re.search(r"Example: \*(.*?)\*(?= |$)", about) for each, about in DOCUMENTED.items()}


def test_every_key_is_documented_and_no_other() -> None:
    known = [(TOP, key) for key in TOP_SETTINGS]
    known += [(f"[{table}]", key) for table, keys in TABLES.items() for key in keys]
    known += [(PROFILE, key) for key in (*OWN_KEYS, *KEYS)]
    known += [(SLICE, key) for key in SLICE_KEYS]
    known += [(ROUTE, key) for key in ROUTE_KEYS]
    known += [(DESTINATION, key) for key in DESTINATION_KEYS if (ROUTE, key) not in known]
    known += [(TO, key) for key in TO_KEYS if key not in DESTINATION_KEYS]
    known += [(SERVER, key) for key in SERVE_KEYS]
    known += [(SLURM, key) for key in slurm.KEYS if key != "profiles"]
    assert sorted(DOCUMENTED) == sorted(known)


def test_there_is_no_table_that_has_no_keys_here() -> None:
    assert set(TOP_KEYS) == {*TOP_SETTINGS, *TABLES, "slices", "profiles", "routes", "serve", "engine"}


@pytest.mark.parametrize("key", KEYS)
def test_each_limit_names_systemds_own_property(key: str) -> None:
    assert f" {find_key(key).name}: " in DOCUMENTED[PROFILE, key]


def load(path: Path, text: str) -> profiles.Config:
    path.write_text(text, encoding="utf-8")
    environ = {"HOME": str(path.parent), "SLICER_CONFIG": str(path)}
    return profiles.load(environ, profiles.host(), system_dir=str(path.parent / "none"))


ROUTES = [place for place in DOCUMENTED if place[0] in (ROUTE, DESTINATION, TO)]
SERVERS = [place for place in DOCUMENTED if place[0] == SERVER]


OTHERS = [place for place in DOCUMENTED if place not in (*ROUTES, *SERVERS)]


@pytest.mark.parametrize(("table", "key"), OTHERS)
def test_its_example_is_what_a_file_may_say(table: str, key: str, tmp_path: Path) -> None:
    example = EXAMPLES[table, key]
    assert example, f"{key} has no example"
    assert example[1].partition(" = ")[0] == key
    small = "[slots]\nlicense-matlab = 2\n[profiles.small]\n"
    head = {TOP: "", PROFILE: small, SLICE: "[slices.gpu]\n"}.get(table, f"{table}\n")
    rest = "\n[profiles.small]\n" if table == TOP else ""
    config = load(tmp_path / "slicer.toml", head + example[1] + rest)
    if table == PROFILE:
        config.profile("small")
    if table == SLICE:
        (limit,) = slices.settled(config.layers, config.host)["gpu"]
        assert limit.name == find_key(key).name


# What a key of a route does not go without.
BESIDE = {
    "probe": ("threshold = 1",),
    "threshold": ('probe = "lines"',),
    "probe_command": ('probe = "command"', "threshold = 1"),
    "tokens_per_word": ('probe = "tokens"', "threshold = 1"),
}


@pytest.mark.parametrize(("table", "key"), ROUTES)
def test_an_example_for_a_route_is_what_a_file_may_say(table: str, key: str, tmp_path: Path) -> None:
    example = EXAMPLES[table, key]
    assert example, f"{key} has no example"
    assert example[1].partition(" = ")[0] == key
    said = example[1].replace("\\", "")
    beside = BESIDE.get(key, ('probe = "lines"', "threshold = 1"))
    last, first = ("gpu", "cpu") if key != "profile" else ("cpu", "gpu")
    text = "\n".join(("[routes.some]", *beside, f"[routes.some.{first}]", f"[routes.some.{last}]", ""))
    if table == ROUTE:
        text = text.replace("[routes.some]", f"[routes.some]\n{said}")
    if table == DESTINATION:
        text += said
    if table == TO:
        text = f'[routes.some]\nprobe = "lines"\n[routes.some.to.small]\n{said}\n'
        text += "" if key == "mode" else 'mode = "cpu"\n'
    assert load(tmp_path / "slicer.toml", text).layers


@pytest.mark.parametrize("key", [key for _, key in SERVERS])
def test_an_example_for_a_server_is_what_a_file_may_say(key: str, tmp_path: Path) -> None:
    example = EXAMPLES[SERVER, key]
    assert example, f"{key} has no example"
    assert example[1].partition(" = ")[0] == key
    beside = {"kind": 'kind = "ollama"', "upstream": 'upstream = "http://127.0.0.1:11435"'}
    beside.pop(key, None)
    text = "\n".join(["[serve.some]", *beside.values(), example[1].replace("\\", "")])
    assert serve.load(load(tmp_path / "slicer.toml", text + "\n[profiles.llm]\ngpus = 1\n"))


def test_the_defaults_of_servers_are_those_that_it_says() -> None:
    for field, (_, value) in serve.ROWS.items():
        key = key_of(field)
        if value in (None, [], {}) or key in ("upstream", "ready_path"):
            continue  # said in words
        shown = str(value).lower() if isinstance(value, bool) else f'"{value}"'
        assert f"(default: {shown})" in DOCUMENTED[SERVER, key]


def test_the_defaults_are_those_that_it_says() -> None:
    for name, value in profiles.POLICY_SETTINGS.items():
        table, _, key = name.partition(".")
        assert f'(default: "{value}")' in DOCUMENTED[f"[{table}]", key]
    assert f'(default: "{profiles.DEFAULT_PROFILE}")' in DOCUMENTED[TOP, "default_profile"]
    for key in ("cpu_weight", "io_weight"):
        directive = find_key(key).name
        units = {name: (UNITS / f"{name}.slice").read_text(encoding="utf-8") for name in ("gpu", "cpu")}
        found = {name: re.findall(rf"^{directive}=(.*)", text, re.M) for name, text in units.items()}
        assert f"(default: {found['gpu'][0]} for gpu, {found['cpu'][0]} for cpu)" in DOCUMENTED[SLICE, key]


def test_the_example_at_its_end_is_a_configuration(tmp_path: Path) -> None:
    block = re.search(r"^::\n\n((?:    .*\n|\n)+)", SOURCE.read_text(encoding="utf-8"), re.M)
    assert block
    config = load(tmp_path / "slicer.toml", textwrap.dedent(block[1]))
    train = config.profile("train")
    assert (train.gpus, train.vram_mib, train.margin_mib) == (1, 20480, 1024)
