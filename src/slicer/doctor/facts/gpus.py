"""The GPUs: device nodes, the driver and its processes, the fence, and what ``--share`` needs.

The driver may hang, so it has its own look.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Mapping

from slicer.backend import closed_shop
from slicer.backend.closed_shop import has_unit
from slicer.backend.scopes import filters_devices
from slicer.doctor.facts.reading import lstat, trusted_text
from slicer.errors import GpuError, NoGpu
from slicer.gpu.driver_errors import install_command, library_version
from slicer.gpu.nvml import GpuDetails, Nvml
from slicer.gpu.snapshot import take
from slicer.kernel import cgroup, proc
from slicer.kernel.proc import names_in, text_of
from slicer.kernel.users import group_name
from slicer.record import record
from slicer.share.program import library_path
from slicer.state.statefile import is_job_unit

_NVIDIA = "0x10de"
_AMD = "0x1002"
_DISPLAY_CLASS = "0x03"
_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_FIRST_USER = 1000  # SYS_UID_MAX in login.defs is below this
_SEEN_BY_KERNEL = "/proc/driver/nvidia/gpus"


@record
class DeviceNode:
    """A device node. ``is_usable``: this user may read and write it."""

    path: str
    exists: bool
    is_usable: bool
    group: str = ""  # its owning group


@record
class DeviceFacts:
    """What is known without asking the driver."""

    nvidia: tuple[str, ...]  # PCI addresses of NVIDIA's display devices
    driven_by: tuple[str, ...]  # the kernel drivers bound to them ("nvidia", "nouveau", "vfio-pci")
    amd: int  # the number of AMD's display devices
    driver: str  # the version of the loaded kernel module; "" if none is loaded
    nodes: tuple[DeviceNode, ...]  # the device nodes that CUDA needs


@record
class GpuUser:
    """A GPU process that belongs to no job of this ledger."""

    gpu: int
    pid: int  # 0: outside our pid namespace
    name: str
    used_mib: int | None
    is_slicers: bool  # it is a job of another ledger
    command: tuple[str, ...] = ()  # only for processes of root, this user and system users
    unit: str = ""  # the system service to which it belongs


@record
class DriverFacts:
    """NVML's answer. ``reason`` is "" if it answers; otherwise that of NoGpu, or "error"."""

    reason: str
    message: str
    hint: str
    version: str
    library: str  # of nvidia-ml-py
    gpus: tuple[GpuDetails, ...]
    users: tuple[GpuUser, ...]
    why_no_limits: str = ""  # why the driver cannot limit a cgroup's GPU memory; "" if it can


def gather_devices() -> DeviceFacts:
    """Reads /sys and /dev."""
    nvidia, drivers, amd = [], set(), 0
    for address in names_in("/sys/bus/pci/devices"):
        device = f"/sys/bus/pci/devices/{address}"
        if not text_of(f"{device}/class").startswith(_DISPLAY_CLASS):
            continue
        vendor = text_of(f"{device}/vendor")
        amd += vendor == _AMD
        if vendor == _NVIDIA:
            nvidia.append(address)
            link = f"{device}/driver"
            drivers.add(os.path.basename(os.path.realpath(link)) if os.path.lexists(link) else "")
    driver = module_version(text_of("/proc/driver/nvidia/version"))
    minors = [_minor(address) for address in names_in(_SEEN_BY_KERNEL)]
    wanted = (*_NODES, *(f"/dev/nvidia{minor}" for minor in minors if minor)) if driver else ()
    return DeviceFacts(
        nvidia=tuple(nvidia), driven_by=tuple(sorted(drivers)), amd=amd, driver=driver,
        nodes=tuple(map(_node, wanted)),
    )  # fmt: skip


def module_version(text: str) -> str:
    """The version in /proc/driver/nvidia/version ("NVRM version: … Module  550.54.14  …"), or ""."""
    for word in text.partition("\n")[0].split():
        if word[0].isdigit() and "." in word:
            return word
    return ""


def _minor(address: str) -> str:
    text = text_of(f"{_SEEN_BY_KERNEL}/{address}/information")
    line = next((line for line in text.splitlines() if line.startswith("Device Minor:")), "")
    return line.partition(":")[2].strip()


def _node(path: str) -> DeviceNode:
    info = lstat(path)
    exists = info is not None and stat.S_ISCHR(info.st_mode)
    group = group_name(info.st_gid) if info is not None else ""
    return DeviceNode(path, exists, exists and os.access(path, os.R_OK | os.W_OK), group)


def gather_driver(uid: int) -> DriverFacts:
    """Loads NVML, and asks it for the GPUs, their settings and their processes. It may hang."""
    try:
        driver = Nvml()
    except NoGpu as error:
        hint = install_command() if error.reason == "no-pynvml" else error.hint
        return DriverFacts(error.reason, error.message, hint, "", library_version(), (), ())
    except GpuError as error:
        return DriverFacts("error", str(error), "", "", library_version(), (), ())
    try:
        details = driver.details()
        users = _users(driver, details, uid)
        hint, version, library = install_command(), driver.version(), library_version()
        return DriverFacts("", "", hint, version, library, details, users, driver.why_no_limits())
    except GpuError as error:
        reason = error.reason if isinstance(error, NoGpu) else "error"
        return DriverFacts(reason, error.message, error.hint, "", library_version(), (), ())
    finally:
        driver.close()


