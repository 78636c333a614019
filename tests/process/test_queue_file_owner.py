"""A jobs file that another user may change, and root (S22, S23)."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import until
from tests.process.harness import SLICER, Box
from tests.process.queue_box import QueueBox

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts for other users")

MALLORY = 54321


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    made = QueueBox(make_box(4))
    made.write("[vram=6G] job one")
    return made


def run(queues: QueueBox, *options: str, file: str = "jobs.txt") -> tuple[int, str]:
    """Exit code and stderr of a queue over the file."""
    queue = queues.run(*options, file=file, json=False)
    return queue.wait(), queue.err


def suggest(queues: QueueBox) -> tuple[int, str]:
    """Have the file corrected; exit code and stderr."""
    command = [*SLICER, "queue", "suggest", "--in-place", "--log-dir", queues.logs.name, "jobs.txt"]
    done = subprocess.run(
        command, env=queues.box.env, cwd=queues.root, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def hers(path: Path) -> None:
    os.chown(path, MALLORY, -1)


def wide(path: Path) -> None:
    path.chmod(0o664 if path.is_file() else 0o777)


# S23
@pytest.mark.parametrize(
    ("spoil", "said"), [(hers, f"belongs to uid {MALLORY}"), (wide, "is writable by its group (gid 0)")]
)
def test_root_runs_no_file_that_another_user_may_change(
    queues: QueueBox, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(queues.file)
    code, err = run(queues)
    assert (code, f"jobs.txt: root does not run it: {said}" in err) == (2, True), err
    assert not queues.starts()
    assert run(queues, "--trust-file")[0] == 0
    assert queues.starts()["one"] == 1


# S23
@pytest.mark.parametrize("spoil", [hers, wide])
def test_root_runs_no_file_that_another_user_may_exchange(
    queues: QueueBox, spoil: Callable[[Path], None]
) -> None:
    folder = queues.root / "shared" / "deep"
    folder.mkdir(parents=True)
    shutil.copy(queues.file, folder)
    spoil(folder.parent)
    code, err = run(queues, file="shared/deep/jobs.txt")
    assert (code, f"root does not run it: {folder.parent} " in err) == (2, True), err


# S23
def test_a_link_of_another_user_is_not_followed(queues: QueueBox) -> None:
    link = queues.root / "link"
    link.symlink_to("jobs.txt")
    assert run(queues, file="link")[0] == 0
    os.chown(link, MALLORY, -1, follow_symlinks=False)
    code, err = run(queues, file="link")
    assert (code, f"a symbolic link of uid {MALLORY}; not followed" in err) == (2, True), err


# S23
def test_a_line_of_another_user_is_not_run_later_either(queues: QueueBox) -> None:
    queues.write("[vram=6G] hold one", "[vram=6G] job two")
    queue = queues.start("--poll", "0.05", "-j1")
    queues.started("one")
    with queues.file.open("a") as file:
        hers(queues.file)
        file.write("[vram=6G] job three\n")
    until(lambda: "root does not run it: belongs to uid" in queue.out + queue.err, "it is told of")
    queues.let("one")
    assert queue.wait() == 0
    assert queues.starts() == {"one": 1, "two": 1}


# S22
def test_root_rewrites_no_file_that_another_user_could_exchange(queues: QueueBox) -> None:
    assert run(queues)[0] == 0
    before = queues.file.stat()
    queues.root.chmod(0o777)
    code, err = suggest(queues)
    assert (code, f"not changed: {queues.root} is writable by everybody" in err) == (2, True), err
    assert queues.file.stat() == before


# S22
def test_a_rewritten_file_is_never_set_uid(queues: QueueBox) -> None:
    queues.write("[vram=20G] simjob --vram 2G --ramp 0 --hold 3")
    assert run(queues)[0] == 0
    queues.file.chmod(0o6755)
    code, err = suggest(queues)
    assert (code, "1 of 1 declarations changed" in err) == (0, True), err
    assert stat.S_IMODE(queues.file.stat().st_mode) == 0o755
