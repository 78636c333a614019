"""Which Host headers are for us: none that another site's page can claim (DNS rebinding). Pure."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LOCAL_NAMES = ("localhost", "localhost.localdomain")


def is_meant(host: str, hosts: Sequence[str]) -> bool:
    """Whether the Host is an address, the machine itself or one of ``hosts``."""
    return not host or is_own(name_of(host), hosts) or is_address(name_of(host))


def name_of(authority: str) -> str:
    """The host of "HOST:PORT" or "[IPV6]:PORT", in lower case."""
    text = authority.lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def is_own(name: str, hosts: Sequence[str]) -> bool:
    return name in LOCAL_NAMES or name in (each.lower() for each in hosts)


def is_address(name: str, *, only_loopback: bool = False) -> bool:
    with suppress(ValueError):
        address = ipaddress.ip_address(name)
        return address.is_loopback or not only_loopback
    return False
