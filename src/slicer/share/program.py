"""Whether the library can be preloaded into a program, decided from its file without running it.

The dynamic linker preloads nothing into a static program, nor into one that gets rights from its file. A
program of another architecture cannot load the library. For a script, its interpreter counts.

Another user's file may be anything. This reads only a little of it and waits for nothing. A file that cannot
be read is assumed to be an ordinary program: the supervisor notices if the library is not active in a job.
"""

from __future__ import annotations

import os
import stat
import struct

from slicer.record import record
from slicer.share.environment import LIBRARY

_HEAD_BYTES = 4096
_MOST_STEPS = 4  # from a script to its interpreter; the kernel's own limit
_MOST_SEGMENTS = 128
_LONGEST_NAME = 4096
_PT_INTERP = 3
_ELF_MAGIC = b"\x7fELF"
_MACHINES = {3: "i386", 40: "ARM", 62: "x86-64", 183: "aarch64", 243: "RISC-V", 21: "ppc64", 22: "s390x"}


@record
class Elf:
    bits: int  # 32 or 64
    machine: int
    loader: str  # the dynamic linker that it names; "" if none

    @property
    def architecture(self) -> str:
        return _MACHINES.get(self.machine, f"machine {self.machine}")


def library_path() -> str:
    """The path of the library to preload, if it was built."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY)


def why_not_library(path: str) -> str:
    """Why the library at ``path`` cannot be preloaded; "" if it exists and is an ELF file."""
    try:
        head, _ = _read(path)
    except OSError as error:
        why = f"{path}: {error.strerror}"
        return f"the library cannot be read: {why} (was slicer built without a C compiler?)"
    if parse_elf(head) is None:
        return f"the library is not an ELF file: {path}"
    return ""


def why_not_program(path: str, library: str) -> str:
    """Why the library at that path cannot be preloaded into the program; "" if nothing is in the way."""
    ours = _elf_of(library)
    for _ in range(_MOST_STEPS + 1):
        try:
            head, found = _read(path)
        except OSError:
            return ""
        if head.startswith(b"#!"):
            path = interpreter(head)
            if not path.startswith("/"):
                return ""
            continue
        if not head.startswith(_ELF_MAGIC):
            return ""  # the kernel or a shell will find out what it is
        return _judge(path, head, found, ours)
    return ""


def _judge(path: str, head: bytes, found: os.stat_result, ours: Elf | None) -> str:
    elf = parse_elf(head)
    if elf is None:
        return ""
    if ours is not None and (elf.bits, elf.machine) != (ours.bits, ours.machine):
        return f"{path} is a program for {elf.architecture}, the library for {ours.architecture}"
    if not elf.loader and not os.path.basename(path).startswith("ld-"):
        return f"{path} is statically linked"
    if "musl" in os.path.basename(elf.loader):
        return f"{path} is linked against musl, the library against glibc"
    if gets_rights(found.st_mode, found.st_uid, found.st_gid, os.geteuid(), os.getegid()):
        return f"{path} is set-user-ID or set-group-ID"
    if os.geteuid() and _has_capabilities(path):
        return f"{path} has file capabilities"
    return ""


def _read(path: str) -> tuple[bytes, os.stat_result]:
    """The beginning of a regular file, and its attributes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return b"", found
        head = os.pread(fd, _HEAD_BYTES, 0)
        return _with_loader(fd, head), found
    finally:
        os.close(fd)


def _with_loader(fd: int, head: bytes) -> bytes:
    """The head, extended if the segments or the linker's name are further back."""
    wanted = _end_of_segments(head)
    if wanted > len(head):
        head = os.pread(fd, wanted, 0)
    place = _loader_place(head)
    if place is not None and sum(place) > len(head):
        head = os.pread(fd, sum(place), 0) if sum(place) <= 1 << 20 else head
    return head


def _elf_of(path: str) -> Elf | None:
    try:
        return parse_elf(_read(path)[0])
    except OSError:
        return None


def _has_capabilities(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


# -- pure ---------------------------------------------------------------------------------------------------


def interpreter(head: bytes) -> str:
    """The interpreter in a script's first line; "" if there is none."""
    line = head[2:].partition(b"\n")[0].strip()
    return os.fsdecode(line.split(None, 1)[0].partition(b"\0")[0]) if line else ""


def gets_rights(mode: int, uid: int, gid: int, own_uid: int, own_gid: int) -> bool:
    """Whether a program with this mode and owner runs with other ids than its caller's."""
    # Without the group's x, the bit means something else: mandatory locks, in the past.
    is_set_gid = mode & stat.S_ISGID and mode & stat.S_IXGRP
    return bool(mode & stat.S_ISUID and uid != own_uid) or bool(is_set_gid and gid != own_gid)


def parse_elf(head: bytes) -> Elf | None:
    """Parse the beginning of an ELF file; None for another or broken file."""
    layout = _layout(head)
    if layout is None:
        return None
    bits, _, machine = layout
    place = _loader_place(head)
    loader = ""
    if place is not None:
        name = head[place[0] : sum(place)].partition(b"\0")[0]
        loader = os.fsdecode(name) or "?"
    return Elf(bits, machine, loader)


def _layout(head: bytes) -> tuple[int, str, int] | None:
    """The file's bits, its byte order as in struct, and its machine."""
    if len(head) < 64 or not head.startswith(_ELF_MAGIC) or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    order = "<" if head[5] == 1 else ">"
    (machine,) = struct.unpack_from(f"{order}H", head, 18)
    return 64 if head[4] == 2 else 32, order, machine


def _segments(head: bytes) -> tuple[int, int, int]:
    """The offset of the table of segments, the size of an entry, and the number of entries."""
    layout = _layout(head)
    if layout is None:
        return 0, 0, 0
    bits, order, _ = layout
    (begin,) = struct.unpack_from(f"{order}Q" if bits == 64 else f"{order}I", head, 32 if bits == 64 else 28)
    size, count = struct.unpack_from(f"{order}HH", head, 54 if bits == 64 else 42)
    return begin, size, min(count, _MOST_SEGMENTS)


def _end_of_segments(head: bytes) -> int:
    begin, size, count = _segments(head)
    end = begin + size * count
    return end if end <= 1 << 20 else 0  # otherwise no kernel would execute it


def _loader_place(head: bytes) -> tuple[int, int] | None:
    """The offset and length of the dynamic linker's name; None if there is none."""
    begin, size, count = _segments(head)
    layout = _layout(head)
    if layout is None:
        return None
    bits, order, _ = layout
    for number in range(count):
        at = begin + number * size
        if size < (56 if bits == 64 else 32) or at + size > len(head):
            return None
        if struct.unpack_from(f"{order}I", head, at)[0] != _PT_INTERP:
            continue
        if bits == 64:
            (offset,) = struct.unpack_from(f"{order}Q", head, at + 8)
            (length,) = struct.unpack_from(f"{order}Q", head, at + 32)
        else:
            (offset,) = struct.unpack_from(f"{order}I", head, at + 4)
            (length,) = struct.unpack_from(f"{order}I", head, at + 16)
        return offset, min(length, _LONGEST_NAME)
    return None
