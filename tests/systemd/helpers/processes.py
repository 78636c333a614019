"""Processes as /proc shows them: who carries a test's mark, and who sits in a job's scope."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slicer.kernel import proc

MARK = "SLICER_TEST_MARK"
_SCOPE = re.compile(r"/slicer-[0-9a-f]{12}\.scope")


def pids() -> Iterator[int]:
    yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def read(pid: int, file: str) -> bytes:
    """A file of the process; empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""


def fdinfo(pid: int) -> list[str]:
    """What the kernel tells of each of its descriptors; nothing when the process is gone."""
    try:
        names = os.listdir(f"/proc/{pid}/fdinfo")
    except OSError:
        return []
    return [read(pid, f"fdinfo/{name}").decode() for name in names]


def descriptors(pid: int) -> dict[int, str]:
    """What each of its descriptors leads to. What it closes meanwhile is left out."""
    found = {}
    with suppress(FileNotFoundError):  # the process is gone
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def cgroup(pid: int) -> str:
    lines = read(pid, "cgroup").decode().splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    state = read(pid, "stat").rpartition(b") ")[2][:1]
    return state not in (b"", b"Z", b"X")


def state(pid: int) -> str:
    """R, S, T (stopped) …; "" when it is gone."""
    return read(pid, "stat").rpartition(b") ")[2][:1].decode()


def parent(pid: int) -> int:
    return int(read(pid, "stat").rpartition(b") ")[2].split()[1])


def of_test(mark: str, others: set[int]) -> dict[int, str]:
    """Living processes that a test has started, by its mark in their environment or by their scope.

    ``others`` were there before it; who has ended since is taken out.
    """
    there = set(pids())
    others &= there
    entry = f"{MARK}={mark}".encode()
    found = {}
    for pid in there - others:
        ours = entry in proc.environment(pid).split(b"\0") or _SCOPE.search(cgroup(pid))
        if ours and pid != os.getpid() and is_alive(pid):
            found[pid] = read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
    return found


def in_cgroup(name: str) -> set[int]:
    """The pids in one cgroup, named as in /proc/PID/cgroup."""
    try:
        return {int(pid) for pid in Path(f"/sys/fs/cgroup{name}/cgroup.procs").read_text().split()}
    except OSError:
        return set()


def parent_is(pid: int, expected: int) -> bool:
    try:
        return parent(pid) == expected
    except IndexError:  # gone
        return False


def watched_by(pid: int) -> set[int]:
    """The processes whose ends it waits for by a pidfd; -1 stands for one that has been waited for."""
    lines = [line for text in fdinfo(pid) for line in text.splitlines()]
    return {int(line.split()[1]) for line in lines if line.startswith("Pid:")}


def children(pid: int) -> set[int]:
    """Its children, zombies that it has not waited for included."""
    return {int(child) for child in read(pid, f"task/{pid}/children").split()}
