"""The closed shop: login sessions cannot open NVIDIA's GPUs, so that the only way to them is a lease.

It is a drop-in for user.slice, and for the services by which users run things outside of it. systemd knows
only lists of what is allowed. So it allows each driver's major number but NVIDIA's. The names of drivers
would not do here: systemd looks them up once, when the machine boots, and most drivers are loaded later.

Not closed are other services, containers among them: who may start those is the administrator's choice.
"""

from __future__ import annotations

from collections.abc import Iterable

from slicer.backend.unit_files import SYSTEM_UNITS, Action
from slicer.kernel import on_host

NAME = "50-slicer-closed-shop.conf"
SLICE = "user.slice"
# Services that run what users have ordered, outside of user.slice: cron and at, as distributions call them.
ORDERLIES = (
    "cron.service", "crond.service", "cronie.service", "fcron.service", "anacron.service", "atd.service",
)  # fmt: skip
# What runs has the rules, too: systemd 252 gives them to the kernel at the reload, 257 only when some unit
# starts.
COMMANDS = (
    ("systemctl", "daemon-reload"),
    ("systemd-run", "--quiet", "--collect", "--wait", "--description=rules of the closed shop", "true"),
)
_MAJORS = 512  # of character devices there are no more
_NVIDIA = 195

_TEXT = """\
# A closed shop: nothing in {unit} opens an NVIDIA GPU. Jobs of slicer that have a lease do.
# `slicer install --closed-shop --undo` takes it back.
#
# All block devices, and every major number of character devices but NVIDIA's. Without NVIDIA's control device
# the other drivers of its GPUs (unified memory, MIG) are of no use. By number, because systemd looks names up
# when the unit starts, and drivers that are loaded later would be left out.

[{section}]
{lines}
DevicePolicy=strict
"""


def drop_in(unit: str) -> bytes:
    """The text of the drop-in for a slice or a service."""
    allowed = ["block-* rwm", *(f"char-{major} rwm" for major in range(_MAJORS) if major != _NVIDIA)]
    lines = "\n".join(f"DeviceAllow={each}" for each in allowed)
    section = "Slice" if unit.endswith(".slice") else "Service"
    return _TEXT.format(unit=unit, section=section, lines=lines).encode()


def actions(units: Iterable[str]) -> tuple[Action, ...]:
    """The files for these units."""
    what = "closed shop: no GPUs in {} without a lease"
    return tuple(
        Action("", on_host(f"{SYSTEM_UNITS}/{unit}.d/{NAME}"), what.format(unit), drop_in(unit))
        for unit in units
    )
