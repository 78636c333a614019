"""The file of earlier runs' lengths: what it says, and what damage does to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.ledger import run_lengths
from slicer.placement.lengths import Lengths
from slicer.state.directory import Directory

KNOWN = Lengths().with_run("python train.py", 12.34).with_run("", 5.0).with_run("python train.py", 99.0)


@pytest.fixture
def base(tmp_path: Path) -> Directory:
    return Directory(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), str(tmp_path))


# U7
def test_what_was_written_is_read(base: Directory) -> None:
    assert run_lengths.parse(run_lengths.content(base)) == Lengths()
    run_lengths.write(base, KNOWN)
    found = run_lengths.parse(run_lengths.content(base))
    assert found.runs_of("python train.py") == (12.3, 99.0)
    assert found.runs_of("") == (5.0,)
    assert found.machine == (12.3, 5.0, 99.0)
    assert os.stat(f"{base.path}/lengths").st_mode & 0o777 == 0o600


# U7: a file that only serves estimates stops nothing
@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 100, b"SLICER_LENGTHS=2\n*=1.0\n", b"SLICER_LENGTHS=1\n*=1.0",
        b"SLICER_LENGTHS=1\n*=nan\n",
        b"SLICER_LENGTHS=1\n*=-1\n", b"SLICER_LENGTHS=1\n*=1e400\n", b"SLICER_LENGTHS=1\nx=\n", b"\xff\n",
        b"SLICER_LENGTHS=1\n*=" + b"9" * 200_000 + b"\n",
    ],
)  # fmt: skip
def test_a_damaged_file_says_nothing_and_is_replaced(base: Directory, data: bytes) -> None:
    Path(base.path, "lengths").write_bytes(data)
    assert run_lengths.parse(run_lengths.content(base)) == Lengths()
    run_lengths.write(base, KNOWN)
    assert run_lengths.parse(run_lengths.content(base)).runs_of("") == (5.0,)
