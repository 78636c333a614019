"""What /proc says about processes and this boot."""

from __future__ import annotations

import os


def read_text(path: str, limit: int = 65536) -> str:
    """The start of a small kernel file as text (surrogateescape); raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, limit).decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def boot_id() -> str:
    """The id of this boot: with it, a pid and its start time name a process for ever."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of stat); None when it is gone."""
    try:
        stat = read_text(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and parentheses: count from the last ")".
    return int(stat[stat.rindex(")") + 2 :].split()[19])


def parent(pid: int) -> int:
    """The parent's pid, or 0 when the process is gone or is the first of its namespace."""
    try:
        stat = read_text(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat[stat.rindex(")") + 2 :].split()[1])


def in_lease(pid: str, variable: str, job: str) -> bool:
    """Whether ``job`` is among the comma-separated ids in the variable that the process started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return False  # gone, or of another user whom we may not inspect
    prefix = f"{variable}=".encode()
    return any(
        job.encode() in entry[len(prefix) :].split(b",") for entry in entries if entry.startswith(prefix)
    )


def any_in_lease(variable: str, job: str) -> bool:
    """Whether any process that we may inspect was started under the lease of ``job``."""
    return any(in_lease(name, variable, job) for name in os.listdir("/proc") if name.isdigit())


def ancestors(pid: int) -> frozenset[int]:
    """The pids of all processes above this one, as far as they can be seen."""
    found = set()
    while (pid := parent(pid)) and pid not in found:
        found.add(pid)
    return frozenset(found)
