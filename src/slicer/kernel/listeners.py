"""Whose sockets listen at a TCP port of this network namespace. See proc_net(5)."""

from __future__ import annotations

_LISTENS = "0A"
_STATE, _ADDRESS, _UID = 3, 1, 7  # fields of a line


def uids(port: int) -> frozenset[int]:
    """The users that listen at that port, on whatever address; none where it cannot be seen."""
    found: set[int] = set()
    for family in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{family}", encoding="ascii") as file:
                lines = file.readlines()
        except OSError:
            continue  # a kernel without IPv6
        ending = f":{port:04X}"
        for fields in (line.split() for line in lines if f" {_LISTENS} " in line):
            if fields[_STATE] == _LISTENS and fields[_ADDRESS].endswith(ending):
                found.add(int(fields[_UID]))
    return frozenset(found)
