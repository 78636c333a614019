"""``slicer logs``: which lines are the last, and what is left of a log whose beginning was freed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.cli import after, logs
from slicer.cli.ends import Ended
from slicer.cli.job_register import KnownJob
from slicer.job import log_bound
from slicer.job.log_bound import LogBound
from slicer.kernel import punch


@given(st.text(alphabet="ab\n", max_size=40), st.integers(0, 8), st.integers(1, 7))
def test_the_last_lines_are_those_of_tail(
    tmp_path_factory: pytest.TempPathFactory, text: str, number: int, block: int
) -> None:  # U1
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_text(text)
    with path.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_BLOCK", block)
        place = logs.last_lines(file.fileno(), number)
    assert text[place:] == "".join(text.splitlines(keepends=True)[-number:] if number else [])


def test_a_line_of_megabytes_is_shown_at_once(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:  # U1
    """A pattern that is tried at each of its bytes takes hours. What a bar overwrote is left out as ever."""
    path = tmp_path / "log"
    path.write_bytes(b"x" * 4_000_000 + b"\n 1%\r99%\r\n0%\r1%\r2%")
    with path.open("rb") as file:
        logs._copy_lines(file.fileno(), 0)
    assert capfdbinary.readouterr().out == b"x" * 4_000_000 + b"\n99%\r\n2%"
    assert logs.tail(str(path), 3)[-2:] == ["99%", "2%"]


def test_a_freed_beginning_is_skipped(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    # U1
    path = tmp_path / "log"
    path.write_bytes(b"x" * (1 << 20) + b"end\n")
    fd = os.open(path, os.O_RDWR)
    try:
        punch.free_beginning(fd, 1 << 19)
    except OSError as error:
        pytest.skip(f"this file system cannot: {error}")
    assert os.fstat(fd).st_size == (1 << 20) + 4
    assert punch.beginning(fd) == 1 << 19
    assert punch.beginning(fd, 1 << 20) == 1 << 20
    assert punch.beginning(fd, 5 << 20) == (1 << 20) + 4
    assert logs._copy(fd, 0) == (1 << 20) + 4
    assert capfdbinary.readouterr().out == b"x" * (1 << 19) + b"end\n"
    os.close(fd)


def test_a_file_system_that_cannot_is_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # U1
    def cannot(fd: int, end: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(punch, "free_beginning", cannot)
    monkeypatch.setattr(log_bound, "_LOOKS_S", 0.0)
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    bound = LogBound(fd, 1)
    bound.look()
    assert bound.due is not None
    os.ftruncate(fd, 2 << 20)
    for _ in range(2):
        bound.look()
        assert bound.due is None
    said = os.pread(fd, 1000, 2 << 20).decode()
    assert said.startswith("slicer: the log grows without bound: ")
    assert said.endswith("Operation not supported\n")
    os.close(fd)


@pytest.mark.parametrize(
    ("code", "condition", "runs"),
    [
        (0, "ok", True), (1, "ok", False), (0, "any", True), (1, "any", True), (0, "failed", False),
        (1, "failed", True),
    ],
)  # fmt: skip
def test_a_job_follows_only_such_an_end(code: int, condition: str, runs: bool) -> None:  # U1
    ended = Ended(KnownJob("0" * 12, "first", 0, ""), code, None)
    if runs:
        after._judge(ended, condition)
        return
    with pytest.raises(after.InVain, match="will not run: first") as caught:
        after._judge(ended, condition)
    assert caught.value.exit_code == 75
