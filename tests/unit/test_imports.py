"""What is imported when: the layers of the pure core, the hot paths of ``slicer run`` and ``route``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import slicer
from tests.process.harness import Box
from tests.process.hot_path import BANNED, PLAIN, imported, imported_with_cache, surplus
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]
pytestmark = pytest.mark.both_pythons

SRC = str(Path(slicer.__file__).resolve().parents[1])
CORE = (
    "errors", "record", "model", "quantity", "kernel.signals", "state.statefile", "config.profiles",
    "config.properties", "placement.decision", "placement.capacity", "placement.forecast", "ledger.nesting",
    "ledger.tickets", "job.scope",
)  # fmt: skip
# Reached through their protocols, or not at all.
OUTSIDE = (
    "click",
    "pystemd",
    "psutil",
    "pynvml",
    "subprocess",
    "json",
    "sqlite3",
    "socket",
    "ctypes",
)


def loaded_by(statement: str) -> set[str]:
    """The modules of a clean interpreter after a statement."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {SRC!r}); {code}"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("name", CORE)
def test_the_pure_core_imports_nothing_that_acts(name: str) -> None:
    loaded = loaded_by(f"import slicer.{name}")
    assert f"slicer.{name}" in loaded
    assert loaded.isdisjoint(OUTSIDE)
    assert not {
        module for module in loaded if module.startswith(("slicer.cli", "slicer.backend.", "slicer.gpu"))
    }


def test_the_core_together_imports_no_class_machinery() -> None:
    loaded = loaded_by("; ".join(f"import slicer.{name}" for name in CORE))
    assert loaded.isdisjoint(BANNED)


def test_what_takes_the_hand_over_imports_no_class_machinery() -> None:  # U1, K8
    assert loaded_by("import slicer.detach.handover").isdisjoint(BANNED)


def test_a_status_imports_no_class_machinery() -> None:  # design: speed
    assert loaded_by("import slicer.cli.status_shown, slicer.cli.status_text").isdisjoint(BANNED)


# What only some queues need comes when they do: a queue of a few jobs is over in the time of its imports.
RARE = {
    "dataclasses", "difflib", "hashlib", "inspect", "psutil", "subprocess", "slicer.cli.queue.live",
    "slicer.cli.queue.detach", "slicer.detach.service", "slicer.queue.show.event_json",
    "slicer.config.property_names",
}  # fmt: skip


def test_a_quiet_queue_imports_only_what_every_queue_needs() -> None:  # design: speed
    loaded = loaded_by("import slicer.cli.queue.show, slicer.queue.loop")
    assert "slicer.queue.display" in loaded
    assert loaded & RARE == set()


# The public name, the name on the broker's wire, and the words of two pure machines that never meet.
TWO_MEANINGS = {"Lease": "api, model", "Usage": "broker, model", "Event": "job, queue", "Life": "job, serve"}


def test_a_class_name_means_one_thing() -> None:  # design: words
    sources = "\n".join(path.read_text() for path in Path(SRC, "slicer").rglob("*.py"))
    names = Counter(re.findall(r"^class (\w+)", sources, re.MULTILINE))
    assert {name for name, count in names.items() if count > 1} <= TWO_MEANINGS.keys()


def test_nothing_uses_select_2_which_knows_no_descriptor_above_1023() -> None:  # D14
    found = [str(path) for path in Path(SRC, "slicer").rglob("*.py") if "select.select(" in path.read_text()]
    assert not found


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


# What an import leaves in the way of a package that is not installed.
WITHOUT = """\
import sys
sys.modules.update(dict.fromkeys(
    f"slicer.{each}" for each in ("queue.engine.slurm", "report", "route", "serve", "web", "wrap")
))
from slicer.__main__ import main
main()
"""


def test_the_core_does_its_work_without_the_features(cli: Cli) -> None:  # design: seams
    def slicer(*words: str) -> str:
        line = [sys.executable, "-c", WITHOUT, *words]
        return subprocess.run(line, env=cli.environ, check=True, capture_output=True, text=True).stdout

    run = ("run", "--backend", "plain", "--profile", "heavy", "--name", "alone")
    assert slicer(*run, "echo", "done") == "done\n"
    assert "alone" in slicer("history")
    assert "alone" in slicer("show", "alone")
    assert '"servers": []' in slicer("status", "--json")
    assert slicer("stop", "--help").startswith("Usage: slicer stop")


# K8, design: speed. No timing: the list of modules is what keeps it quick.
@pytest.mark.parametrize("options", [(), ("--profile", "heavy"), ("-q", "--name", "x", "--timeout", "1h")])
def test_the_hot_path_of_a_plain_job_imports_what_it_needs(box: Box, options: tuple[str, ...]) -> None:
    found = imported(box, "--backend", "plain", *options, "--", "true")
    assert surplus(found, PLAIN) == set()
    assert {"slicer.job.supervisor", "slicer.ledger.ledger", "slicer.placement.decision"} <= found


ROUTE = """\
[routes.r]
probe = "size"
[routes.r.cpu]
"""


@pytest.fixture
def routed(box: Box) -> Box:
    (box.root / "config.toml").write_text(ROUTE)
    (box.root / "input").write_bytes(b"x" * 5000)
    box.env["SLICER_CONFIG"] = str(box.root / "config.toml")
    return box


# K8, C5: a binary may be wrapped with it. The second one inside a route only executes the command.
def test_the_hot_path_of_a_route_imports_what_it_needs(routed: Box) -> None:
    line = ("r", "--backend", "plain", "--", "true", str(routed.root / "input"))
    found = imported_with_cache(routed, *line, program="route")
    assert surplus(found, PLAIN) == set()
    assert {"slicer.job.supervisor", "slicer.route.deciding", "slicer.outcome.decisions"} <= found
    assert "slicer.route.relay" not in found


# K8: whose configuration has routes pays for their slots alone.
def test_a_job_of_no_route_imports_nothing_else_of_routes(routed: Box) -> None:
    found = imported_with_cache(routed, "--backend", "plain", "--slot", "cpu", "--", "true")
    assert surplus(found, PLAIN) == set()
    assert {name for name in found if "route" in name} == {"slicer.config.route_slots"}


def test_inside_a_route_next_to_nothing_is_imported(routed: Box) -> None:
    routed.env["SLICER_ROUTE"] = "r"
    found = imported(routed, "r", "--", "true", program="route")
    assert surplus(found, {"errno"}) == set()
    assert not {name for name in found if name.startswith(("slicer.config", "slicer.ledger", "slicer.gpu"))}
