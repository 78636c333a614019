"""A destination that fails, hangs or is flooded costs a warning in the journal, and no more."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from slicer.model import Notify
from slicer.notify import delivery
from slicer.outcome import journal
from tests.patience import until

EVENT = {
    "event": "failed", "job": "0123456789ab", "name": "train", "title": "train: failed", "text": "exit 1",
}  # fmt: skip


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the journal was told."""
    found: list[str] = []
    monkeypatch.setattr(journal, "event", lambda kind, *, message, **_: found.append(f"{kind}: {message}"))
    return found


def by(*command: str, urls: tuple[str, ...] = ()) -> Notify:
    return Notify(("failed",), command, urls, desktop=False)


def test_a_command_gets_the_event(tmp_path: Path, told: list[str]) -> None:  # U3
    script = f"cat >{tmp_path}/json; env >{tmp_path}/env"
    delivery.deliver(by("sh", "-c", script), EVENT, str(tmp_path))
    found: dict[str, Any] = json.loads((tmp_path / "json").read_text())
    assert found["v"] == 1
    assert found.items() >= EVENT.items()
    assert "SLICER_TEXT=exit 1\n" in (tmp_path / "env").read_text()
    assert not told


def test_a_command_has_no_signal_blocked(tmp_path: Path, told: list[str]) -> None:  # U3
    delivery.deliver(by("sh", "-c", f"grep SigBlk /proc/self/status >{tmp_path}/mask"), EVENT, str(tmp_path))
    assert int((tmp_path / "mask").read_text().split()[1], 16) == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("sh", "-c", "exit 7"), "the command sh failed with 7"),
        (("/nowhere/tell",), "the command /nowhere/tell failed with 1"),
        (("sh", "-c", "kill -9 $$"), "the command sh failed with -9"),
    ],
)
def test_a_failure_is_a_warning(
    tmp_path: Path, told: list[str], command: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:  # U3
    delivery.deliver(by(*command), EVENT, str(tmp_path))
    assert told == [f"untold: train: {said}"]
    capfd.readouterr()  # in slicer it goes to /dev/null


def test_one_that_hangs_is_ended_with_all_that_it_began(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # U3
    monkeypatch.setattr(delivery, "LIMIT_S", 0.3)
    script = f"sleep 1000 & echo $! $$ >{tmp_path}/pids; wait"
    delivery.deliver(by("sh", "-c", script), EVENT, str(tmp_path))
    assert told == ["untold: train: the command sh took longer than 0.3 s"]
    pids = (tmp_path / "pids").read_text().split()
    until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in pids), "all of it has ended")


def test_a_flood_is_cut_short_and_told_once(tmp_path: Path, told: list[str]) -> None:  # U3
    notify = by("sh", "-c", f"echo x >>{tmp_path}/count")
    for _ in range(delivery.MOST + 3):
        delivery.deliver(notify, EVENT, str(tmp_path))
    assert (tmp_path / "count").read_text().count("x") == delivery.MOST
    assert len(told) == 1
    assert told[0].startswith(f"untold: train: more than {delivery.MOST} messages within 60 s")


@pytest.mark.parametrize("content", [b"", b"{", b"[1e400, null]", b"[" * 50_000, b"[9e18]"])
def test_a_spoilt_record_of_messages_stops_none(tmp_path: Path, told: list[str], content: bytes) -> None:
    (tmp_path / "notified").write_bytes(content)
    delivery.deliver(by("touch", f"{tmp_path}/told"), EVENT, str(tmp_path))
    assert (tmp_path / "told").exists()


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_lies_there_is_not_followed(tmp_path: Path, told: list[str], kind: str) -> None:  # U3
    place = tmp_path / "notified"
    if kind == "link":
        place.symlink_to(tmp_path / "victim")
    else:
        os.mkfifo(place)
    delivery.deliver(by("touch", f"{tmp_path}/told"), EVENT, str(tmp_path))
    assert not (tmp_path / "victim").exists()
    assert not (tmp_path / "told").exists()
    assert told[0].startswith("untold: train: not sent: notified beside the history cannot be used: ")


def test_a_message_may_come_before_the_first_job_has_ended(tmp_path: Path, told: list[str]) -> None:  # U3
    delivery.deliver(by("touch", f"{tmp_path}/told"), EVENT, f"{tmp_path}/state/slicer")
    assert ((tmp_path / "told").exists(), told) == (True, [])


@pytest.mark.parametrize("works", [True, False])
def test_addresses_are_not_told_to_the_journal(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:  # U3
    class Sender:
        def add(self, url: str) -> bool:
            return url == "ntfys://user:secret@host/topic"

        def notify(self, title: str, body: str) -> bool:
            (tmp_path / "sent").write_text(f"{title}|{body}")
            return works

    monkeypatch.setitem(sys.modules, "apprise", types.SimpleNamespace(Apprise=Sender))
    delivery.deliver(by(urls=("ntfys://user:secret@host/topic",)), EVENT, str(tmp_path))
    assert (tmp_path / "sent").read_text() == "train: failed|exit 1"
    assert told == ([] if works else ["untold: train: ntfys: (urls) failed with 1"])


def test_the_desktop_is_told_over_the_users_bus(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # U3
    (tmp_path / "busctl").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\n')
    (tmp_path / "busctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    delivery.deliver(Notify(("failed",), (), (), desktop=True), EVENT, str(tmp_path))
    words = (tmp_path / "words").read_text().split("\n")
    assert words[:2] == ["--user", "call"]
    assert words[words.index("slicer") :][:5] == ["slicer", "0", "", "train: failed", "exit 1"]
