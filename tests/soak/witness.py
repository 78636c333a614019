"""The command of a soak's job: proves from outside that nobody else has what it was given.

    witness.py LOG ID HOLD_MS EXIT_CODE CHILD_MS DIRECTORY CPU_UNITS GPUS GPU_UNITS [SLOT=UNITS…]

Of each resource it must get as many of the lock files ``DIRECTORY/cpu/0``, ``1``, …, ``DIRECTORY/UUID/0``,
``1``, … and ``DIRECTORY/slot-SLOT/0``, ``1``, … at once, without waiting: there are exactly as many files as
there are units of the resource, so it cannot fail unless slicer gave away more. The kernel lets go of the
locks when the processes that hold them are gone, however they die. With CHILD_MS a child lives on beyond the
command for that long, in a session of its own and with no descriptor of slicer's; it holds the witness too.
Standard library only, and little of it: start-up is most of such a job.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time


def main(
    log: str, name: str, hold_ms: str, code: str, child_ms: str, base: str, cpu: str, gpus: str, units: str,
    *slots: str,
) -> int:  # fmt: skip
    move_up()
    log_fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def note(word: str) -> None:
        os.write(log_fd, f"{word} {name} {os.getpid()} {os.getppid()} {time.monotonic_ns()}\n".encode())

    needs = {"cpu": int(cpu)}
    uuids = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpus != "0" else []
    if len(uuids) != int(gpus):
        note(f"VIOLATION:{len(uuids)}-instead-of-{gpus}-GPUs")
    needs.update(dict.fromkeys(uuids, int(units)))
    needs.update((f"slot-{slot.partition('=')[0]}", int(slot.partition("=")[2])) for slot in slots)
    held: list[int] = []
    for resource, wanted in needs.items():
        got = take(f"{base}/{resource}", wanted)
        if len(got) < wanted:
            note(f"VIOLATION:{resource}:{len(got)}-of-{wanted}")
        held += got
    note("start")
    if child_ms != "0":
        be_two(log_fd, held, float(child_ms) / 1000, note)
    time.sleep(float(hold_ms) / 1000)
    note("end")
    return int(code)


def move_up() -> None:
    """Have slicer's descriptors closed after ours when we are killed: the kernel closes the lowest first."""
    for fd in [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]:
        try:
            fcntl.fcntl(fd, fcntl.F_DUPFD, 100)
            os.close(fd)
        except OSError:
            pass  # the listing's own


def take(directory: str, wanted: int) -> list[int]:
    """Lock so many of the directory's files, or as many as can be had."""
    held: list[int] = []
    for unit in sorted(os.listdir(directory), key=int):
        if len(held) == wanted:
            break
        fd = os.open(f"{directory}/{unit}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
        else:
            held.append(fd)
    return held


def be_two(log_fd: int, held: list[int], for_s: float, note) -> None:  # type: ignore[no-untyped-def]
    if os.fork():
        return
    os.setsid()
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in (*held, log_fd):
            try:
                os.close(fd)
            except OSError:
                pass  # the listing's own
    note("child")
    time.sleep(for_s)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
