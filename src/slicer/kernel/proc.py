"""Facts about processes and this boot, mostly from /proc; waiting for processes; being a child."""

from __future__ import annotations

import errno
import os
import sys
import time

from slicer.kernel.signals import signal
from slicer.model import LEASE_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# /proc's errors for a process that has ended, or that is another user's and hidden (hidepid, ProtectProc).
_UNSEEN = (FileNotFoundError, ProcessLookupError, PermissionError)
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_CAP_SYS_NICE = 23  # capability.h
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_EXECUTES_S = 0.1  # execve(2) takes longer only from a disk that hangs
_AGAIN_S = 0.0005
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
LONGEST_POLL_S = 86_400.0  # poll(2) counts milliseconds in an int


def read_text(path: str) -> str:
    """The first 64 KiB of a kernel file as text (surrogateescape); raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536).decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def text_of(path: str) -> str:
    """As :func:`read_text`, stripped; "" if there is no such file, or nobody lets us read it."""
    try:
        return read_text(path).strip()
    except OSError:
        return ""


def names_in(path: str) -> list[str]:
    """The names in a directory, sorted; none if it does not exist, or nobody lets us list it."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def boot_id() -> str:
    """The id of this boot. With it, a pid and a start time name a process for ever."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def now_s() -> float:
    """Seconds since boot, suspended time included: the ledger's only clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on. Empty if the process has ended or is hidden."""
    try:
        stat = read_text(f"/proc/{pid}/stat")
    except _UNSEEN:
        return []
    # The command name may hold spaces and parentheses: count from the last ")".
    return stat[stat.rindex(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (field 22 of stat). None: it has ended. 0: hidden.

    A zombie counts as ended: it holds nothing, but a careless parent may keep it for ever.
    """
    fields = _stat(pid)
    if not fields:
        return None if send(pid, 0) else 0  # hidden
    return int(fields[19]) if fields[0] not in "ZX" else None


def send(pid: int, signo: int) -> bool:
    """Send a signal, or none (0), to a process that may have ended. False if it is another user's."""
    try:
        os.kill(pid, signo)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments of a process. Empty if it has ended, is hidden or is a kernel thread."""
    try:
        text = read_text(f"/proc/{pid}/cmdline")
    except _UNSEEN:
        return ()
    return tuple(text.split("\0")[:-1])


def retitle(text: str) -> None:
    """Make ps, systemd-cgls and `systemctl status` show this text in place of our arguments.

    It is cut to their length (setproctitle(3) would also use the space of the environment).
    """
    begin, end = map(int, _stat(os.getpid())[45:47])  # proc(5): arg_start, arg_end
    title = text.encode("utf-8", "replace")[: max(0, end - begin - 1)].decode("utf-8", "ignore").encode()
    try:
        fd = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
    except PermissionError:  # where no process may read another's memory, nor its own
        return
    try:
        os.pwrite(fd, title.ljust(end - begin, b"\0"), begin)
    finally:
        os.close(fd)


def is_stopped(pid: int, started: int | None = None) -> bool:
    """Whether the process (with this start time) is stopped, by Ctrl-Z or a debugger."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in "Tt" and started in (None, int(fields[19]))


def stops(pid: int) -> bool:
    """Whether the process is stopped, or has been sent SIGSTOP and is about to be."""
    # In this order: a SIGSTOP that is no longer pending has acted by the second look.
    return _has_bit(pid, "ShdPnd", signal.SIGSTOP - 1) or _stat(pid)[:1] == ["T"]


def is_interactive_shell(pid: int) -> bool:
    """Whether the process looks like a person's interactive shell. Such a shell ignores SIGTERM."""
    try:
        stdin = os.readlink(f"/proc/{pid}/fd/0")
    except _UNSEEN:
        return False
    return stdin.startswith(_TERMINALS) and _has_bit(pid, "SigIgn", signal.SIGTERM - 1)


def may_be_faster() -> bool:
    """Whether we may lower a niceness. Root in a container often may not."""
    return _has_bit(os.getpid(), "CapEff", _CAP_SYS_NICE)


def _has_bit(pid: int, which: str, number: int) -> bool:
    """Whether a set in /proc/PID/status (of signals or of capabilities) contains the bit."""
    try:
        status = read_text(f"/proc/{pid}/status")
    except _UNSEEN:
        return False
    mask = int(status.partition(f"\n{which}:")[2].split(maxsplit=1)[0], 16)
    return bool(mask >> number & 1)


def uid_of(pid: int) -> int | None:
    """The real uid of a process, which set-uid programs do not change. None if it has ended or is hidden."""
    try:
        status = read_text(f"/proc/{pid}/status")
    except _UNSEEN:
        return None
    line = next(line for line in status.splitlines() if line.startswith("Uid:"))
    return int(line.split()[1])


def parent(pid: int) -> int:
    """The parent's pid. 0 if the process has ended, is hidden, or is the first of its namespace."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def descendants(pid: int) -> list[int]:
    """The living processes below this one, including those in sessions of their own.

    A process that loses its parent during the search may be missed. If that matters, search again.
    """
    below = children if os.path.exists("/proc/thread-self/children") else _families().get
    seen: set[int] = set()
    heads = set(below(pid) or ())
    while heads:
        seen |= heads
        heads = {child for head in heads for child in below(head) or ()} - seen
    return [one for one in sorted(seen) if start_time(one) is not None]


def children(pid: int) -> list[int]:
    """The children of all threads of a process, zombies included. Empty if it has ended or is hidden."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except _UNSEEN:
        return []
    found: list[int] = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.readall().split())
        except _UNSEEN:
            continue  # it has ended in the meantime
    return found


def _families() -> dict[int, list[int]]:
    """The children of each visible process, for kernels without CONFIG_PROC_CHILDREN."""
    found: dict[int, list[int]] = {}
    for pid in pids():
        found.setdefault(parent(pid), []).append(pid)
    return found


def pids() -> list[int]:
    """All visible processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def in_lease(job: str) -> list[int]:
    """The processes that were started under the lease of ``job``, as far as we may inspect them.

    Their environment contains its id (LEASE_VARIABLE). This reads every process.
    """
    prefix, wanted = f"{LEASE_VARIABLE}=".encode(), job.encode()
    found = []
    for pid in pids():
        entries = environment(pid).split(b"\0")
        ids = (entry[len(prefix) :].split(b",") for entry in entries if entry.startswith(prefix))
        if any(wanted in found_ids for found_ids in ids):
            found.append(pid)
    return found


def environment(pid: int, limit: int = -1) -> bytes:
    """The initial environment of a process, from /proc: up to ``limit`` bytes, -1: all.

    Empty if the process has ended, or if we may not inspect it. Raises OSError if we lack descriptors or
    memory.
    """
    end = time.monotonic() + _EXECUTES_S
    while True:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                data = file.read(limit)
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise  # a failed read does not mean that there is no process
            return b""
        if data or time.monotonic() > end or not _has_environment(pid):
            return data
        time.sleep(_AGAIN_S)


def _has_environment(pid: int) -> bool:
    """Whether a process that shows no environment has one: in execve(2) it shows none for milliseconds."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False  # a kernel thread, or a process that is ending: the usual case
    fields = _stat(pid)
    if not fields:
        return False
    code, begin, end = fields[23], *fields[47:49]  # addresses; execve(2) sets that of the code last
    return code == "0" or begin != end


def wait_for_end(living: Callable[[], list[int]], deadline_s: float) -> bool:
    """Wait until ``living`` lists no process. False if it still does after ``deadline_s`` seconds."""
    import select

    end = time.monotonic() + deadline_s
    while pids := living():
        left_s = end - time.monotonic()
        if left_s <= 0:
            return False
        try:
            pidfd = os.pidfd_open(pids[0])
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(min(left_s, LONGEST_POLL_S) * 1000)
        finally:
            os.close(pidfd)
    return True


def is_running(pid: int, started: int) -> bool:
    """Whether the process with this pid and start time (see :func:`start_time`) still exists."""
    return bool(pid) and start_time(pid) == started


def pid_of(pidfd: int) -> int | None:
    """The pid of a pidfd; -1 if the process was reaped, 0 if it is not visible here. None: not a pidfd."""
    lines = read_text(f"/proc/self/fdinfo/{pidfd}").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), None)


