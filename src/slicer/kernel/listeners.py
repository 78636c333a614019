"""Finds who listens at a TCP port of this network namespace. See sock_diag(7), proc_net(5)."""

from __future__ import annotations

import socket
import struct

from slicer.kernel import open_files, proc

_FAMILIES = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}
_LISTEN = 10
_SOCK_DIAG, _BY_FAMILY = 4, 20  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_MOST_BYTES = 1 << 16
# nlmsghdr; then inet_diag_req_v2 with the port, or the part of inet_diag_msg that ends with the uid.
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBxxI2s46x")
_TOLD = struct.Struct("=64xI")
_STATE, _ADDRESS, _UID, _INODE = 3, 1, 7, 9  # fields of a line in /proc


def uids(port: int) -> frozenset[int]:
    """The users that listen at that port, on any address; empty if that cannot be determined."""
    found: set[int] = set()
    for family, file in _FAMILIES.items():
        try:
            found |= _asked(family, port)
        except OSError:  # a kernel without sock_diag; reading the file takes it 20 ms
            found |= {int(fields[_UID]) for fields in _listed(file, port)}
    return frozenset(found)


def pid(port: int) -> int:
    """The process that listens at that port, if we may see it; 0 if none is found."""
    found = {f"socket:[{fields[_INODE]}]" for file in _FAMILIES.values() for fields in _listed(file, port)}
    pids = proc.pids() if found else ()
    return next((each for each in pids if not found.isdisjoint(open_files.links(each))), 0)


def _asked(family: int, port: int) -> set[int]:
    found: set[int] = set()
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 1 << _LISTEN, port.to_bytes(2, "big"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _DUMP, 0, 0) + asked)
        while True:
            told, at = netlink.recv(_MOST_BYTES), 0
            while at < len(told):
                size, kind, *_ = _HEADER.unpack_from(told, at)
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", told, at + _HEADER.size)[0], "sock_diag")
                if kind == _DONE:
                    return found
                found.add(_TOLD.unpack_from(told, at + _HEADER.size)[0])
                at += (size + 3) & ~3


def _listed(file: str, port: int) -> list[list[str]]:
    """The lines of /proc's table about sockets that listen at the port, each as its fields."""
    try:
        with open(f"/proc/self/net/{file}", encoding="ascii") as table:
            lines = [line.split() for line in table]
    except OSError:
        return []  # a kernel without IPv6
    state, ending = f"{_LISTEN:02X}", f":{port:04X}"
    return [fields for fields in lines[1:] if fields[_STATE] == state and fields[_ADDRESS].endswith(ending)]
