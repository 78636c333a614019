"""Whose requests are for us: by Host (DNS rebinding), and by what browsers tell of their pages. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

# here: no browser, the user's own address bar, or a page that may ask. elsewhere: another site's page.
# unknown: a browser that does not tell, as for plain HTTP to another machine.
Asker = Literal["here", "elsewhere", "unknown"]

_LOCAL_NAMES = ("localhost", "localhost.localdomain", "0.0.0.0")  # browsers take the last one for loopback
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^][:/?#@\s]+))(?::[0-9]*)?")


def is_meant(host: str | None, hosts: Sequence[str]) -> bool:
    """Whether the Host is an address, the machine itself or one of ``hosts``. No browser omits it (None)."""
    return host is None or is_own(name_of(host), hosts) or is_address(name_of(host))


def asker(method: str, headers: Mapping[str, str], hosts: Sequence[str]) -> Asker:
    """Who makes a request. A page cannot set these headers. ``headers`` must find names in any case."""
    origin, site = headers.get("Origin", ""), headers.get("Sec-Fetch-Site", "")
    if "Sec-Purpose" in headers:
        return "elsewhere"  # the browser guesses what its user may want next
    if origin:
        return "here" if _may_ask(origin.lower(), headers.get("Host", ""), hosts) else "elsewhere"
    if site in ("same-origin", "none"):
        return "here"
    referer = headers.get("Referer", "").lower()
    if referer and _may_ask(referer, headers.get("Host", ""), hosts):
        return "here"
    is_browser = headers.get("User-Agent", "").startswith("Mozilla/") and method in ("GET", "HEAD")
    return "elsewhere" if site else "unknown" if is_browser else "here"


def _may_ask(page: str, host: str, hosts: Sequence[str]) -> bool:
    """Whether a page at this URL may ask: our own, one of this machine, or of ``hosts``."""
    if not page.startswith(("http:", "https:")):
        return page in hosts or "://" in page  # an application's own page; "null" is anybody's
    try:
        name = urlsplit(page).hostname or ""
    except ValueError:
        return False
    is_same = name == name_of(host)
    return bool(name) and (is_same or is_own(name, hosts) or is_address(name, only_loopback=True))


def name_of(authority: str) -> str:
    """The host of "HOST:PORT" or "[IPV6]:PORT", in lower case; "" for anything else."""
    found = _AUTHORITY.fullmatch(authority.lower())
    return (found[1] or found[2]) if found else ""


def is_own(name: str, hosts: Sequence[str]) -> bool:
    is_local = name in _LOCAL_NAMES or name.endswith(".localhost")  # RFC 6761: no other machine's
    return is_local or name in (each.lower() for each in hosts)


def is_address(name: str, *, only_loopback: bool = False) -> bool:
    with suppress(ValueError):
        address = ipaddress.ip_address(name)
        return address.is_loopback or not only_loopback
    return False
