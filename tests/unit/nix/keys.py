"""nix/keys.json: the keys of the configuration files, from their tables and from the manual pages."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slicer.backend import serve_units
from slicer.broker.rules import policy_text
from slicer.config import check, metric_units, notify_keys, routes, serve, slurm
from slicer.config.build import SETTINGS, SLICE_KEYS, TABLES, builtin_profiles
from slicer.config.files import Layer
from slicer.config.properties import KEYS, find_key
from slicer.model import Host
from tests.machines.host import REPO
from tests.unit.config import test_documented as sections
from tests.unit.config.manual import PAGES, SOURCE, Described, described

if TYPE_CHECKING:
    from slicer.config.build import Kind

PATH = REPO / "nix/keys.json"

Rows = Mapping[str, list[object]]


def current() -> str:
    """The file as it should be: a key a line."""
    parts = [f"{json.dumps(name)}: {_written(value)}" for name, value in {**_tables(), **_lists()}.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _written(value: object) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{" + ",\n  ".join(f"{json.dumps(key)}: {_line(row)}" for key, row in value.items()) + "}"


def _line(row: object) -> str:
    return json.dumps(row, ensure_ascii=False)


def _lists() -> dict[str, object]:
    events = (*notify_keys.EVENTS, notify_keys.DESKTOP, notify_keys.OFF)
    return {
        "slice": {key: find_key(key).name for key in SLICE_KEYS},
        "slurmJobs": list(slurm.PROFILE_KEYS),
        "listens": {kind: [address] for kind, address in serve.LISTEN.items()},
        "containers": sorted(serve_units.CONTAINERS),
        "sandboxes": _sandboxes(),
        "together": list(policy_text.OF_ALL),
        "words": {"probes": metric_units.KINDS, "events": events},
        "builtinProfiles": sorted(builtin_profiles(Host((0,), 2**30), 1)),
    }


def _sandboxes() -> dict[str, dict[str, list[str]]]:
    """The settings of services that start no server ("alone"), that start one, and one in a container."""
    start = {"alone": "", "starting": 'command = ["s"]', "container": 'command = ["podman"]'}
    found = {}
    for name, command in start.items():
        text = f'[serve.s]\nkind = "raw"\nlisten = ["127.0.0.1:1"]\nupstream = "http://127.0.0.1:2"\n{command}'
        server = serve._server("s", [Layer("", tomllib.loads(text), {})])
        units = serve_units.Units("s", (server,), "/s", is_user=False)
        lines = serve_units.service_text(units).partition("\nTasksMax=512\n")[2].splitlines()
        settings: dict[str, list[str]] = {}
        for key, _, value in (line.partition("=") for line in lines if "=" in line):
            settings.setdefault(key, []).append(value)
        found[name] = settings
    return found


def _tables() -> dict[str, Rows]:
    page = described(SOURCE)
    properties = {key: find_key(key).kind for key in KEYS}
    top = {key: SETTINGS[key][0] for key in check.TOP_SETTINGS}
    found = {"top": _rows(page, top, sections.TOP)}
    for table, keys in TABLES.items():
        found[table] = _rows(page, {key: SETTINGS[f"{table}.{key}"][0] for key in keys}, f"[{table}]")
    found |= {
        "profile": _rows(page, {**check.OWN_KEYS, **properties}, sections.PROFILE),
        "route": _rows(page, routes.KEYS, sections.ROUTE),
        "destination": _rows(page, routes.DESTINATION_KEYS, sections.DESTINATION, sections.ROUTE),
        "to": _rows(page, {key: routes.TO_KEYS[key] for key in ("mode", "up_to")}, sections.TO),
        "serve": _rows(page, serve.KEYS, sections.SERVER),
        "slurm": _rows(page, slurm.KEYS, sections.SLURM),
    }
    page = described(PAGES / "slicer-policy.toml.5.rst")
    places = [place for place, _ in page]
    return found | {
        "caps": _rows(page, policy_text.CAPS, *places),
        "weight": _rows(page, {"weight": "user-weight"}, *places),
        "policy": _rows(page, policy_text.SETTINGS, *places),
    }


def _rows(page: Mapping[tuple[str, str], Described], kinds: Mapping[str, Kind], *sections: str) -> Rows:
    """A row for each key, which the first of these sections describes that has it."""
    found: dict[str, list[object]] = {}
    for key, kind in kinds.items():
        about = next(page[section, key] for section in sections if (section, key) in page)
        text = about.text.replace("\\(", "(")
        if key in KEYS and sections[0] == "[profiles.NAME]":
            text = text.replace(f"{find_key(key).name}: ", f"`{find_key(key).name}=`: ", 1)
        if about.default not in ("", '""', "none", "[]", "{}"):
            text += f" Default: {about.default}."
        example = tomllib.loads(about.example.replace("\\", ""))[key]
        found[key] = [kind, example, text]
    return found
