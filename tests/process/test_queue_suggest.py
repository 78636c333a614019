"""``slicer queue suggest`` and the file that it is about (E5, Q14)."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from collections.abc import Callable

import pytest

from tests.process.harness import SLICER, Box
from tests.process.queue_box import QueueBox

LINE = "[vram=20G name=big] simjob --vram 2G --ramp 0 --hold 2"


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    made = QueueBox(make_box(4))
    made.write("# mine", LINE)
    made.file.chmod(0o640)
    assert made.run("--poll", "0.05").wait() == 0
    return made


def suggest(queues: QueueBox, *options: str, redirect: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    command = [*SLICER, "queue", "suggest", "--log-dir", queues.logs.name, *options]
    if redirect:
        command = ["sh", "-c", f'"$@" {redirect}', "sh", *command]
    ended = subprocess.run(
        command, env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


# Q14: nothing is lost without a word, and nothing that is still there is lost
@pytest.mark.parametrize(("redirect", "is_emptied"), [("> jobs.txt", True), (">> jobs.txt", False)])
def test_a_file_that_is_also_the_output_is_refused(queues: QueueBox, redirect: str, is_emptied: bool) -> None:
    code, _, err = suggest(queues, "jobs.txt", redirect=redirect)
    assert code == 2
    assert "jobs.txt: is also the output" in err
    assert "--in-place" in err
    assert ("your shell has just emptied it" in err) == is_emptied
    assert queues.file.read_text() == ("" if is_emptied else f"# mine\n{LINE}\n")


# Q14
def test_the_file_itself_can_be_changed(queues: QueueBox) -> None:
    code, printed, _ = suggest(queues, "jobs.txt")
    assert code == 0
    assert printed != queues.file.read_text()
    link = queues.root / "link"
    link.symlink_to("jobs.txt")
    code, out, err = suggest(queues, "--in-place", "link")
    assert (code, out) == (0, "")
    assert "1 of 1 declarations changed" in err
    assert queues.file.read_text() == printed
    assert stat.S_IMODE(queues.file.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert [name for name in os.listdir(queues.root) if name.endswith(".tmp")] == []


# U1: `slicer queue add` has the same lock
def test_a_file_that_another_program_has_locked_is_left_alone(queues: QueueBox) -> None:
    before = queues.file.read_text()
    with queues.file.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, out, err = suggest(queues, "--in-place", "jobs.txt")
    assert (code, out) == (125, "")
    assert "is locked by another program; nothing was changed" in err
    assert queues.file.read_text() == before
