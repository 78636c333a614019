"""What the failures of NVIDIA's driver mean, and what to do about them."""

from __future__ import annotations

import errno
import os

from slicer.errors import GpuError, NoGpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_DEBIAN = "/usr/lib/slicer-systemd/"  # where the Debian package installs this module


def no_library() -> NoGpu:
    hint = (
        "install the driver; in a container, start it with the NVIDIA runtime; on NixOS, put"
        " /run/opengl-driver/lib into LD_LIBRARY_PATH"
    )
    return NoGpu("no-library", f"there is no NVIDIA driver ({LIBRARY} cannot be loaded)", hint=hint)


def no_pynvml(error: ImportError) -> NoGpu:
    message = f"the Python module pynvml cannot be imported: {error}"
    return NoGpu("no-pynvml", message, hint=f"`{install_command()}`")


def no_devices(hint: str) -> NoGpu:
    return NoGpu("no-devices", "the NVIDIA driver is loaded but finds no GPU", hint=hint)


def no_permission() -> NoGpu:
    hint = "see who may open /dev/nvidiactl and /dev/nvidia0 (often the group video or render)"
    return NoGpu("permission", "this user may not use the NVIDIA driver", hint=hint)


def failed(error: Any, where: str) -> GpuError:
    """Any other failure: ``error`` is an NVMLError."""
    return GpuError(f"the NVIDIA driver failed: {error}", where=where, hint="see `nvidia-smi` and `dmesg`")


def not_started(nvml: Any, error: Any) -> GpuError:
    """Why NVML could not be initialised. ``nvml`` is the module."""
    if _is_shut():  # NVML reports this as an unknown error
        hint = "inside a job: it has no lease on a GPU; in a login session: a closed shop"
        return NoGpu("fenced", "the GPUs are fenced off from this process", hint=hint)
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return no_permission()
    if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return no_library()
    if error.value == getattr(nvml, "NVML_ERROR_GPU_NOT_FOUND", 28):  # not in Debian 12's pynvml
        return no_devices("see `lspci` and `dmesg`")
    if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        hint = "`modprobe nvidia`, then see `dmesg` if that fails"
        return NoGpu("no-driver", "the NVIDIA driver is installed but not loaded", hint=hint)
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        hint = "the driver was upgraded while it was loaded: reboot, or reload the nvidia modules"
        message = "the loaded NVIDIA driver and its library have different versions"
        return NoGpu("driver-mismatch", message, hint=hint)
    return failed(error, "NVML")


def _is_shut() -> bool:
    """Whether a cgroup's rules deny the control device (EPERM); file permissions would say EACCES."""
    try:
        os.close(os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC))
    except OSError as denied:
        return denied.errno == errno.EPERM
    return False


def install_command() -> str:
    """The command that installs pynvml; for the Debian package, in slicer's source directory."""
    import shlex
    import sys

    if __file__.startswith(_DEBIAN):
        return "debian/rules pynvml && dpkg-buildpackage -b -us -uc"
    return f"{shlex.quote(sys.executable)} -m pip install --upgrade nvidia-ml-py"


def library_version() -> str:
    """The version of nvidia-ml-py; "" if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        return ""
