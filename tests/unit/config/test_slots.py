"""Slots in the configuration: how many there are of which name, and what a profile takes of them (K3)."""

from __future__ import annotations

import pytest

from slicer.config import profile_report
from slicer.config.profiles import Overrides
from slicer.errors import SlicerError, UsageError
from tests.unit.config.machine import Machine

FILE = """
[slots]
cpu = 3
matlab = 2
"ocr.x" = 1

[profiles.solve]
inherits = "heavy"
slots = { matlab = 1 }

[profiles.more]
inherits = "solve"
slots = { "ocr.x" = 1, cpu = 2 }

[profiles.none]
inherits = "more"
slots = { matlab = 0, cpu = 0 }
"""


def test_each_name_has_its_number_and_its_source(machine: Machine) -> None:
    etc = machine.system(FILE)
    machine.write(machine.user, "[slots]\nmatlab = 5\n")
    config = machine.load()
    assert config.slots == {"cpu": 3, "matlab": 5, "ocr.x": 1}
    assert config.sources["slots.ocr.x"] == f"{etc}:5"
    assert "config.toml:2" in config.sources["slots.matlab"]
    machine.environ["CPU_RUN_SLOTS"] = "7"
    assert machine.load().slots == {"cpu": 7, "matlab": 5, "ocr.x": 1}
    shown = {row.name: row.value for row in profile_report.general_settings(config)}
    assert (shown["slots.cpu"], shown["slots.matlab"], shown["slots.ocr.x"]) == ("3", "5", "1")


@pytest.mark.parametrize(
    ("name", "said", "slots"),
    [
        ("solve", {}, {"cpu": 1, "matlab": 1}),
        ("more", {}, {"cpu": 2, "matlab": 1, "ocr.x": 1}),
        ("none", {}, {"ocr.x": 1}),
        ("light", {"slots": ("matlab", "ocr.x=1")}, {"matlab": 1, "ocr.x": 1}),
        ("solve", {"slots": ("matlab=2",)}, {"cpu": 1, "matlab": 2}),
        ("solve", {"slots": ("matlab=0", "cpu=3")}, {"cpu": 3}),
        ("solve", {"cpu_slots": "0"}, {"matlab": 1}),
        ("light", {"slots": ("cpu",)}, {"cpu": 1}),
    ],
)
def test_what_is_said_last_counts_name_by_name(
    machine: Machine, name: str, said: dict[str, object], slots: dict[str, int]
) -> None:
    machine.system(FILE)
    assert machine.profile(name, **said).slots == slots


def test_each_value_is_shown_with_its_source(machine: Machine) -> None:
    etc = machine.system(FILE)
    config = machine.load()
    rows = profile_report.settings(config, "more", Overrides(slots=("ocr.x",)))
    found = {row.name: (row.value, row.source) for row in rows if "slots" in row.name}
    assert found == {
        "cpu_slots": ("2", f"{etc}:13"), "slots.matlab": ("1", f"{etc}:9"), "slots.ocr.x": ("1", "--slot"),
    }  # fmt: skip
    summary = next(row for row in profile_report.summaries(config) if row.name == "more")
    assert (summary.cpu_slots, summary.slots) == (2, {"matlab": 1, "ocr.x": 1})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"slots": ("mathlab",)},
            "--slot: there is no slot named 'mathlab' (did you mean \"matlab\"? known: cpu, matlab, "
            "ocr.x; [slots] in the configuration names them)",
        ),
        ({"slots": ("x" * 65,)}, "--slot: 'xxx"),
        ({"slots": ("\x1b[31m",)}, "--slot: '\\x1b[31m' is not a valid slot name (up to 64 letters"),
        ({"slots": ("",)}, "--slot: '' is not a valid slot name"),
        ({"slots": ("=2",)}, "--slot: '' is not a valid slot name"),
        ({"slots": ("matlab=",)}, "--slot: expected a whole number such as 2, not ''"),
        ({"slots": ("matlab=-1",)}, "--slot: expected a whole number such as 2, not '-1'"),
        ({"slots": ("matlab=1=2",)}, "--slot: expected a whole number such as 2, not '1=2'"),
        ({"slots": ("matlab=99999999",)}, "--slot: "),
        ({"slots": ("matlab", "matlab")}, "--slot: matlab is listed twice (write --slot matlab=N once)"),
        ({"slots": ("cpu",), "cpu_slots": "1"}, "--slot: cpu is already set by --cpu-slots"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_with_its_remedy(
    machine: Machine, said: dict[str, object], message: str
) -> None:
    machine.system(FILE)
    with pytest.raises(SlicerError) as caught:
        machine.profile("light", **said)
    assert isinstance(caught.value, UsageError)
    assert str(caught.value).startswith(message)