def _users(driver: Nvml, details: tuple[GpuDetails, ...], uid: int) -> tuple[GpuUser, ...]:
    index = {each.uuid: each.index for each in details}
    found = []
    for process in take(driver, None, ()).processes:
        in_scope = "/slicer-" in process.cgroup or any(map(is_job_unit, process.cgroup.split("/")))
        owner = _owner(process.pid)
        is_marked = process.jobs and owner == uid  # other users can put anything into their environment
        # Nobody else can create scopes below the cgroup of this user's manager.
        is_below = f"/user-{uid}.slice/" in process.cgroup if uid else "/user.slice/" not in process.cgroup
        if is_marked or (in_scope and is_below):
            continue
        pid = process.pid if process.started else 0
        is_believed = owner == uid or 0 <= owner < _FIRST_USER  # root or a system user (Ollama's)
        command = proc.command_line(pid) if pid and is_believed else ()
        unit = _unit(process.cgroup) if command else ""
        place = index.get(process.gpu_uuid, -1)
        found.append(GpuUser(place, pid, process.name, process.used_mib, in_scope, command, unit))
    return tuple(found)


def _unit(cgroup: str) -> str:
    """The system service to which a cgroup belongs; "" if none."""
    parts = cgroup.split("/")
    if "user.slice" in parts:
        return ""
    return next((part for part in parts if part.endswith(".service")), "")


def _owner(pid: int) -> int:
    info = lstat(f"/proc/{pid}")
    return -1 if info is None else info.st_uid


_FOLDERS = closed_shop.UNIT_FOLDERS
_OF_NIXOS = "overrides.conf"
_CONTROL = "/dev/nvidiactl"


@record
class FenceFacts:
    """``acts``: whether the kernel enforces a closed shop; None if that cannot be seen.

    Root cannot see it while nobody is logged in.
    """

    closed_shop: str  # the path of its drop-in; "" if there is none
    acts: bool | None
    left_open: tuple[str, ...] = ()  # units that the closed shop should also close, but does not


def gather_fence(uid: int) -> FenceFacts:
    """Reads files and cgroups, and opens the driver's control device."""
    closed = {unit: drop_in(_FOLDERS, unit) for unit in (closed_shop.SLICE, *closed_shop.JOB_RUNNERS)}
    found = closed.pop(closed_shop.SLICE)
    left_open = [unit for unit, path in closed.items() if not path and has_unit(unit)] if found else []
    if not found and any(closed.values()):
        left_open = [closed_shop.SLICE]
    own = cgroup.of("self")
    acts: bool | None = None
    if found and uid == 0:
        slice_ = cgroup.path_of(f"/{closed_shop.SLICE}")
        acts = filters_devices(slice_) if os.path.isdir(slice_) else None  # None: nobody is logged in
    elif found and "/slicer-" not in own and own.startswith(f"/{closed_shop.SLICE}/"):
        acts = _is_shut()
    return FenceFacts(found, acts, tuple(left_open))


def drop_in(folders: tuple[str, ...], unit: str = closed_shop.SLICE) -> str:
    """The file that closes a unit off: ours, or NixOS's file with all settings of the unit."""
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


_MPS = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_PIPES = "/tmp/nvidia-mps"  # CUDA's default if that variable is not set
_SLICE = "/gpu.slice"


@record
class SharingFacts:
    library: str  # its path
    library_error: str  # why it cannot be loaded; "" if it can
    mps: str  # where an MPS daemon has its pipes; "" if there is none
    has_dmem: bool  # the kernel has the controller dmem
    is_dmem_on: bool | None  # scopes in gpu.slice have it; None if there is no gpu.slice now


def gather_sharing(environ: Mapping[str, str]) -> SharingFacts:
    """Loads the library into this process, which runs only this look."""
    path = library_path()
    return SharingFacts(
        library=path, library_error=_load_error(path), mps=mps(environ, _MPS_PIPES),
        has_dmem="dmem" in cgroup.controllers(cgroup.path_of("")),
        is_dmem_on=_passes_on(cgroup.path_of(_SLICE)),
    )  # fmt: skip


def mps(environ: Mapping[str, str], usual: str) -> str:
    """The directory of an MPS daemon's pipes, found as the library does (arena.c). Opens no pipe."""
    chosen = environ.get(_MPS, "")
    if chosen and os.path.isdir(chosen):
        return chosen
    pipe = lstat(f"{usual}/control")
    is_there = pipe is not None and not stat.S_ISREG(pipe.st_mode) and pipe.st_uid in (0, os.geteuid())
    return usual if is_there else ""


def _load_error(path: str) -> str:
    if not os.path.exists(path):
        return "the file does not exist"
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error).removeprefix(f"{path}: ")
    return ""


def _passes_on(directory: str) -> bool | None:
    """Whether this cgroup's children get the controller dmem; None if it does not exist."""
    try:
        with open(f"{directory}/cgroup.subtree_control", encoding="ascii") as file:
            return "dmem" in file.read().split()
    except FileNotFoundError:
        return None
