"""What the end of a job's log says, and that nothing in it reaches a terminal as more than text (W19)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.queue.judge.log import last_line, line_of
from slicer.queue.state.log_dir import RULES
from slicer.state.directory import Directory, open_or_make


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Directory]:
    path = tmp_path / "logs"
    path.mkdir(0o755)
    directory = open_or_make(str(path), RULES)
    yield directory
    directory.close()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", ""),
        (b"\n\n  \n", ""),
        (b"first\nValueError: no\n", "ValueError: no"),
        (b"first\nno end", "no end"),
        (b"first\n\n \r\n", "first"),
        (b"10%\r20%\rdied\r", "died"),
        (b"\x1b[1;31mred\x1b[0m and \x1b[4mthe rest\x1b[m\n", "red and the rest"),
        (b"\x1b]0;a title\x07shown\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "shownlink"),
        (b"\x1b[2J\x1b[H\x1bcgone\x1b(B\x1b7\n", "gone"),
        ("\x9b31mC1\x9d0;t\x07!\n".encode(), "C1!"),
        (b"\x1bPq#0;2;0;0;0\x1b\\sixel\n", "sixel"),
        (b"\x1b]0;never closed\n", "\\x1b]0;never closed"),
        (b"bell\x07 nul\x00 \xff \xe2\x80\xae\n", "bell\\x07 nul\\x00 \\xff \\u202e"),
        (b"x" * 100_000 + b"\n", "x" * 199 + "…"),
        (b"what\n\x1b[0m\n", "what"),
    ],
)
def test_the_last_line_is_clean_text(data: bytes, line: str) -> None:  # W19
    assert line_of(data) == line


@given(st.binary(max_size=200) | st.text("\x1b[]P\\0;mc\x07\x9b\x9d\n\r é", max_size=60).map(str.encode))
def test_nothing_of_it_is_a_command_to_a_terminal(data: bytes) -> None:  # W19
    line = line_of(data)
    assert line.isprintable()
    assert len(line) <= 200


def test_only_a_regular_file_of_ours_is_read(logs: Directory, tmp_path: Path) -> None:  # W19, S6
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    os.symlink(secret, f"{logs.path}/link.log")
    os.mkfifo(f"{logs.path}/fifo.log")
    os.mkdir(f"{logs.path}/directory.log")
    for name in ("link.log", "fifo.log", "directory.log", "missing.log", ""):
        assert last_line(logs, name) == ""
    Path(logs.path, "job.log").write_bytes(b"early\n" + b"y" * 10**6 + b"\nlate\n")
    assert last_line(logs, "job.log") == "late"