def has_ended(pidfd: int) -> bool:
    from select import POLLIN, poll  # not select(2), which accepts no descriptor above 1023

    poller = poll()
    poller.register(pidfd, POLLIN)
    return bool(poller.poll(0))


def open_process(pid: int, started: int) -> int | None:
    """A pidfd of the process with this pid and start time; None: it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return None
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # a thread, or not a pid at all
            raise
        return None
    if is_running(pid, started):  # checked after the open, so the pidfd is of this process
        return pidfd
    os.close(pidfd)
    return None


def be_child(duty: Callable[[], None]) -> NoReturn:
    """Do ``duty`` in a forked child, with all signals blocked, and exit. Never returns and never raises."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        duty()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # no caller would show it
    finally:
        os._exit(code)


def adopt_orphans() -> None:
    """Become the parent of all orphans below us. Otherwise init or systemd would adopt them.

    A Python without ctypes cannot do this; then their origin is lost.
    """
    try:
        import _ctypes  # ctypes itself takes milliseconds, for one prctl(2)
    except ImportError:
        return
    all_loaded: Any = None
    prctl = _ctypes.dlsym(_ctypes.dlopen(all_loaded, 0), "prctl")
    if _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1)):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def has_children() -> bool:
    """Whether this process has children, zombies included. Takes one system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def is_dead_child(pid: int) -> bool:
    """Whether this child has ended. It stays a zombie."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def ancestors(pid: int) -> frozenset[int]:
    """The pids of this process's visible ancestors."""
    found = set()
    while (pid := parent(pid)) and pid not in found:
        found.add(pid)
    return frozenset(found)


def is_systemd(pid: int) -> bool:
    """Whether the sender of a signal is a systemd. The pid 0 is outside our pid namespace."""
    return pid in (0, 1) or comm(pid) == "systemd"


def comm(pid: int) -> str:
    """The name of a process (comm); "" if it is not visible."""
    try:
        return read_text(f"/proc/{pid}/comm").removesuffix("\n")
    except OSError:
        return ""


def peak_bytes(maxrss_kib: int) -> int:
    """Peak memory of the command in bytes, from its ru_maxrss.

    0 if it stayed below slicer's own, because getrusage(2) starts a child with its parent's figure.
    """
    import resource

    own_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return maxrss_kib * 1024 if maxrss_kib > own_kib else 0


def survive_group_kill() -> None:
    """Stay alive when the kernel kills the whole scope (OOMPolicy=kill), in order to report it.

    Only root may. Call it after the command was started, because a child would inherit it.
    """
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"-1000")
    except OSError:
        pass  # a user may only raise it
    finally:
        os.close(fd)
