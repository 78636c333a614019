"""Whether login sessions can open GPUs: the drop-in of a closed shop, and what the kernel makes of it."""

from __future__ import annotations

import errno
import os

from slicer.backend import closed_shop
from slicer.backend.acting import filters_devices
from slicer.doctor.facts.files import lstat
from slicer.kernel import cgroup
from slicer.record import record

_FOLDERS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
)  # fmt: skip
_CONTROL = "/dev/nvidiactl"


@record
class FenceFacts:
    """``acts``: whether the kernel keeps a closed shop; None where that cannot be seen.

    Root cannot while nobody is logged in.
    """

    closed_shop: str  # the path of its drop-in; "" for none
    acts: bool | None
    is_inside: bool  # we ourselves run in a job


def gather(uid: int) -> FenceFacts:
    """Looks at files, and at cgroups; opens the driver's control device."""
    paths = (f"{folder}/{closed_shop.SLICE}.d/{closed_shop.NAME}" for folder in _FOLDERS)
    found = next((path for path in paths if lstat(path) is not None), "")
    own = cgroup.of("self")
    is_inside = "/slicer-" in own
    acts: bool | None = None
    if found and uid == 0:
        slice_ = cgroup.path_of(f"/{closed_shop.SLICE}")
        acts = filters_devices(slice_) if os.path.isdir(slice_) else None  # it is there while somebody is
    elif found and not is_inside and own.startswith(f"/{closed_shop.SLICE}/"):
        acts = _is_shut()
    return FenceFacts(found, acts, is_inside)


def _is_shut() -> bool | None:
    try:
        os.close(os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC))
    except OSError as failed:
        return True if failed.errno == errno.EPERM else None
    return False
