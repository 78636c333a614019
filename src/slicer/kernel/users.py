"""Names of users and groups, without waiting for a name service (LDAP and the like) that is away.

Local users are in files. All others are looked up by a child process that has a deadline. Once one was not
answered in time, nobody is looked up for a while, and the number stands for the name.
"""

from __future__ import annotations

import os
import select
import time

from slicer.kernel import on_host, proc
from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILES = {"user": "/etc/passwd", "group": "/etc/group"}
_FIELDS = {"user": 7, "group": 4}
_MOST_BYTES = 1 << 23
_DEADLINE_S = 1.0
_FILE_S = 1.0  # how long an entry of a file counts: as long as one look at thousands of jobs
_QUIET_S = 60.0  # how long nobody is asked after a look-up without an answer, nor again after one with it

# What is known, and until when that counts (monotonic); [] is nobody.
_known: dict[tuple[str, int], tuple[list[str], float]] = {}
_quiet_until = 0.0  # monotonic


def user_name(uid: int) -> str:
    """The user's name, or the number if there is no name."""
    return (_entry("user", uid) or [str(uid)])[0]


def lingers(uid: int) -> bool:
    """Whether the user's manager runs without a session, too."""
    return os.path.exists(on_host(f"/var/lib/systemd/linger/{user_name(uid)}"))


def hidden_root() -> int:
    """The uid that this user namespace shows for the machine's root, whom it does not map; -1: it maps root.

    It shows the same for all others whom it does not map, so it alone tells of no file whose it is.
    """
    hidden = int(proc.read_text("/proc/sys/kernel/overflowuid"))
    lines = proc.read_text("/proc/self/uid_map").splitlines()
    ranges = [tuple(map(int, line.split())) for line in lines]  # first here, first outside, count
    is_somebody = any(here <= hidden < here + count for here, _, count in ranges)
    return -1 if is_somebody or any(outside == 0 for _, outside, _ in ranges) else hidden


def other_user(uid: int) -> str:
    """The name of another user; "" for ourselves."""
    return "" if uid == os.geteuid() else user_name(uid)


def group_name(gid: int) -> str:
    """The group's name, or the number if there is no name."""
    return (_entry("group", gid) or [str(gid)])[0]


def is_private_group(gid: int) -> bool:
    """Whether a group is the caller's alone: many systems create one for each user.

    It has the user's name and no other members. (Whether it is a primary group is checked only for the
    caller: such groups are created together with their user.)
    """
    user, group = _entry("user", os.geteuid()), _entry("group", gid)
    if not user or not group:
        return False
    members = set(filter(None, group[3].split(",")))
    return user[3] == str(gid) and group[0] == user[0] and members <= {user[0]}


def _entry(kind: str, number: int) -> list[str]:
    """The fields of a user or group, as in passwd(5) and group(5); [] if there is none, or none in time."""
    global _quiet_until
    found, until = _known.get((kind, number), ([], 0.0))
    if time.monotonic() < until:
        return found
    there = entries(_FILES[kind], kind, f":{number}:")
    found = next((each for each in there if each[2] == str(number)), [])
    if found:
        _known[kind, number] = found, time.monotonic() + _FILE_S
    if found or time.monotonic() < _quiet_until:
        return found
    try:
        answer = asked(lambda fd: _answer(fd, kind, number), _DEADLINE_S)
    except OSError:
        return []  # no process can be forked
    if not answer.endswith(b"\n"):
        _quiet_until = time.monotonic() + _QUIET_S
        return []
    fields = answer[:-1].decode("utf-8", "surrogateescape").split(":")
    found = fields if len(fields) == _FIELDS[kind] else []
    _known[kind, number] = found, time.monotonic() + _QUIET_S
    return found


def entries(path: str, kind: str, having: str = "") -> Iterator[list[str]]:
    """The entries, which have a text in them, of a file as /etc/passwd or /etc/group; none if unreadable."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            lines = file.read(_MOST_BYTES).split("\n")
    except OSError:
        return iter(())
    found = (line.split(":") for line in lines if having in line)
    return (each for each in found if len(each) == _FIELDS[kind] and each[0])


def _answer(fd: int, kind: str, number: int) -> None:
    """In the child: the entry's line, empty if there is none."""
    import grp
    import pwd

    try:
        if kind == "user":
            user = pwd.getpwuid(number)
            fields = [user.pw_name, "", str(number), str(user.pw_gid), "", user.pw_dir, user.pw_shell]
        else:
            group = grp.getgrgid(number)
            fields = [group.gr_name, "", str(number), ",".join(group.gr_mem)]
    except (KeyError, OverflowError):
        fields = []
    os.write(fd, ":".join(fields).encode("utf-8", "surrogateescape") + b"\n")


def asked(answer: Callable[[int], None], deadline_s: float) -> bytes:
    """What a child process writes by ``answer`` into a descriptor, until it is done or the time is over."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(ours)
        os.close(theirs)
        raise
    if pid == 0:
        try:
            # If we are killed meanwhile: it inherits descriptors, and a lease among them.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.alarm(int(deadline_s) + 1)
            answer(theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        return _read_until(ours, time.monotonic() + deadline_s)
    finally:
        os.close(ours)
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # this process reaps all its children elsewhere


def _read_until(fd: int, end_s: float) -> bytes:
    """Everything until the other end is closed or the time is over."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = b""
    while (left_s := end_s - time.monotonic()) > 0 and poll.poll(left_s * 1000):
        piece = os.read(fd, 65536)
        if not piece:
            break
        data += piece
    return data
