"""Names of users and groups."""

from __future__ import annotations

import grp
import os
import pwd

from slicer.kernel import on_host, proc


def user_name(uid: int) -> str:
    """The user's name, or the number if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


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
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def is_private_group(gid: int) -> bool:
    """Whether a group is the caller's alone: many systems create one for each user.

    It has the user's name and no other members. (Whether it is a primary group is checked only for the
    caller: such groups are created together with their user.)
    """
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
