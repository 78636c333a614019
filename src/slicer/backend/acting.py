"""Which directives act here. systemd and the kernel also accept some that do not."""

from __future__ import annotations

import os

from slicer.config.properties import controller
from slicer.kernel import cgroup
from slicer.kernel.proc import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import Manager

_IO_WEIGHTS = frozenset({"IOWeight", "IODeviceWeight"})
_NO_DISKS = ("loop", "ram", "zram")  # a dozen of each in many machines, and never weighed
_OOMD = "/system.slice/systemd-oomd.service"


def acting(
    names: tuple[str, ...], controllers: frozenset[str], manager: Manager,
    io_is_weighed: Callable[[], bool], oomd_runs: Callable[[], bool],
    filters_devices: Callable[[], bool],
) -> frozenset[str]:  # fmt: skip
    """Those of the directives that act in a cgroup with these controllers.

    ``filters_devices``: whether the kernel filters devices for it; asked only of the system manager.
    """

    def acts(name: str) -> bool:
        needed = controller(name)
        if needed == "devices":  # a BPF program, and only the system manager may load it
            return manager == "system" and filters_devices()
        if needed and needed not in controllers:
            return False
        if name in _IO_WEIGHTS:
            return io_is_weighed()
        return not name.startswith("ManagedOOM") or oomd_runs()

    return frozenset(name for name in names if acts(name))


def io_is_weighed(blocks: str = "/sys/block", qos: str = "") -> bool:
    """Whether any disk heeds weights, by its scheduler (bfq) or because io.cost is on for it."""
    if "enable=1" in _text(qos or cgroup.path_of("/io.cost.qos")):
        return True
    try:
        disks = os.listdir(blocks)
    except OSError:
        return False
    real = (disk for disk in disks if not disk.startswith(_NO_DISKS))
    return any("[bfq]" in _text(f"{blocks}/{disk}/queue/scheduler") for disk in real)


def oomd_runs() -> bool:
    """Whether systemd-oomd runs. Nothing else reads the ManagedOOM directives."""
    return cgroup.populated(cgroup.path_of(_OOMD))


def filters_devices(directory: str) -> bool:
    """Whether the kernel filters devices for the cgroup of this directory; "": whether it would for one.

    Of others' cgroups only root can know. So anybody else's systemd is believed.
    """
    from slicer.kernel import bpf

    if os.geteuid() != 0:
        return True
    return bpf.filters_devices(directory) if directory else bpf.can_filter_devices()


def _text(path: str) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""  # it is not there: such a kernel, or such a device
