"""Which programs the library can be preloaded into, by what their files say."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from slicer.share import program
from slicer.share.program import gets_rights, parse_elf, why_not_library, why_not_program

NATIVE = 62 if os.uname().machine == "x86_64" else 183
OTHER = 183 if NATIVE == 62 else 62


MAGIC = b"\x7fELF"
LOADER = b"/lib64/ld-linux.so.2"


def elf(
    *, machine: int = NATIVE, loader: bytes | None = LOADER, bits: int = 64, table_at: int = 64
) -> bytes:
    """The beginning of an ELF program with one segment, which names the dynamic linker."""
    name = (loader or b"") + b"\0"
    if bits == 64:
        head = struct.pack("<4sBBB9xHHIQQQI", MAGIC, 2, 1, 1, 2, machine, 1, 0, table_at, 0, 0)
        head += struct.pack("<HHHHHH", 64, 56, 1, 0, 0, 0)
        kind, at = 3 if loader else 1, table_at + 56
        segment = struct.pack("<IIQQQQQQ", kind, 4, at, 0, 0, len(name), len(name), 1)
    else:
        head = struct.pack("<4sBBB9xHHIIIII", MAGIC, 1, 1, 1, 2, machine, 1, 0, table_at, 0, 0)
        head += struct.pack("<HHHHHH", 52, 32, 1, 0, 0, 0)
        kind, at = 3 if loader else 1, table_at + 32
        segment = struct.pack("<IIIIIIII", kind, at, 0, 0, len(name), len(name), 4, 1)
    return head.ljust(table_at, b"\0") + segment + name


@pytest.fixture
def library(tmp_path: Path) -> str:
    path = tmp_path / "libslicer-share.so"
    path.write_bytes(elf(loader=None))
    return str(path)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return tmp_path / "program"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (elf(), ""),
        (elf(table_at=9000), ""),  # a table far behind
        (elf(loader=None), "is statically linked"),
        (elf(loader=None, table_at=9000), "is statically linked"),
        (elf(machine=OTHER), "is a program for"),
        (elf(machine=3, bits=32), "is a program for i386"),
        (elf(loader=b"/lib/ld-musl-x86_64.so.1"), "musl"),
        (b"", ""),
        (b"\x7fELF", ""),  # the kernel says what is wrong with it
        (elf()[:60], ""),
        (b"echo without a first line\n", ""),
        (b"#!\n", ""),
        (b"#!/nowhere/at/all -x\n", ""),
    ],
)
def test_what_can_be_preloaded(made: Path, library: str, content: bytes, why: str) -> None:  # X7
    made.write_bytes(content)
    found = why_not_program(str(made), library)
    assert why in found
    assert bool(found) == bool(why)


def test_a_script_is_what_its_interpreter_is(tmp_path: Path, library: str) -> None:  # X7
    (tmp_path / "static").write_bytes(elf(loader=None))
    (tmp_path / "one").write_text(f"#! {tmp_path}/static -x\n")
    (tmp_path / "two").write_text(f"#!{tmp_path}/one\n")
    assert why_not_program(str(tmp_path / "two"), library) == f"{tmp_path}/static is statically linked"


def test_scripts_in_a_circle_come_to_an_end(made: Path, library: str) -> None:
    made.write_text(f"#!{made}\n")
    assert why_not_program(str(made), library) == ""


def test_nothing_is_waited_for_and_what_cannot_be_read_passes(tmp_path: Path, library: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "none", Path("/dev/tty"), Path("/proc/self/mem")):
        assert why_not_program(str(path), library) == ""
    (tmp_path / "script").write_text(f"#!{tmp_path}/fifo\n")
    assert why_not_program(str(tmp_path / "script"), library) == ""


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "expected"),
    [
        (0o755, 0, 0, False), (0o4755, 0, 5, True), (0o4755, 1000, 5, False), (0o2755, 0, 0, True),
        (0o2755, 0, 100, False), (0o2745, 0, 0, False),  # without the group's x it means something else
    ],
)  # fmt: skip
def test_who_gets_rights_from_a_file(mode: int, uid: int, gid: int, expected: bool) -> None:  # X7
    assert gets_rights(mode, uid, gid, 1000, 100) is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of another user")
def test_a_set_user_id_program_is_named(made: Path, library: str) -> None:  # X7
    made.write_bytes(elf())
    os.chown(made, 4242, 4242)
    made.chmod(0o4755)
    assert "set-user-ID" in why_not_program(str(made), library)


def test_this_python_can_have_it(library: str) -> None:
    assert why_not_program(sys.executable, library) == ""
    found = parse_elf(Path(sys.executable).read_bytes()[:100_000])
    assert found is not None
    assert (found.bits, found.machine) == (64, NATIVE)


def test_a_library_that_is_not_there_or_is_none_is_told_of(tmp_path: Path, library: str) -> None:  # X7
    assert why_not_library(library) == ""
    assert "No such file" in why_not_library(str(tmp_path / "none.so"))
    (tmp_path / "text.so").write_text("no library")
    assert "is not an ELF file" in why_not_library(str(tmp_path / "text.so"))


@pytest.mark.parametrize("at", range(0, 120, 7))
def test_a_broken_header_breaks_nothing(made: Path, library: str, at: int) -> None:  # S7
    content = bytearray(elf())
    for value in (b"\0" * 8, b"\xff" * 8):
        content[at : at + 8] = value
        made.write_bytes(content)
        assert isinstance(why_not_program(str(made), library), str)
        program.parse_elf(bytes(content))
