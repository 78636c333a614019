"""The file of how the last runs on GPUs ended: what it says, and what damage does to it. (U8)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.ledger import run_ends
from slicer.placement.suspects import RunEnd
from slicer.state.directory import Directory

ENDS = (RunEnd(1.5, "quick", ("GPU-1", "GPU-2"), "python train.py"), RunEnd(2.0, "well", ("GPU-1",), ""))


@pytest.fixture
def base(tmp_path: Path) -> Directory:
    return Directory(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), str(tmp_path))


def test_what_was_written_is_read(base: Directory) -> None:
    path = Path(base.path, "ends")
    run_ends.note(base, b"", ENDS[0])
    run_ends.note(base, path.read_bytes(), ENDS[1])
    assert run_ends.parse(path.read_bytes()) == ENDS
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 100, b"SLICER_ENDS=2\n1 well GPU-1 a\n", b"SLICER_ENDS=1\n1 well GPU-1 a",
        b"SLICER_ENDS=1\nnan well GPU-1 a\n", b"SLICER_ENDS=1\n-1 well GPU-1 a\n", b"SLICER_ENDS=1\n\n",
        b"SLICER_ENDS=1\n1 well\n", b"\xff\n",
    ],
)  # fmt: skip
def test_a_damaged_file_says_nothing_and_is_replaced(base: Directory, data: bytes) -> None:
    assert run_ends.parse(data) == ()
    run_ends.note(base, data, ENDS[0])
    assert run_ends.parse(Path(base.path, "ends").read_bytes()) == ENDS[:1]
