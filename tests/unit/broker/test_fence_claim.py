"""The broker claims a device fence only where device rules are kept (X1)."""

from __future__ import annotations

import errno
import os

import pytest

from slicer.broker.server import limits_asked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("answers", "contained", "expected"),
    [
        ((errno.EPERM,), True, True),  # its own rules are kept
        ((errno.ENOENT, errno.EPERM), True, True),
        ((0,), False, False),  # they are not
        ((errno.ENXIO, 0), False, False),
        ((errno.ENOENT, errno.ENODEV), True, False),  # no node tells
        ((errno.ENOENT,), False, True),
    ],
)
def test_its_own_device_rules_tell_whether_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: tuple[int, ...], contained: bool, expected: bool
) -> None:  # X1
    paths = [str(tmp_path / str(place)) for place in range(len(answers))]
    truly = os.open

    def answered(path: str, flags: int, *rest: int) -> int:
        number = answers[paths.index(path)]
        if number:
            raise OSError(number, "no")
        return truly(os.devnull, flags)

    mark = tmp_path / "container"
    if contained:
        mark.touch()
    monkeypatch.setattr(os, "open", answered)
    assert limits_asked.filters_devices(paths, str(mark)) == expected
