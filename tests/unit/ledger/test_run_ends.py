"""The file of how the last runs on GPUs ended: what it says, and what damage does to it. (U8)"""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer.ledger import run_ends
from slicer.placement.suspects import RunEnd
from tests.unit.ledger.box import LedgerBox

pytest_plugins = ["tests.unit.ledger.box"]

ENDS = (RunEnd(1.5, "quick", ("GPU-1", "GPU-2"), "python train.py"), RunEnd(2.0, "well", ("GPU-1",), ""))


def file_of(box: LedgerBox) -> Path:
    return Path(box.ledger.directory.base.path, "ends")


def noted(box: LedgerBox, *ends: RunEnd) -> None:
    with box.ledger.locked():
        for each in ends:
            box.ledger.note_end(each.how, each.gpus, each.key)


def test_what_was_written_is_read(box: LedgerBox) -> None:
    assert run_ends.parse(run_ends.text(ENDS)) == ENDS
    noted(box, ENDS[1])
    assert not file_of(box).exists(), "all goes well"
    noted(box, *ENDS)
    found = run_ends.parse(file_of(box).read_bytes())
    assert [(each.how, each.gpus, each.key) for each in found] == [
        (each.how, each.gpus, each.key) for each in ENDS
    ]
    assert file_of(box).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 100, b"SLICER_ENDS=2\n1 well GPU-1 a\n", b"SLICER_ENDS=1\n1 well GPU-1 a",
        b"SLICER_ENDS=1\nnan well GPU-1 a\n", b"SLICER_ENDS=1\n-1 well GPU-1 a\n", b"SLICER_ENDS=1\n\n",
        b"SLICER_ENDS=1\n1 well\n", b"\xff\n",
    ],
)  # fmt: skip
def test_a_damaged_file_says_nothing_and_is_replaced(box: LedgerBox, data: bytes) -> None:
    assert run_ends.parse(data) == ()
    file_of(box).write_bytes(data)
    assert box.ledger.suspects() == frozenset()
    noted(box, ENDS[0])
    assert [each.key for each in run_ends.parse(file_of(box).read_bytes())] == ["python train.py"]
