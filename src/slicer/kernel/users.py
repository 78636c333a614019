"""Users and groups by their names."""

from __future__ import annotations

import grp
import os
import pwd


def user_name(uid: int) -> str:
    """The user's name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def other_user(uid: int) -> str:
    """The name of a user that is not ourselves; "" for ourselves."""
    return "" if uid == os.geteuid() else user_name(uid)


def group_name(gid: int) -> str:
    """The group's name, or the number where there is none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def is_private_group(gid: int) -> bool:
    """Whether a group is the caller's alone, as many systems make one for each user.

    It has the user's name and nobody else in it. (Who has it as a primary group is asked only of the caller:
    such groups are made together with their user.)
    """
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
