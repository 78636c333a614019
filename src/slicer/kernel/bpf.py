"""Whether the kernel can filter devices for cgroups, and whether it does so for a given one: bpf(2).

systemd enforces DevicePolicy with a program that it attaches to the unit's cgroup. If it may not do so (in
most containers), it logs that and continues.
"""

from __future__ import annotations

import ctypes
import os
import sys

# From linux/bpf.h.
_PROG_LOAD, _PROG_QUERY = 5, 16
_CGROUP_DEVICE_PROG, _CGROUP_DEVICE = 15, 6  # the type of program, and where it is attached
_RETURN_1 = bytes((0xB7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0))  # r0 = 1; exit: allow it
_ATTRIBUTE_BYTES = 128  # of union bpf_attr; the kernel takes any size whose rest is zero
_COUNT = 24  # the offset of query.prog_cnt: how many programs are attached
# The number of bpf(2), by the machine's name in uname(2).
_NUMBERS = {
    "x86_64": 321, "aarch64": 280, "riscv64": 280, "loongarch64": 280, "ppc64le": 361, "s390x": 351,
}  # fmt: skip


def can_filter_devices() -> bool:
    """Whether this process may load a program that filters devices, in the way that systemd tries it."""
    code, licence = ctypes.create_string_buffer(_RETURN_1), ctypes.create_string_buffer(b"GPL")
    attribute = _attribute(
        (0, 4, _CGROUP_DEVICE_PROG), (4, 4, len(_RETURN_1) // 8), (8, 8, ctypes.addressof(code)),
        (16, 8, ctypes.addressof(licence)),
    )  # fmt: skip
    loaded = _bpf(_PROG_LOAD, attribute)
    if loaded < 0:
        return False
    os.close(loaded)
    return True


def filters_devices(directory: str) -> bool:
    """Whether a program filters devices for this directory's own cgroup, not just for one above it.

    Only root can find out. False also if the cgroup does not exist.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        attribute = _attribute((0, 4, fd), (4, 4, _CGROUP_DEVICE))
        return _bpf(_PROG_QUERY, attribute) == 0 and bool(_number(attribute, _COUNT))
    finally:
        os.close(fd)


def _number(attribute: ctypes.Array[ctypes.c_char], offset: int) -> int:
    return int.from_bytes(attribute.raw[offset : offset + 4], sys.byteorder)


def _attribute(*fields: tuple[int, int, int]) -> ctypes.Array[ctypes.c_char]:
    """A union bpf_attr; each field has an offset, a size in bytes, and a value."""
    made = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    for offset, size, value in fields:
        ctypes.memmove(ctypes.addressof(made) + offset, value.to_bytes(size, sys.byteorder), size)
    return made


def _bpf(command: int, attribute: ctypes.Array[ctypes.c_char]) -> int:
    """The call's result; negative if it failed, or if its number is unknown for this machine."""
    number = _NUMBERS.get(os.uname().machine)
    if number is None:
        return -1
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    size = ctypes.c_uint(_ATTRIBUTE_BYTES)
    return int(call(ctypes.c_long(number), ctypes.c_int(command), ctypes.byref(attribute), size))
