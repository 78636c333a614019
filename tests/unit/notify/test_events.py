"""Which events an outcome is, and what a configuration says of them."""

from __future__ import annotations

import pytest

from slicer.config import notify_keys
from slicer.config.build import SETTINGS, Said
from slicer.config.notify_keys import settle, table, words
from slicer.errors import ConfigError, SlicerError, UsageError
from slicer.model import Notify, Outcome
from slicer.notify.events import events_of, variables
from slicer.record import replace
from tests.unit.made_up import outcome

COMMAND = Notify(("failed",), ("tell",), (), desktop=False)


@pytest.mark.parametrize(
    ("fields", "events"),
    [
        ({"exit_code": 0, "reason": "exited"}, {"done"}),
        ({"exit_code": 3, "reason": "exited"}, {"failed"}),
        ({"exit_code": 137, "reason": "oom-kill"}, {"failed", "oom"}),
        ({"exit_code": 124, "reason": "timeout"}, {"failed"}),
        ({"exit_code": 143, "reason": "stopped", "ended_by": "systemd"}, {"failed"}),
        ({"exit_code": 143, "reason": "stopped", "ended_by": "slicer stop"}, set()),
        ({"exit_code": 130, "reason": "signal", "ended_by": "terminal"}, set()),
    ],
)
def test_an_end_that_the_user_meant_is_not_told(fields: dict[str, object], events: set[str]) -> None:  # U3
    made: Outcome = outcome(**fields)
    assert events_of(made) == events


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("failed", ("failed",)),
        ("done, failed,desktop", ("done", "failed", "desktop")),
        (["oom", "queue-done"], ("oom", "queue-done")),
        ("off", ("off",)),
    ],
)
def test_words(said: object, found: tuple[str, ...]) -> None:  # U3
    assert words((said, "--notify", UsageError)) == found


@pytest.mark.parametrize("said", ["", "nope", [], [3], 3, True, "off,done", ["done", ""]])
def test_bad_words_are_refused_with_their_place(said: object) -> None:  # U3
    with pytest.raises(ConfigError) as caught:
        words((said, "/etc/slicer/config.toml:3", ConfigError))
    assert caught.value.where == "/etc/slicer/config.toml:3"


def read(said: dict[str, object]) -> Notify | None:
    """The table of a file that says this."""
    entries = {f"notify.{key}": (value, "config.toml:1", ConfigError) for key, value in said.items()}
    found = Said(entries).read({name: row for name, row in SETTINGS.items() if name.startswith("notify.")})
    return table(*found.values())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("command", ""), ("command", []), ("command", "tell 'it"), ("command", ["a\0"]), ("command", 3),
        ("urls", "ntfy://topic"), ("urls", ["topic"]), ("urls", [3]), ("on", "nope"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused(key: str, value: object) -> None:  # U3
    with pytest.raises(ConfigError, match=rf"^config.toml:1: notify\.{key}: "):
        read({key: value})


def test_a_table() -> None:  # U3
    said = {"on": ["failed", "desktop"], "command": "tell --to 'a b'", "urls": ["ntfy://topic"]}
    assert read(said) == Notify(("failed",), ("tell", "--to", "a b"), ("ntfy://topic",), desktop=True)
    assert read({}) is None


@pytest.mark.parametrize(
    ("said", "around", "found"),
    [
        (None, None, None),
        (None, COMMAND, COMMAND),
        (("off",), COMMAND, None),
        (("done",), COMMAND, replace(COMMAND, on=("done",))),
        (("desktop",), COMMAND, replace(COMMAND, desktop=True)),
        (("desktop",), None, Notify(("done", "failed"), (), (), desktop=True)),
    ],
)
def test_what_is_nearer_counts(
    said: tuple[str, ...] | None, around: Notify | None, found: Notify | None
) -> None:  # U3
    assert settle(said, around) == found


def test_somebody_must_be_there_to_be_told() -> None:  # U3
    with pytest.raises(SlicerError, match="there is no destination") as caught:
        settle(("done",), None, "--notify")
    assert caught.value.where == "--notify"
    assert "[notify]" in caught.value.hint


def test_variables_are_plain_values() -> None:  # U3
    event = {"event": "done", "exit_code": 0, "gpus": [0], "signal": None, "name": "a\0b"}
    assert variables(event) == {"SLICER_EVENT": "done", "SLICER_EXIT_CODE": "0", "SLICER_NAME": "ab"}
    assert set(notify_keys.EVENTS) >= {"done", "failed"}
