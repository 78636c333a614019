"""slicer.toml(5) has every key there is, and each of its examples is right (X10)."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from slicer.config import build, profiles, serve, slices, slurm
from slicer.config.build import SETTINGS, SLICE_KEYS, TABLES, key_of
from slicer.config.check import OWN_KEYS, TOP_KEYS, TOP_SETTINGS
from slicer.config.profile_report import text_of
from slicer.config.properties import KEYS, find_key
from slicer.config.routes import DESTINATION_KEYS, TO_KEYS
from slicer.config.routes import KEYS as ROUTE_KEYS
from tests.unit.config.manual import SOURCE, described

UNITS = Path(__file__).parents[3] / "units" / "system"
# As a file has them: what they become has its unit in its name.
SERVE_KEYS = [key_of(name) for name in serve.Server.__annotations__ if name not in ("name", "sources")]
TOP, PROFILE, SLICE = "TOP LEVEL", "[profiles.NAME]", "[slices.gpu] and [slices.cpu]"
ROUTE, TO = "[routes.NAME]", "[routes.NAME.to.DESTINATION]"
DESTINATION = "[routes.NAME.gpu] and [routes.NAME.cpu]"
SERVER = "[serve.NAME]"
SLURM = "[engine.slurm]"


DOCUMENTED = described(SOURCE)


def test_every_key_is_documented_and_no_other() -> None:
    known = [(TOP, key) for key in TOP_SETTINGS]
    known += [(f"[{table}]", key) for table, keys in TABLES.items() for key in keys]
    known += [(PROFILE, key) for key in (*OWN_KEYS, *KEYS)]
    known += [(SLICE, key) for key in SLICE_KEYS]
    known += [(ROUTE, key) for key in ROUTE_KEYS]
    known += [(DESTINATION, key) for key in DESTINATION_KEYS if (ROUTE, key) not in known]
    known += [(TO, key) for key in TO_KEYS if key not in DESTINATION_KEYS]
    known += [(SERVER, key) for key in SERVE_KEYS]
    known += [(SLURM, key) for key in slurm.KEYS]
    assert sorted(DOCUMENTED) == sorted(known)


def test_there_is_no_table_that_has_no_keys_here() -> None:
    assert set(TOP_KEYS) == {*TOP_SETTINGS, *TABLES, "slices", "profiles", "routes", "serve", "engine"}


@pytest.mark.parametrize("key", KEYS)
def test_each_limit_names_systemds_own_property(key: str) -> None:
    assert DOCUMENTED[PROFILE, key].text.startswith(f"{find_key(key).name}: ")


def load(path: Path, text: str) -> profiles.Config:
    path.write_text(text, encoding="utf-8")
    environ = {"HOME": str(path.parent), "SLICER_CONFIG": str(path)}
    return profiles.load(environ, profiles.host(), system_dir=str(path.parent / "none"))


ROUTES = [place for place in DOCUMENTED if place[0] in (ROUTE, DESTINATION, TO)]
SERVERS = [place for place in DOCUMENTED if place[0] == SERVER]


OTHERS = [place for place in DOCUMENTED if place not in (*ROUTES, *SERVERS)]


@pytest.mark.parametrize(("table", "key"), OTHERS)
def test_its_example_is_what_a_file_may_say(table: str, key: str, tmp_path: Path) -> None:
    example = DOCUMENTED[table, key].example
    assert example.partition(" = ")[0] == key
    small = "[slots]\nlicense-matlab = 2\n[profiles.small]\n"
    head = {TOP: "", PROFILE: small, SLICE: "[slices.gpu]\n"}.get(table, f"{table}\n")
    rest = "\n[profiles.small]\n" if table == TOP else ""
    config = load(tmp_path / "slicer.toml", head + example + rest)
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
    example = DOCUMENTED[table, key].example
    assert example.partition(" = ")[0] == key
    said = example.replace("\\", "")
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
    example = DOCUMENTED[SERVER, key].example
    assert example.partition(" = ")[0] == key
    beside = {"kind": 'kind = "ollama"', "upstream": 'upstream = "http://127.0.0.1:11435"'}
    beside.pop(key, None)
    text = "\n".join(["[serve.some]", *beside.values(), example.replace("\\", "")])
    assert serve.load(load(tmp_path / "slicer.toml", text + "\n[profiles.llm]\ngpus = 1\n"))


def test_the_defaults_are_those_that_it_says() -> None:
    places = [(f"[{path.rpartition('.')[0]}]" if "." in path else TOP, path) for path in SETTINGS]
    rows = {(table, path.rpartition(".")[2]): SETTINGS[path] for table, path in places}
    rows |= {(PROFILE, key_of(field)): row for field, row in build.PROFILE.items()}
    rows |= {(SERVER, key_of(field)): row for field, row in serve.ROWS.items()}
    for place, (kind, value) in rows.items():
        text = text_of(kind, value)
        in_words = place[1] in ("slice", "grace") or value in ((), {}, "", False) or text in ("", "none")
        if not in_words:
            assert DOCUMENTED[place].default.strip('"') == text, place
    for key in ("cpu_weight", "io_weight"):
        directive = find_key(key).name
        units = {name: (UNITS / f"{name}.slice").read_text(encoding="utf-8") for name in ("gpu", "cpu")}
        found = {name: re.findall(rf"^{directive}=(.*)", text, re.M) for name, text in units.items()}
        assert DOCUMENTED[SLICE, key].default == f"{found['gpu'][0]} for gpu, {found['cpu'][0]} for cpu"


def test_the_example_at_its_end_is_a_configuration(tmp_path: Path) -> None:
    block = re.search(r"^::\n\n((?:    .*\n|\n)+)", SOURCE.read_text(encoding="utf-8"), re.M)
    assert block
    config = load(tmp_path / "slicer.toml", textwrap.dedent(block[1]))
    train = config.profile("train")
    assert (train.gpus, train.vram_mib, train.margin_mib) == (1, 20480, 1024)
