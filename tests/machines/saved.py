"""The QEMU machine as it is once it has booted, kept beside its image: emulated machines go on from there.

A state is a directory `state-<hash>/` of `disk.qcow2`, what the boot wrote over the image's disk, and
`memory`, as QEMU migrates it. The hash is of what a state depends on beside the image. As with images, a
directory of that name is complete, and a flock on `state-<hash>.lock` is shared by users and exclusive for
who makes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.machines.host import ENVIRON, HERE, MachineError, tool
from tests.machines.image import Image
from tests.machines.wire import connect

DISK, MEMORY = "disk.qcow2", "memory"
SAVE_DEADLINE_S = 120.0


@contextmanager
def use(image: Image, make: Callable[[Path], None]) -> Iterator[Path]:
    """The image's state. Where it has none, `make` puts one into an empty directory.

    It stays while the context is open. Raises OSError when it cannot be kept, and what `make` raises.
    """
    state = image.path / f"state-{_key()}"
    with state.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not state.is_dir():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not state.is_dir():
                _make(state, make)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield state


def remove(state: Path) -> None:
    """For a state that proved broken. Machines that have gone on from it hold its files open."""
    shutil.rmtree(state, ignore_errors=True)


def qemu() -> str:
    """The program."""
    return tool("qemu-system-x86_64") or "qemu-system-x86_64"


def _key() -> str:
    digest = hashlib.sha256(subprocess.run([qemu(), "--version"], env=ENVIRON, capture_output=True).stdout)
    for name in ("qemu.py", "saved.py"):
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def _make(state: Path, make: Callable[[Path], None]) -> None:
    for older in state.parent.glob("state-*.lock"):
        if older.stem != state.name:
            _remove_unused(older)
    draft = state.with_name(f"unfinished-{state.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        make(draft)
        draft.rename(state)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _remove_unused(lock: Path) -> None:
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        remove(lock.with_suffix(""))
        lock.unlink(missing_ok=True)


def make_disk(disk: Path, base: Path) -> None:
    """A qcow2 file that is `base` until something is written. (qemu-img is a package of its own.)

    Source: QEMU's docs/interop/qcow2.txt.
    """
    name, cluster = str(base).encode(), 1 << 16
    size, per_table = base.stat().st_size, cluster * cluster // 8
    extensions = struct.pack(">II8sII", 0xE2792ACA, 3, b"raw", 0, 0)  # the format of the base; the end
    header = struct.Struct(">4sIQIIQIIQQIIQ")
    at = header.size + len(extensions)
    tables = (-(-size // per_table), 3 * cluster, cluster, 1)  # L1: entries, offset; counts: offset, clusters
    fields = (b"QFI\xfb", 2, at, len(name), 16, size, 0, *tables, 0, 0)
    counts = struct.pack(">4H", 1, 1, 1, 1)
    parts = (header.pack(*fields) + extensions + name, struct.pack(">Q", 2 * cluster), counts, b"")
    disk.write_bytes(b"".join(part.ljust(cluster, b"\0") for part in parts))


class Monitor:
    """QEMU's own ear (QMP), for who makes a state."""

    def __init__(self, path: Path, alive: Callable[[], bool]) -> None:
        self._socket = connect(path, alive)
        self._lines = self._socket.makefile("rb")
        self.execute("qmp_capabilities")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def execute(self, command: str, **arguments: object) -> Any:
        """What QEMU returns; MachineError when it refuses, or is gone."""
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        for line in self._lines:
            message = json.loads(line)  # a greeting, an event or the answer
            if "error" in message:
                raise MachineError(f"QEMU refused {command}: {message['error']['desc']}")
            if "return" in message:
                return message["return"]
        raise MachineError(f"QEMU died at {command}")

    def save_memory(self, target: Path) -> None:
        """Write the memory and the devices' states to a file; the machine stops."""
        self.execute("migrate-set-parameters", **{"max-bandwidth": 1 << 40, "downtime-limit": 60_000})
        self.execute("migrate", uri=f"exec:cat >'{target}'")
        deadline = time.monotonic() + SAVE_DEADLINE_S
        while (status := self.execute("query-migrate")["status"]) != "completed":
            if time.monotonic() > deadline or status == "failed":
                raise MachineError(f"QEMU did not save the machine's memory: {status}")
            time.sleep(0.1)
