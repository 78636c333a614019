"""Whether login sessions can open GPUs: the drop-in of a closed shop, and what the kernel makes of it."""

from __future__ import annotations

import errno
import os

from slicer.backend import closed_shop
from slicer.backend.acting import filters_devices
from slicer.backend.closed_shop_look import has_unit
from slicer.doctor.facts.files import lstat, trusted_text
from slicer.kernel import cgroup
from slicer.record import record

_FOLDERS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
)  # fmt: skip
_OF_NIXOS = "overrides.conf"
_CONTROL = "/dev/nvidiactl"


@record
class FenceFacts:
    """``acts``: whether the kernel keeps a closed shop; None where that cannot be seen.

    Root cannot while nobody is logged in.
    """

    closed_shop: str  # the path of its drop-in; "" for none
    acts: bool | None
    left_open: tuple[str, ...] = ()  # of a closed shop: units that it should close as well, and does not


def gather(uid: int) -> FenceFacts:
    """Looks at files, and at cgroups; opens the driver's control device."""
    closed = {unit: drop_in(_FOLDERS, unit) for unit in (closed_shop.SLICE, *closed_shop.ORDERLIES)}
    found = closed.pop(closed_shop.SLICE)
    left_open = [unit for unit, path in closed.items() if not path and has_unit(unit)] if found else []
    if not found and any(closed.values()):
        left_open = [closed_shop.SLICE]
    own = cgroup.of("self")
    acts: bool | None = None
    if found and uid == 0:
        slice_ = cgroup.path_of(f"/{closed_shop.SLICE}")
        acts = filters_devices(slice_) if os.path.isdir(slice_) else None  # it is there while somebody is
    elif found and "/slicer-" not in own and own.startswith(f"/{closed_shop.SLICE}/"):
        acts = _is_shut()
    return FenceFacts(found, acts, tuple(left_open))


def drop_in(folders: tuple[str, ...], unit: str = closed_shop.SLICE) -> str:
    """The file that closes a unit off: ours, or that of NixOS with all that is said of the unit."""
    for folder in folders:
        path = f"{folder}/{unit}.d/{closed_shop.NAME}"
        if lstat(path) is not None:
            return path
        path = f"{folder}/{unit}.d/{_OF_NIXOS}"
        if "\nDevicePolicy=strict\n" in f"\n{trusted_text(path) or ''}\n":
            return path
    return ""


def _is_shut() -> bool | None:
    try:
        os.close(os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC))
    except OSError as failed:
        return True if failed.errno == errno.EPERM else None
    return False
