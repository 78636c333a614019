"""``slicer adopt``: ``slicer run --detach`` for a process that runs already."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from typing import Any

from slicer import backend as backends
from slicer.cli import run, runoptions
from slicer.cli.job_register import JobRegister
from slicer.errors import UsageError
from slicer.gpu.observer import GpuObserver
from slicer.kernel import cgroup, proc
from slicer.model import Lease, is_in_job

_AROUND = ("tmux: server", "screen")
_OURS = ("--detach", "--no-wait", "--linger", "--adopts")


def perform(options: dict[str, Any], words: tuple[str, ...]) -> int:
    """Perform a parsed command line, whose first word is the process. Returns slicer's exit code."""
    return run.reported("adopt", options, lambda: _adopt(options, words))


def _adopt(options: dict[str, Any], words: tuple[str, ...]) -> int:
    options, more = runoptions.parse(list(words[1:]), "adopt", options)
    if not words or more or not words[0].isdecimal():
        raise UsageError("takes the pid of one process", hint="slicer adopt PID [OPTIONS]; ps -x shows yours")
    pid, before = int(words[0]), sys.argv[2 : len(sys.argv) - len(words)]
    said = [word for word in (*before, *words[1:]) if word != "--"]
    lock = _locked(pid)  # until it is a job, which then is found by whoever asks at the same time
    name, observer = _checked(pid), GpuObserver()
    seen = observer.observe().processes if observer.try_open() else ()
    used = sorted({each.gpu_uuid for each in seen if pid in (each.pid, *each.above)})
    if used and not options["gpu"]:
        said += ["--gpu", ",".join(used)]
    with suppress(OSError):  # if its directory was removed, the job's is ours
        os.chdir(os.readlink(f"/proc/{pid}/cwd"))
    sys.argv[1:] = ["run", *said, *_OURS, name, "--", *proc.command_line(pid)]
    code = run.perform(*runoptions.parse(sys.argv[2:], "run"))
    os.close(lock)
    return code


def _locked(pid: int) -> int:
    """A file of the process that no other user can open, locked. Raises UsageError."""
    try:
        lock = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
        if proc.uid_of(pid) != os.geteuid():
            raise PermissionError
    except OSError as error:
        hint = f"ps -x lists yours; of another user's: sudo -u USER slicer adopt {pid}"
        raise UsageError("you have no such process", where=str(pid), hint=hint) from error
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _checked(pid: int) -> str:
    """The process as PID:START. Raises UsageError if it cannot become a job."""
    here, there, comm, started = cgroup.of("self"), cgroup.of(pid), proc.comm(pid), proc.start_time(pid)
    leases = [each.entry for each in JobRegister().living if isinstance(each.entry, Lease)]
    job = next((each.job for each in leases if pid in (each.pid, each.keeper) or is_in_job(there, each)), "")
    outer, unit = next((each.job for each in leases if is_in_job(here, each)), ""), there.rpartition("/")[2]
    above = (os.getpid(), *proc.ancestors(os.getpid()))
    is_around = pid in above or comm in _AROUND or proc.is_interactive_shell(pid)
    is_elsewhere = not os.path.samefile(f"/proc/{pid}/ns/pid", "/proc/self/ns/pid")
    is_service = unit.endswith(".service") and proc.is_systemd(proc.parent(pid))
    for is_so, message, hint in (
        (not backends.has_systemd(), "needs systemd, which does not run here", ""),
        (pid not in proc.pids() or not started, "it has ended, or is a thread", "ps -x lists yours"),
        (not proc.command_line(pid), "it is the kernel's", "ps -x lists yours"),
        (job, f"it is in job {job}", f"slicer show {job}"),
        (outer, f"slicer adopt runs in job {outer}, with which it would end", "run it in another shell"),
        (is_around, f"it is {comm}, around other programs", "adopt the program, not its shell or terminal"),
        (is_elsewhere, "it is in a container", "see docs/containers.md"),
        (is_service, f"it is {unit} itself", "ExecStart=slicer run … in that unit: see docs/services.md"),
    ):
        if is_so:
            raise UsageError(message, where=str(pid), hint=hint)
    return f"{pid}:{started}"
