"""The user is told how jobs ended, and nothing waits for that (U3)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.patience import until
from tests.process.harness import Box, Gate, kill
from tests.process.queue_box import QueueBox

pytestmark = pytest.mark.both_pythons


class Told:
    """A command that writes each event into a file, and the configuration that names it."""

    def __init__(self, root: Path, on: str, before: str = "") -> None:
        self._directory = root / "told"
        self._directory.mkdir()
        self._script = f"{before}cat >{root}/part.$$ && mv {root}/part.$$ {self._directory}/$$"
        self._config = root / "notify.toml"
        command = json.dumps(["sh", "-c", self._script])
        quiet = '[profiles.quiet]\nnotify = "off"\n'
        self._config.write_text(f"[notify]\non = {on}\ncommand = {command}\n{quiet}")
        self.env = {"SLICER_CONFIG": str(self._config)}

    def events(self, count: int) -> list[dict[str, Any]]:
        """The events, once there are so many; in no order."""
        until(lambda: len(list(self._directory.iterdir())) >= count, f"{count} events were told")
        return [json.loads(path.read_text()) for path in sorted(self._directory.iterdir())]


def test_a_failure_is_told_with_its_figures(box: Box) -> None:
    told = Told(box.root, '["failed"]')
    box.run("--name", "fine", "--", "true", env=told.env)
    box.run("--name", "train", "--", "sh", "-c", "exit 3", env=told.env)
    (event,) = told.events(1)
    (_, outcome) = sorted(box.outcomes(), key=lambda each: each.exit_code)
    assert (event["event"], event["job"], event["exit_code"]) == ("failed", outcome.job, 3)
    assert (event["title"], event["directory"]) == ("train: failed", str(box.root))
    assert event["command"] == "sh -c 'exit 3'"


@pytest.mark.parametrize(
    ("options", "event"),
    [(("--notify", "done"), "done"), (("--notify", "off"), ""), (("-p", "quiet"), ""), ((), "")],
    ids=["option", "off", "profile", "default"],
)
def test_what_is_nearer_counts(box: Box, options: tuple[str, ...], event: str) -> None:
    told = Told(box.root, '["failed"]')
    assert box.run(*options, "--", "true", env=told.env).returncode == 0
    box.run("--name", "last", "--", "false", env=told.env)
    found = [each["event"] for each in told.events(2 if event else 1)]
    assert sorted(found) == sorted(filter(None, [event, "failed"]))


def test_nothing_waits_for_one_that_hangs(box: Box) -> None:
    gate = Gate(box.root / "gate")
    told = Told(box.root, '["failed"]', before=f"read x <{gate.path}; ")
    done = box.run("-p", "heavy", "--", "false", env=told.env)  # until nobody has its output open
    assert done.returncode == 1
    assert not box.leases()
    assert box.run("-p", "heavy", "--", "true", env=told.env).returncode == 0  # with the one slot
    gate.open()
    assert told.events(1)[0]["event"] == "failed"
    box.assert_clean()


def test_an_end_by_the_users_own_hand_is_not_told(box: Box) -> None:
    told = Told(box.root, '["failed", "done"]')
    process = box.start("--name", "mine", "--", "sleep", "1000", env=told.env)
    until(lambda: any(lease.keeper for lease in box.leases()), "it runs")
    kill(process.pid, signal.SIGTERM)
    process.communicate()
    box.run("--name", "next", "--", "true", env=told.env)
    assert [event["name"] for event in told.events(1)] == ["next"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--notify", "nope"), "--notify: 'nope' is not one of "),
        (("--notify", "done"), "--notify: there is no destination"),
    ],
)
def test_bad_words_start_nothing(box: Box, options: tuple[str, ...], said: str) -> None:
    done = box.run(*options, "--", "touch", f"{box.root}/ran")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (box.root / "ran").exists()


def test_a_queue_tells_of_its_jobs_and_of_its_end(box: Box) -> None:
    queues = QueueBox(box)
    told = Told(box.root, '["failed"]')
    queues.write("[name=a] exit 5", "true")
    queues.run("--notify", "failed,queue-done", env=told.env)
    events = {event["event"]: event for event in told.events(2)}
    assert set(events) == {"failed", "queue-done"}
    assert (events["failed"]["name"], events["failed"]["exit_code"]) == ("a", 5)
    assert Path(events["failed"]["log"]).exists()
