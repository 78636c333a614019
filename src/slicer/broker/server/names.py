"""The users and groups of the machine, looked up without waiting.

/etc/passwd and /etc/group are read as files. Name services (LDAP and the like) may hang. So only names in the
policy that are missing from the files are looked up there, in a child process and with a deadline.
"""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from slicer.kernel.open_files import file_id
from slicer.kernel.users import asked, entries, user_name
from slicer.record import record

_MAX_NUMBER = 2**32 - 2
_DEADLINE_S = 2.0


@record
class _Tables:
    names: dict[int, str]  # of users
    uids: dict[str, int]
    gids: dict[str, int]
    own_gid: dict[int, int]  # by uid
    members: dict[str, tuple[int, ...]]  # the gids of groups that name a user


class Names:
    """The machine's users and groups. The files are read again after a change."""

    def __init__(self, directory: str = "/etc") -> None:
        self._paths = (f"{directory}/passwd", f"{directory}/group")
        self._ids: tuple[object, ...] = ()
        self._tables = _Tables({}, {}, {}, {}, {})
        self._asked: dict[int, str] = {}  # names that a name service knew

    def name_of(self, uid: int) -> str:
        """The user's name, else "uid 1001"."""
        return self._now().names.get(uid) or self._asked.get(uid) or f"uid {uid}"

    def gids_of(self, uid: int, said: Sequence[int]) -> tuple[int, ...]:
        """The groups of a user: those of its socket (``said``), its own first, and those of the files."""
        tables = self._now()
        found = dict.fromkeys(said)
        if uid in tables.own_gid:
            found[tables.own_gid[uid]] = None
        found.update(dict.fromkeys(tables.members.get(tables.names.get(uid, ""), ())))
        return tuple(found)

    def look_up(self, users: Iterable[str], groups: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
        """The numbers of these names, except unknown ones."""
        tables = self._now()
        uids = {name: tables.uids[name] for name in users if name in tables.uids}
        gids = {name: tables.gids[name] for name in groups if name in tables.gids}
        missing = [("user", name) for name in users if name not in uids]
        missing += [("group", name) for name in groups if name not in gids]
        for (kind, name), number in ask_services(missing).items() if missing else ():
            (uids if kind == "user" else gids)[name] = number
            if kind == "user":
                self._asked[number] = name
        return uids, gids

    def _now(self) -> _Tables:
        ids = tuple(file_id(path) for path in self._paths)
        if ids != self._ids:
            self._tables, self._ids = _read(*self._paths), ids
        return self._tables


def _read(passwd: str, group: str) -> _Tables:
    names: dict[int, str] = {}
    uids: dict[str, int] = {}
    gids: dict[str, int] = {}
    own_gid: dict[int, int] = {}
    members: dict[str, list[int]] = {}
    for fields in entries(passwd, "user"):  # if it cannot be read, the sockets' groups remain
        uid, gid = _number(fields[2]), _number(fields[3])
        if uid is not None and gid is not None:
            names.setdefault(uid, fields[0])
            uids.setdefault(fields[0], uid)
            own_gid.setdefault(uid, gid)
    for fields in entries(group, "group"):
        gid = _number(fields[2])
        if gid is not None:
            gids.setdefault(fields[0], gid)
            for member in filter(None, fields[3].split(",")):
                members.setdefault(member, []).append(gid)
    return _Tables(names, uids, gids, own_gid, {name: tuple(found) for name, found in members.items()})


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    return number if (number := int(text)) <= _MAX_NUMBER else None


def ask_services(
    names: Iterable[tuple[str, str]], deadline_s: float = _DEADLINE_S
) -> dict[tuple[str, str], int]:
    """The numbers of ("user" or "group", name) from all sources in nsswitch.conf.

    Names without a number, or without one in time, are left out.
    """
    wanted = list(names)
    data = asked(lambda fd: _answer(fd, wanted), deadline_s)
    numbers = [_number(word) for word in data.decode("ascii", "replace").split("\n")[:-1]]
    return {key: number for key, number in zip(wanted, numbers, strict=False) if number is not None}


def _answer(fd: int, wanted: list[tuple[str, str]]) -> None:
    """In the child: one line for each name, empty for an unknown one."""
    for kind, name in wanted:
        try:
            number = pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
            os.write(fd, b"%d\n" % number)
        except (KeyError, ValueError):
            os.write(fd, b"\n")


_FILE = "/etc/subuid"
_MOST_BYTES = 1 << 20
_LOOKS = 100.0  # in a burst, and then ...
_LOOKS_EACH_S = 5.0
_OF_MACHINES = "vu-"  # nss-mymachines' names of uids in containers


def _is_user(uid: int) -> bool:
    name = user_name(uid)
    return name != str(uid) and not name.startswith(_OF_MACHINES)


class Subordinates:
    """The owners of subordinate uids (subuid(5)): a user of rootless containers has 65,536 of them.

    Each would have caps, a share and connections of its own. So they are refused; their owner may ask
    instead. Networks have users with uids in these ranges: the policy says which, else a name service knows.
    """

    def __init__(self, is_user: Callable[[int], bool | None], path: str = _FILE) -> None:
        """``is_user``: what the policy says of a subordinate uid; None: nothing."""
        self._says = is_user
        self._path = path
        self._read: object = None
        self._left: dict[str, tuple[float, float]] = {}  # by owner: look-ups that are left, as of when
        self._ranges: tuple[tuple[int, int, str], ...] = ()

    def owner_of(self, uid: int) -> str:
        """The owner of a subordinate uid, by name or uid; "" if the uid is an ordinary user's."""
        self._refresh()
        found = next((owner for first, last, owner in self._ranges if first <= uid <= last), "")
        if not found:
            return ""
        said = self._says(uid)
        is_user = self._may_look(found) and _is_user(uid) if said is None else said
        return "" if is_user else found

    def _may_look(self, owner: str) -> bool:
        """Whether a uid of that range may be looked up: a container could come with each of its uids."""
        left, at_s = self._left.get(owner, (_LOOKS, 0.0))
        now_s = time.monotonic()
        left = min(_LOOKS, left + (now_s - at_s) * _LOOKS_EACH_S)
        self._left[owner] = max(0.0, left - 1.0), now_s
        return left >= 1.0

    def _refresh(self) -> None:
        seen, text = file_id(self._path), ""
        if seen == self._read:
            return
        if seen is not None:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                text = file.read(_MOST_BYTES)
        self._ranges, self._read = tuple(ranges(text)), seen


def ranges(text: str) -> Iterator[tuple[int, int, str]]:
    """First and last uid and the owner of each line. Omits root's own ranges and invalid lines."""
    for line in text.splitlines():
        owner, *numbers = line.strip().split(":")
        if len(numbers) == 2 and all(each.isascii() and each.isdigit() for each in numbers):
            first, count = (int(each[:12]) for each in numbers)
            if first and owner not in ("root", "0"):
                yield first, first + count - 1, owner
