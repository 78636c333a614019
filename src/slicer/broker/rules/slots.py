"""Whose slots are whose: those that the administrator counts are all users', others their user's own. Pure.

Two users may each have a slot "license" and mean different things. So in the broker's files a slot that the
administrator's configuration does not name carries its user's uid, as in ``u1001.license``. No user ever
sees that of its own.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping



def kept(slots: Mapping[str, int], uid: int, counted: Mapping[str, int]) -> dict[str, int]:
    """The slots as the broker keeps them. ``counted``: how many the administrator says there are."""
    return {name if name in counted else _own(uid) + name: count for name, count in slots.items()}


def kept_limits(
    slots: Mapping[str, int], said: Mapping[str, int], uid: int, counted: Mapping[str, int]
) -> dict[str, int]:
    """How many there are of each of these slots: as the administrator says, else as the user does."""
    return {
        name if name in counted else _own(uid) + name: counted.get(name, said.get(name, 0)) for name in slots
    }


def shown_name(name: str, viewer: int) -> str:
    """A slot as this user knows it; "" for another user's own. Root sees all, with their uid."""
    own = _own(viewer)
    if name.startswith(own):
        return name[len(own) :]
    return "" if viewer and is_private(name) else name


def shown(slots: Mapping[str, int], viewer: int) -> dict[str, int]:
    """The slots as this user knows them, without those of others."""
    return {known: count for name, count in slots.items() if (known := shown_name(name, viewer))}


def is_private(name: str) -> bool:
    """Whether the slot is a user's own."""
    head, dot, _ = name.partition(".")
    return bool(dot) and head[:1] == "u" and head[1:].isdigit()


def _own(uid: int) -> str:
    return f"u{uid}."
