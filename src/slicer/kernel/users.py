"""Users by their names."""

from __future__ import annotations

import pwd


def user_name(uid: int) -> str:
    """The user's name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
