"""Lines that are held back, as the journal keeps them: what holds them, and what releases them (U19)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.queue.file import jobs_file
from slicer.queue.judge import streaks
from slicer.queue.judge.retrying import retry
from slicer.queue.model import Entry, QueueOptions, Status, Streak
from slicer.queue.start.held_back import HeldBack
from slicer.queue.state import folding
from slicer.queue.state.register import Register

SWEEP = tuple(f"python t.py {seed}" for seed in range(9))
HOW: dict[str, Any] = {
    "exit_code": 1, "signal": None, "reason": "exited", "wall_s": 2.0, "vram_peak_mib": (), "at": 0.0,
    "utilisation": None, "looks": 0, "verdict": "unknown", "memory_peak_bytes": None, "leftovers": 0,
}  # fmt: skip


class Night:
    """A queue's journal, without a queue."""

    def __init__(self, lines: tuple[str, ...] = SWEEP) -> None:
        self.events: list[tuple[str, Any]] = []
        self.lines = lines
        self.start()

    def start(self) -> None:
        """As a queue that was killed is started again."""
        self.register = Register("logs", fresh=False)
        events: Any = SimpleNamespace(add=lambda kind, **data: self.events.append((kind, data)))
        self.held_back = HeldBack(self.register, QueueOptions("jobs.txt", "logs"), events)

    def kill(self) -> None:
        assert self.register.save()
        self.register.log_dir.close()

    def entries(self) -> tuple[Entry, ...]:
        return jobs_file.parse("\n".join(self.lines) + "\n")

    def held(self) -> list[str]:
        """The commands that are held back."""
        entries = self.entries()
        self.register.see(entries)
        found = self.held_back.settle(entries)
        assert not self.held_back.is_due
        return [entry.command for entry in entries if entry.key in found]

    def ends(self, command: str, status: Status = "failed") -> None:
        key = next(entry.key for entry in self.entries() if entry.command == command)
        log = "job0001.log"
        self.register.do(
            folding.begun(
                key, "j", boot_id="b", attempt=1, log=log, gpus=(), gpu_indices=(), vram_mib=None, at=1.0
            )
        )
        self.register.do(folding.ended(key, "j", status, **HOW))
        group = streaks.group_of(command)
        before = self.register.streaks.get(group, Streak())
        now = streaks.after(before, key, status, HOW["wall_s"], QueueOptions("", "").hold_back)
        self.register.do(folding.streak(group, now))


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    monkeypatch.chdir(tmp_path)
    one = Night((*SWEEP, "python good.py"))
    assert one.held() == []
    yield one
    one.register.close()


def fail(night: Night, most: int = 5) -> None:
    for command in SWEEP[:most]:
        night.ends(command)


def test_the_rest_of_a_sweep_is_held_back_and_told_once(night: Night) -> None:  # U19
    fail(night, 4)
    assert not night.held_back.is_due
    Path("logs/job0001.log").write_text("NameError: x\n")
    night.ends(SWEEP[4])
    assert night.held_back.is_due
    assert set(SWEEP[5:]) <= set(night.held()) == set(SWEEP)
    night.held()
    ((kind, told),) = night.events
    assert (kind, told["group"], told["count"], told["failures"]) == ("held-back", "python t.py", 4, 5)
    text = "4 jobs of python t.py are held back: 5 attempts in a row failed within 1m of their start"
    assert told["text"] == f"{text}, last line: NameError: x"
    assert night.held_back.told == {"python t.py": told["text"]}


def test_a_hold_outlives_the_queue_and_so_do_the_failures_before_it(night: Night) -> None:  # U19, E7
    fail(night, 3)
    night.kill()
    night.start()
    for command in SWEEP[3:5]:
        night.ends(command)
    assert night.held()
    night.kill()
    night.start()
    assert night.held()
    Path("logs/journal.jsonl").unlink()  # it is written anew
    night.ends("python good.py", "ok")
    night.kill()
    night.start()
    assert night.held()


@pytest.mark.parametrize("is_running", [True, False])
def test_an_edit_releases_a_group_also_between_two_queues_and_a_new_line_does_not(  # U19, E6
    night: Night, is_running: bool
) -> None:
    fail(night)
    assert night.held()
    night.lines = ("python t.py new", *reversed(night.lines), "python t.py newer")
    assert {"python t.py new", "python t.py newer", *SWEEP[5:]} <= set(night.held())
    if not is_running:
        night.kill()
        night.start()
    night.lines = tuple(line if line != SWEEP[8] else f"[env.A=1] {line}" for line in night.lines)
    assert night.held() == []
    night.ends("python t.py new")  # and the failures before count no more
    assert night.held() == []


def test_what_ends_well_beside_releases_the_group(night: Night) -> None:  # U19
    fail(night)
    assert night.held()
    night.ends(SWEEP[5], "ok")
    assert night.held_back.is_due
    assert night.held() == []
    assert [kind for kind, _ in night.events] == ["held-back", "released"]


def test_retry_releases_all_or_the_groups_of_the_jobs_that_it_names(night: Night) -> None:  # U19, U1
    fail(night)
    assert night.held()
    keys = [entry.key for entry in night.entries()]
    assert retry(night.register, keys, ["99"]) == "99"
    assert night.held()
    assert retry(night.register, keys, ["7"]) == ([7], 3)  # one that is held back
    assert night.held() == []
    assert retry(night.register, keys, []) == ([1, 2, 3, 4, 5], 0)
    fail(night)
    assert night.held()
    assert retry(night.register, keys, []) == ([1, 2, 3, 4, 5], 4)
    assert night.held() == []


def test_retry_ends_the_pause_of_a_job_that_runs_again(night: Night) -> None:  # U8, U1
    keys = [entry.key for entry in night.entries()]
    night.register.states[keys[1]].again_at = 9e9
    assert retry(night.register, keys, []) == ([2], 0)
    assert night.register.states[keys[1]].again_at == 0
    assert retry(night.register, keys, []) == ([], 0)


def test_where_nothing_is_left_nothing_is_held_back(night: Night) -> None:  # U19
    """Lines that are added later are tried: what failed had its five attempts."""
    night.lines = SWEEP[:5]
    fail(night)
    assert night.held() == []
    night.lines = SWEEP
    assert night.held() == []
    assert night.events == []
