"""What to say of the GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.doctor.checks import servers
from slicer.doctor.facts.gpus import DeviceFacts, DriverFacts, GpuUser
from slicer.doctor.kinds import finding
from slicer.doctor.model import Finding, Verdict, Who
from slicer.gpu.nvml import GpuDetails
from slicer.quantity import format_mib
from slicer.text import counted, quote

Fact = tuple[str, str]
_OLDEST_LIBRARY = (12, 535)
_MENDS = {
    "no-library": "# install NVIDIA's driver",
    "no-driver": "modprobe nvidia",
    "driver-mismatch": "# reboot: the driver was upgraded while it ran",
    "no-devices": "dmesg | grep -i -e nvrm -e xid",
    "permission": "ls -l /dev/nvidia*",
    "error": "nvidia-smi; dmesg | grep -i -e nvrm -e xid",
}
_AS_ROOT = ("no-driver", "no-devices", "error")


def gpus(
    devices: DeviceFacts, driver: DriverFacts | None, container: str, who: Who,
    sharing: tuple[tuple[Fact, ...], tuple[Finding, ...]] = ((), ()), served: tuple[str, ...] = (),
) -> Verdict:  # fmt: skip
    """``driver``: None where it did not answer in time. ``sharing``: facts and findings about ``--share``.

    ``served``: the kinds of servers that run by themselves, and that `slicer serve` stands in front of.
    """
    found: list[Finding] = []
    if driver is None:
        command = who.root("dmesg | grep -i xid")
        found.append(finding("driver-hangs", "NVML gave no answer in time", command))
    elif driver.reason:
        found += _unusable(devices, driver, container, who)
    else:
        found += _details(driver, who)
    found += _devices(devices, who)
    if driver is not None:
        found += servers.outside(driver.users, served, who)
        found += _foreign(tuple(user for user in driver.users if servers.known(user) is None))
    shown = (*_facts(devices, driver), *sharing[0])
    return Verdict("gpus", _summary(devices, driver), shown, (*found, *sharing[1]))


def _summary(devices: DeviceFacts, driver: DriverFacts | None) -> str:
    if driver is None:
        return "not known"
    if driver.gpus:
        names = sorted({gpu.name.removeprefix("NVIDIA ") for gpu in driver.gpus})
        return f"{counted(len(driver.gpus), 'GPU')} ({', '.join(names)}), driver {driver.version}"
    if driver.reason == "fenced":
        return "fenced off from here"
    return "none that can be used" if devices.nvidia else "none here"


def _facts(devices: DeviceFacts, driver: DriverFacts | None) -> tuple[tuple[str, str], ...]:
    shown = [("kernel module", devices.driver or "none")]
    if driver is not None:
        shown += [("driver", driver.version or driver.message), ("nvidia-ml-py", driver.library or "none")]
        shown += [(f"GPU {gpu.index}", _described(gpu)) for gpu in driver.gpus]
    shown += [(node.path, _access(node.exists, node.is_usable)) for node in devices.nodes]
    return tuple(shown)


def _described(gpu: GpuDetails) -> str:
    words = [gpu.name, format_mib(gpu.memory_mib or None), f"compute mode {gpu.compute_mode or 'unknown'}"]
    words += ["persistence mode"] if gpu.is_persistent else []
    words += ["display"] if gpu.has_display else []
    words += ["MIG"] if gpu.is_mig else []
    return ", ".join(words)


def _access(exists: bool, is_usable: bool) -> str:
    return "usable" if is_usable else "not for you" if exists else "missing"


def _unusable(devices: DeviceFacts, driver: DriverFacts, container: str, who: Who) -> Iterator[Finding]:
    if driver.reason == "fenced":
        return  # as it should be: in a job without a lease on one, in a closed shop
    if driver.reason == "no-pynvml":
        if devices.nvidia or devices.driver:  # else there is nothing to ask for
            yield finding("no-nvidia-ml-py", driver.message, *_binding(driver))
        return
    if not devices.nvidia and not devices.driver:
        if driver.reason == "no-library":
            return  # there is nothing to drive
    elif container and driver.reason in ("no-library", "no-driver", "no-devices"):
        what = f"{counted(len(devices.nvidia), 'GPU')} of the host, none in this container"
        yield finding("gpus-not-passed-in", what, "# on the host: docker run --gpus all …")
        return
    elif devices.nvidia and driver.reason in ("no-library", "no-driver") and _other_drivers(devices):
        return  # said as nouveau
    mend = _MENDS.get(driver.reason, f"# {driver.hint}")
    mend = who.root(mend) if driver.reason in _AS_ROOT else mend
    if devices.nvidia or devices.driver or driver.reason != "no-driver":
        yield finding("driver-unusable", driver.message, mend)


def _binding(driver: DriverFacts) -> tuple[str, ...]:
    there = ("# in slicer's source directory, and install that package:",)
    return *(there if driver.hint.startswith("debian/") else ()), driver.hint


def _other_drivers(devices: DeviceFacts) -> tuple[str, ...]:
    return tuple(name for name in devices.driven_by if name not in ("nvidia", ""))


def _details(driver: DriverFacts, who: Who) -> Iterator[Finding]:
    if library_is_old(driver.library):
        what = f"nvidia-ml-py is of version {driver.library}"
        yield finding("no-nvidia-ml-py", what, *_binding(driver))
    for gpu in driver.gpus:
        choose = f"nvidia-smi -i {gpu.index}"
        if gpu.is_mig:
            yield finding("mig-on", f"GPU {gpu.index} ({gpu.name})", who.root(f"{choose} -mig 0"))
        if gpu.compute_mode in ("exclusive-process", "exclusive-thread", "prohibited"):
            what = f"GPU {gpu.index} ({gpu.name}): {gpu.compute_mode}"
            yield finding("exclusive-compute", what, who.root(f"{choose} -c DEFAULT"))
        if gpu.has_display:
            yield finding(
                "display-on-gpu", f"GPU {gpu.index} ({gpu.name})",
                "# in config.toml: [gpu] idle_threshold = \"1G\"",
            )  # fmt: skip


def _devices(devices: DeviceFacts, who: Who) -> Iterator[Finding]:
    other = _other_drivers(devices)
    if other:
        what = f"{counted(len(devices.nvidia), 'NVIDIA GPU')} under {', '.join(other)}"
        yield finding("nouveau", what, "# install NVIDIA's driver")
    for node in devices.nodes:
        if not node.exists:
            is_uvm = node.path.endswith("-uvm")
            mend = who.root("nvidia-modprobe -u -c=0" if is_uvm else "nvidia-modprobe -c=0")
            yield finding("no-uvm-node" if is_uvm else "node-missing", f"{node.path} is missing", mend)
        elif not node.is_usable:
            mend = who.root(f"usermod -aG {quote(node.group)} {who.user}")
            if node.group in ("", "root"):
                mend = "# options nvidia NVreg_DeviceFileMode=0666, in /etc/modprobe.d"
            yield finding("node-forbidden", f"{node.path} is closed to {who.user}", mend)
    if devices.amd:
        mend = f"# [slots] amd-gpu = {devices.amd} in a configuration file; slicer run --slot amd-gpu"
        yield finding("amd-not-handled", counted(devices.amd, "AMD GPU"), mend)


def _foreign(users: tuple[GpuUser, ...]) -> Iterator[Finding]:
    if not users:
        return
    shown = "; ".join(map(_user, users[:4])) + (f"; {len(users) - 4} more" if len(users) > 4 else "")
    pids = [str(user.pid) for user in users if user.pid]
    yield finding("foreign-process", shown, f"ps -fp {','.join(pids)}" if pids else "nvidia-smi")


def _user(user: GpuUser) -> str:
    who = f"pid {user.pid} {user.name}".rstrip() if user.pid else "a process outside this pid namespace"
    whose = ", a job of another user's slicer" if user.is_slicers else ""
    return f"GPU {user.gpu}: {who} ({format_mib(user.used_mib)}{whose})"


def library_is_old(version: str) -> bool:
    """Whether an nvidia-ml-py is older than the one that slicer needs; False for none."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return len(numbers) == 2 and numbers < _OLDEST_LIBRARY
