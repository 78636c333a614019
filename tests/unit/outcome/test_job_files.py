"""The files of detached jobs: read back as written, and nothing else believed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.kernel import proc
from slicer.outcome import job_files
from slicer.outcome.job_files import DetachedJob, JobFiles
from slicer.record import as_dict, replace
from slicer.state.directory import open_or_make
from tests.unit.outcome.outcomes import OUTCOME

JOB = "3f2a9c01b7de"
FILE = DetachedJob(
    job=JOB, name="train", command=("python", "a b\udcff"), directory="/work", profile="gpu", log="/work/log",
    pid=4711, pid_start=12, boot_id=proc.boot_id(), after=("0123456789ab:ok",), began_at=1.5e9,
)  # fmt: skip


ATTEMPT = as_dict(OUTCOME.attempts[0])


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    return JobFiles(open_or_make(str(tmp_path / "jobs"), job_files.RULES))


AGAIN = replace(FILE, again="attempt 3 of 3", attempts=OUTCOME.attempts, begins_at=2e9)


@pytest.mark.parametrize("file", [FILE, replace(FILE, exit_code=75, why="will not run", after=()), AGAIN])
def test_it_is_read_back_as_it_was_written(files: JobFiles, file: DetachedJob) -> None:  # U1
    files.write(file)
    assert files.read(JOB) == file
    assert files.all(pytest.fail) == [file]
    assert files.read("0" * 12) is None


def test_it_is_run_again_once_and_only_if_that_was_asked(
    files: JobFiles, monkeypatch: pytest.MonkeyPatch
) -> None:  # U9
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", read_only)
        assert not files.take_again(JOB)
    files.ask_again(JOB)
    assert files.take_again(JOB)
    assert not files.take_again(JOB)


@pytest.mark.parametrize(
    "change",
    [
        {"pid": -1}, {"pid": "1"}, {"pid": True}, {"pid": 1 << 40}, {"boot_id": "x"}, {"job": "../../etc"},
        {"exit_code": 256}, {"exit_code": "0"}, {"command": "rm"}, {"command": [1]}, {"after": None},
        {"began_at": "now"}, {"began_at": -1}, {"log": None}, {"pid_start": 1 << 70},
        {"again": 2}, {"attempts": {}}, {"attempts": ["x"]}, {"attempts": [{"number": 1}]},
        *({"attempts": [ATTEMPT | wrong]} for wrong in (
            {"number": "1"}, {"reason": "bored"}, {"exit_code": 256}, {"signal": 0}, {"ended_by": "mallory"},
            {"wall_s": float("nan")}, {"gpus": "GPU-1"}, {"gpus": ["../x"]},
        )),
    ],
)  # fmt: skip
def test_no_field_is_believed_that_cannot_be(files: JobFiles, tmp_path: Path, change: dict[str, Any]) -> None:
    # U1
    files.write(FILE)
    path = tmp_path / "jobs" / f"{JOB}.json"
    path.write_text(json.dumps({**as_dict(FILE), **change}, default=list))
    warnings: list[str] = []
    assert files.all(warnings.append) == []
    assert len(warnings) == 1
    assert str(path) in warnings[0]


@given(st.binary(max_size=300) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(
    lambda value: json.dumps(value).encode()
))  # fmt: skip
def test_whatever_is_in_it_costs_itself_alone(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    # U1
    place = tmp_path_factory.mktemp("files")
    files = JobFiles(open_or_make(str(place), job_files.RULES))
    files.write(FILE)
    (place / f"{'0' * 12}.json").write_bytes(data)
    assert files.all(lambda _: None) == [FILE]
    files.close()


def test_a_file_of_a_version_before_tells_of_no_attempts(files: JobFiles, tmp_path: Path) -> None:  # U1
    files.write(FILE)
    path = tmp_path / "jobs" / f"{JOB}.json"
    said = json.loads(path.read_text())
    del said["again"], said["attempts"]
    path.write_text(json.dumps(said))
    assert files.read(JOB) == FILE


def test_what_ended_in_a_pause_says_so() -> None:  # U8
    assert AGAIN.unseen == "it was killed before attempt 3 of 3 began"
    rebooted = replace(AGAIN, boot_id="0" * 36)
    assert rebooted.unseen.endswith("lost its power, before attempt 3 of 3 began")


def test_a_process_of_another_boot_or_start_is_not_it(files: JobFiles) -> None:  # U1
    mine = job_files.new(JOB, "", ("true",), "", "/log", after=())
    assert mine.is_alive()
    assert not replace(mine, boot_id=FILE.boot_id.replace("-", "")[:8] + "-" * 28).is_alive()
    assert not replace(mine, pid_start=mine.pid_start + 1).is_alive()
    assert not replace(mine, pid=0).is_alive()


def test_what_is_too_old_goes_unless_the_job_lives_or_holds(files: JobFiles, tmp_path: Path) -> None:  # U1
    alive = job_files.new("a" * 12, "", ("true",), "", "/log", after=())
    for file in (FILE, alive, replace(FILE, job="b" * 12)):
        files.write(file)
    place = tmp_path / "jobs"
    (place / f"{'c' * 12}.log").touch()  # its caller was killed
    (place / "theirs.txt").touch()
    (place / f"{'d' * 12}.json").mkdir()  # cannot be removed
    for path in place.iterdir():
        os.utime(path, (1, 1))
    files.prune(None, lambda _: False, pytest.fail)
    assert len(list(place.iterdir())) == 6
    told: list[str] = []
    files.prune(60.0, ("b" * 12).__eq__, told.append)
    assert {path.name[0] for path in place.iterdir()} == {"a", "b", "t", "d"}
    assert len(told) == 1
