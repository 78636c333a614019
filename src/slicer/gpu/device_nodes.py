"""NVIDIA's device nodes: those of MIG instances, and that of unified memory."""

from __future__ import annotations

import os

from slicer.kernel import on_host
from slicer.kernel.proc import names_in, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_VERSION = "/proc/driver/nvidia/version"  # exists while the driver is loaded
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_DEVICES = "/proc/devices"
_MODPROBES = ("/usr/bin/nvidia-modprobe", "/run/current-system/sw/bin/nvidia-modprobe")
_LARGEST_MINOR = 1 << 20  # in Linux


def major_of(group: str, devices: str) -> int | None:
    """The major number of a group of character devices, or None. ``devices``: the text of /proc/devices."""
    characters = devices.partition("Block devices:")[0]
    for line in characters.splitlines():
        number, _, name = line.strip().partition(" ")
        if name == group and number.isdecimal():
            return int(number)
    return None


def caps_of(
    minors: Collection[int], capabilities: str = _CAPABILITIES, devices: str = _DEVICES
) -> tuple[str, ...]:
    """The nodes of these GPUs' MIG instances, by device number; () if no GPU is in MIG mode.

    ``capabilities`` is a folder of the driver's. Each file in it contains the minor number of a node.
    """
    found = [each for minor in sorted(minors) for each in _caps_below(f"{capabilities}/gpu{minor}/mig")]
    major = major_of("nvidia-caps", text_of(devices)) if found else None
    return () if major is None else tuple(f"/dev/char/{major}:{minor}" for minor in found)


def is_split(minor: int) -> bool:
    """Whether that GPU has MIG instances."""
    return bool(_names(on_host(f"{_CAPABILITIES}/gpu{minor}/mig"), "gi"))


def load_uvm(modprobes: tuple[str, ...] = _MODPROBES) -> None:
    """Load the driver for unified memory, if it is not loaded yet. CUDA would load it for its first program.

    That would be too late behind a fence: systemd looks up the driver's number when it sets the fence. This
    raises nothing: without NVIDIA's tool, the administrator has to load it (`slicer doctor` reports that).
    """
    if major_of("nvidia-uvm", text_of(_DEVICES)) is not None or not os.path.exists(_VERSION):
        return
    modprobe = next((path for path in modprobes if os.access(path, os.X_OK)), "")
    try:
        # "-c=0" also creates its node.
        pid = os.posix_spawn(modprobe, [modprobe, "-u", "-c=0"], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    except OSError:
        return
    os.waitpid(pid, 0)


def _caps_below(folder: str) -> list[int]:
    """The minor numbers of a GPU's instances (gi*/access) and their compute instances (gi*/ci*/access)."""
    found = []
    for instance in _names(folder, "gi"):
        inside = f"{folder}/{instance}"
        files = [f"{inside}/access", *(f"{inside}/{each}/access" for each in _names(inside, "ci"))]
        found += [minor for minor in map(_minor_in, files) if minor is not None]
    return found


def _minor_in(path: str) -> int | None:
    for line in text_of(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "DeviceFileMinor" and value.strip().isdecimal():
            minor = int(value)
            return minor if minor < _LARGEST_MINOR else None
    return None


def _names(folder: str, beginning: str) -> list[str]:
    """None if the GPU is not in MIG mode, or the instance has just been destroyed."""
    return [name for name in names_in(folder) if name.startswith(beginning)]
