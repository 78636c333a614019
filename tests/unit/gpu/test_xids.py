"""Xid errors in the kernel's log: which take a GPU out of service, and who can say so. (U19)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.gpu import xids
from slicer.gpu.xids import XidLog
from slicer.kernel import SYSROOT

HERE, UUID = (0, 1, 0), "GPU-3f2a91c0-1111-2222-3333-444455556666"
FELL = "4,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, pid=4711, name=python, GPU has fallen off the bus.\n"
FAULT = "Xid 79 in the kernel's log; after a reset, slicer reserve --remove GPU-3f2a91c0 puts it back"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "dev/kmsg"
    path.parent.mkdir()
    path.write_text("6,0,0,-;Linux version 6.12\n SUBSYSTEM=acpi\n")
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    return path


def fault(log: Path, *lines: str) -> str | None:
    log.write_text(log.read_text() + "".join(lines))
    opened = XidLog()
    found = opened.fault(HERE, UUID)
    opened.close()
    return found


@pytest.mark.parametrize("start", ["PCI:0000:01:00", "PCI:00000000:01:00", "PCI:0000:01:00.0"])
def test_a_fatal_error_takes_its_gpu_out_of_service(log: Path, start: str) -> None:
    assert fault(log, FELL.replace("PCI:0000:01:00", start)) == FAULT
    opened = XidLog()
    assert opened.fault((0, 2, 0), "GPU-other") == ""


@pytest.mark.parametrize(
    "line",
    [
        *(FELL.replace(" 79,", f" {number},") for number in (13, 31, 43, 45, 63, 68, 94, 109, 154, 790)),
        FELL.replace("01:00", "02:00"),
        FELL.replace("4,1,1,-;", "12,1,1,-;"),  # written to the log, though by root
        FELL.replace("NVRM", "train[4711]: NVRM"),
        "6,1,1,-;NVRM: Xid (PCI:[4711]: segfault at 0 ip 00 sp 00 error 4\n",  # what a process may be called
        f"6,1,1,-;NVRM: Xid (PCI:0000:02:00): 31, pid=1, name=a\\x0a{FELL}",
        f"6,1,1,-;a {FELL}",
        f" NAME={FELL}",
        "4,1,1,-;NVRM: Xid (PCI:zz:01:00): 79, \n",
        "4,1,1,-;NVRM: Xid (PCI:0000:01:00): " + "9" * 5000 + ",\n",
    ],
)  # fmt: skip
def test_nothing_else_does(log: Path, line: str) -> None:  # errors of programs, and what others can write
    assert fault(log, line) == ""


def test_it_is_back_with_a_new_driver_and_by_roots_word(log: Path) -> None:
    assert fault(log, FELL, "6,2,2,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  535.1\n") == ""
    opened = XidLog()
    assert fault(log, FELL) == opened.fault(HERE, UUID) == FAULT
    XidLog().forgive("GPU-other")
    assert opened.fault(HERE, UUID) == FAULT
    XidLog().forgive(UUID)
    assert fault(log) == opened.fault(HERE, UUID) == ""
    assert fault(log, FELL) == opened.fault(HERE, UUID) == FAULT
    assert fault(log, f"6,1,1,-;errors of {UUID}\n", "6,1,1,-;slicer: errors of[1]: segfault\n") == FAULT
    forwarded = f"14,1,1,-;slicer: errors of {UUID} until now do not count[4711]: as programs may be called\n"
    assert fault(log, forwarded) == FAULT


# the rest of a long log comes with the next look, which reads only what is new
def test_a_look_is_bounded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xids, "_MOST", 2)
    log.write_text("6,0,0,-;more\n" * 2048 + FELL)
    opened = XidLog()
    assert [opened.fault(HERE, UUID) for _ in range(2)] == ["", FAULT]


def test_a_log_that_is_closed_says_nothing(log: Path) -> None:
    log.unlink()
    log.symlink_to(os.devnull)
    with pytest.raises(StateError, match="does not keep"):
        XidLog().forgive(UUID)
    log.unlink()
    assert XidLog().fault(HERE, UUID) is None
    with pytest.raises(StateError, match="No such file"):
        XidLog().forgive(UUID)
    assert not log.exists()
