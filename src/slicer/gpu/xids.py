"""Xid errors in the kernel's log: the health of a GPU whose driver names no recovery action (before 560).

Root may read the log, and others where ``kernel.dmesg_restrict`` is 0. It begins with the boot.
"""

from __future__ import annotations

import errno
import os
import re

from slicer.errors import StateError
from slicer.kernel import on_host

LOG = "/dev/kmsg"
BY_LOG = "Xid "  # how each of these faults begins
# NVIDIA wants the GPU reset, or the machine rebooted, after these. Most of the others are errors of programs.
FATAL = frozenset((48, 62, 64, 74, 79, 95, 119, 120, 140, 143))
_MOST = 1 << 15  # records in one look; the next look goes on
_RECORD = 8192  # bytes; the kernel makes none longer
# The driver's are at the beginning of a record, and the kernel's own (a priority below 8). What programs put
# into a message, such as a name, is not at the beginning: the kernel escapes line breaks. What root writes to
# the log is not the kernel's. Root's word is a whole line: journald can forward a program's, behind its name.
_LINE = re.compile(
    rb"[0-7],[^;]*;NVRM: Xid \(PCI:([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)(?:\.\d)?\): (\d{1,4}),"
    rb"|[0-7],[^;]*;NVRM: (loading) NVIDIA UNIX "
    rb"|(?:[^;]*;)?slicer: errors of ([\w-]+) until now do not count$"
)
_FORGIVEN = "slicer: errors of {} until now do not count\n"


class XidLog:
    """The fatal Xid errors since the boot, the driver's last start and root's word.

    Each look reads what is new in the log.
    """

    def __init__(self) -> None:
        self._read = 0  # records
        self._fatal: dict[tuple[int, ...], tuple[int, int]] = {}  # by address: record and number
        self._forgiven: dict[str, int] = {}  # by UUID: the record
        try:
            self._fd = os.open(on_host(LOG), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # it is not for this user, or not in this container
            self._fd = -1

    def fault(self, address: tuple[int, int, int], uuid: str) -> str | None:
        """Why a GPU (its PCI domain, bus and device) should get no more jobs; None: the log is closed."""
        self._look()
        record, xid = self._fatal.get(address, (0, 0))
        if record <= self._forgiven.get(uuid, 0):
            return None if self._fd < 0 else ""
        again = f"slicer reserve --remove {uuid[:12]} puts it back"
        return f"{BY_LOG}{xid} in the kernel's log; after a reset, {again}"

    def forgive(self, uuid: str) -> None:
        """Note in the log that the GPU's errors until now do not count. Raises StateError."""
        self._look()
        before = self._forgiven.get(uuid)
        try:
            fd = os.open(on_host(LOG), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.write(fd, _FORGIVEN.format(uuid).encode("ascii"))
            os.close(fd)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise StateError(why, where=LOG, hint="only root may write there") from error
        self._look()
        if self._forgiven.get(uuid) == before:
            hint = "sysctl kernel.printk_devkmsg=on, or a reboot"
            raise StateError("it does not keep what is written to it", where=LOG, hint=hint)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _look(self) -> None:
        for _ in range(_MOST if self._fd >= 0 else 0):
            try:
                data = os.read(self._fd, _RECORD)
            except OSError as error:
                if error.errno == errno.EPIPE:  # the kernel has overwritten records that were not read
                    continue
                if error.errno != errno.EAGAIN:
                    self.close()
                return
            if not data:
                return
            for line in data.splitlines():
                self._note(line)

    def _note(self, line: bytes) -> None:
        self._read += 1
        found = _LINE.match(line)
        if found is None:
            return
        *address, xid, loaded, uuid = found.groups()
        if uuid is not None:
            self._forgiven[uuid.decode("ascii")] = self._read
        elif loaded is not None:
            self._fatal.clear()
        elif int(xid) in FATAL:
            self._fatal[tuple(int(part, 16) for part in address)] = self._read, int(xid)
