"""Finds who listens at a TCP address of this machine, or is connected. See sock_diag(7), proc_net(5)."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys

from slicer.kernel import open_files, proc
from slicer.kernel.peer import credentials

_FAMILIES = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}
_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}  # of an address
_LISTEN = 10
_SOCK_DIAG, _BY_FAMILY = 4, 20  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY
_ONE, _DUMP = 0x001, 0x301  # NLM_F_REQUEST, and NLM_F_DUMP
_ERROR, _DONE = 2, 3
_MOST_BYTES = 1 << 16
# nlmsghdr; inet_diag_req_v2 with the port, or both addresses; inet_diag_msg's address and uid; nlattr.
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBxxI2s46x")
_ASKED_ONE = struct.Struct("=BBxxI2s2s16s16s4x8s")
_TOLD = struct.Struct("=8x16s40xI4x")
_ATTRIBUTE = struct.Struct("=HH")
_V6ONLY = 11  # INET_DIAG_SKV6ONLY
_STATE, _ADDRESS, _UID, _INODE = 3, 1, 7, 9  # fields of a line in /proc


def uids(host: str, port: int) -> frozenset[int]:
    """The users whose sockets a connection to this address can reach; empty if that cannot be determined.

    So a socket at 127.0.0.2 does not count for 127.0.0.1. For 0.0.0.0, or a name, every address counts.
    """
    found: set[int] = set()
    for family, file in _FAMILIES.items():
        try:
            told = _asked(family, port)
            found |= {uid for uid, address, v6only in told if _reaches(host, address, is_v6only=v6only)}
        except OSError:  # a kernel without sock_diag; reading the file takes it 20 ms
            found |= {int(fields[_UID]) for fields in _listed(file, host, port)}
    return frozenset(found)


def peer(connection: socket.socket) -> str:
    """Who is at the other end: "uid 1000" on this machine, else the address (of IPv6, its network).

    Without sock_diag all users of this machine are one. Raises OSError if the other end is gone.
    """
    if connection.family == socket.AF_UNIX:
        return f"uid {credentials(connection)[1]}"
    ends = (connection.getpeername()[:2], connection.getsockname()[:2])
    ports = (port.to_bytes(2, "big") for _, port in ends)
    hosts = [ipaddress.ip_address(host.partition("%")[0]).packed for host, _ in ends]
    asked = _ASKED_ONE.pack(
        connection.family, socket.IPPROTO_TCP, 0xFFFFFFFF, *ports, *hosts, b"\xff" * 8
    )  # fmt: skip
    try:
        ((uid, _, _),) = _told(asked, _ONE)
    except OSError:
        return hosts[0][:8].hex()
    return f"uid {uid}"


def pid(host: str, port: int) -> int:
    """The process that listens at that address, if we may see it; 0 if none is found."""
    lines = (fields for file in _FAMILIES.values() for fields in _listed(file, host, port))
    found = {f"socket:[{fields[_INODE]}]" for fields in lines}
    pids = proc.pids() if found else ()
    return next((each for each in pids if not found.isdisjoint(open_files.links(each))), 0)


def _reaches(host: str, address: bytes, *, is_v6only: bool) -> bool:
    """Whether a connection to ``host`` can arrive at a socket that is bound to ``address``. Pure."""
    bound = ipaddress.ip_address(address)
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return True
    if wanted.version == 4 and isinstance(bound, ipaddress.IPv6Address):
        bound = bound.ipv4_mapped or bound
    is_of_its_kind = bound.version == wanted.version or (wanted.version == 4 and not is_v6only)
    return wanted.is_unspecified or bound == wanted or (bound.is_unspecified and is_of_its_kind)


def _asked(family: socket.AddressFamily, port: int) -> list[tuple[int, bytes, bool]]:
    """The uid and the address of each socket, and whether it is for IPv6 only. Raises OSError."""
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 1 << _LISTEN, port.to_bytes(2, "big"))
    told = _told(asked, _DUMP)
    return [(uid, address[: _BYTES[family]], _is_v6only(attributes)) for uid, address, attributes in told]


def _told(asked: bytes, flags: int) -> list[tuple[int, bytes, bytes]]:
    """The uid, the address and the attributes of each socket. Raises OSError."""
    found: list[tuple[int, bytes, bytes]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, flags, 0, 0) + asked)
        while not (found and flags == _ONE):
            told, at = netlink.recv(_MOST_BYTES), 0
            while at < len(told):
                size, kind, *_ = _HEADER.unpack_from(told, at)
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", told, at + _HEADER.size)[0], "sock_diag")
                if kind == _DONE:
                    return found
                address, uid = _TOLD.unpack_from(told, at + _HEADER.size)
                found.append((uid, address, told[at + _HEADER.size + _TOLD.size : at + size]))
                at += (size + 3) & ~3
    return found


def _is_v6only(attributes: bytes) -> bool:
    while len(attributes) > _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _V6ONLY:
            return bool(attributes[_ATTRIBUTE.size])
        attributes = attributes[max(_ATTRIBUTE.size, (size + 3) & ~3) :]
    return False


def _listed(file: str, host: str, port: int) -> list[list[str]]:
    """The lines of /proc's table about sockets that a connection can reach, each as its fields.

    The table does not say which are for IPv6 only.
    """
    try:
        with open(f"/proc/self/net/{file}", encoding="ascii") as table:
            lines = [line.split() for line in table]
    except OSError:
        return []  # a kernel without IPv6
    state, ending = f"{_LISTEN:02X}", f":{port:04X}"
    return [
        fields for fields in lines[1:]
        if fields[_STATE] == state and fields[_ADDRESS].endswith(ending)
        and _reaches(host, _packed(fields[_ADDRESS].removesuffix(ending)), is_v6only=False)
    ]  # fmt: skip


def _packed(words: str) -> bytes:
    """An address of the table: words of 32 bits in the machine's byte order."""
    numbers = (int(words[at : at + 8], 16) for at in range(0, len(words), 8))
    return b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)
