"""Facts of a machine on which all is well, made up."""

from __future__ import annotations

from slicer.doctor.facts.broker import BrokerFacts
from slicer.doctor.facts.configuration import ConfigurationFacts, EnvironmentFacts, OthersFacts, ProfileFacts
from slicer.doctor.facts.gpus import DeviceFacts, DeviceNode, DriverFacts, FenceFacts, SharingFacts
from slicer.doctor.facts.host import Disk, DiskFacts, JournalFacts, KernelFacts, SessionFacts
from slicer.doctor.facts.installed import UnitFacts, UnitFile, WrapFacts
from slicer.doctor.facts.state import PathFacts, StateFacts
from slicer.doctor.facts.systemd import SystemdFacts
from slicer.doctor.findings import Who
from slicer.gpu.nvml import GpuDetails
from slicer.wrap.terms import Wrap, WrapStatus

ROOT = Who(0, "root", "system", True)
ALICE = Who(1000, "alice", "user", True)
ON_NIXOS = Who(1000, "alice", "user", True, is_nixos=True)
OF_THE_BROKER = Who(1000, "alice", "system", True)

SYSTEMD = SystemdFacts(
    boots=True, unreachable="", version="257.13-1", container="", is_wsl=False,
    cgroups="v2", at="/user.slice/user-1000.slice/user@1000.service", is_there=True,
    controllers=("cpu", "cpuset", "io", "memory", "pids"), on_v1=(),
)  # fmt: skip
KERNEL = KernelFacts("6.12", "", "", "128")
SESSION = SessionFacts(lingers=True, has_runtime=True, kills_processes=False)
SHARING = SharingFacts("/opt/slicer/libslicer-share.so", "", "", True, True)
DISKS = DiskFacts((Disk("sda", "8:0", "bfq", ("none", "bfq")),), True, True, False)
CONFIGURATION = ConfigurationFacts(
    error="", hint="", warnings=(), default_profile="light", files=(),
    profiles=(
        ProfileFacts("light", ("CPUWeight", "IOWeight", "MemoryMax"), ""),
        ProfileFacts("gpu", ("MemoryMax",), ""),
    ),
)  # fmt: skip
GPU = GpuDetails(
    index=0, uuid="GPU-0", name="NVIDIA H100", memory_mib=81559, minor=0,
    compute_mode="default", has_display=False, is_mig=False,
)  # fmt: skip
DEVICES = DeviceFacts(
    nvidia=("0000:01:00.0",), driven_by=("nvidia",), amd=0, driver="550.54",
    nodes=tuple(DeviceNode(f"/dev/nvidia{end}", True, True) for end in ("ctl", "-uvm", "0")),
)  # fmt: skip
DRIVER = DriverFacts("", "", "", "550.54", "12.550.52", (GPU,), ())
NO_DRIVER = DriverFacts("no-library", "there is no NVIDIA driver", "install", "", "12.550.52", (), ())
NO_DEVICES = DeviceFacts((), (), 0, "", ())


def place(
    path: str, kind: str = "directory", uid: int = 1000, mode: int = 0o700, on: str = "tmpfs"
) -> PathFacts:
    return PathFacts(path, kind, uid, mode, on, 1 << 30, 100_000)


STATE = StateFacts(
    ledger=place("/run/lock/slicer-1000"), error="", hint="", is_chosen=False, squatted="",
    lock_holder=0,
    public=(place("/run/lock", uid=0, mode=0o1777), place("/dev/shm", uid=0, mode=0o1777)),
    history=place("/home/alice/.local/state/slicer/history.db", "file", mode=0o640, on="ext4"),
    history_directory=place("/home/alice/.local/state/slicer", on="ext4"),
)  # fmt: skip
FENCE = FenceFacts("", None)
BROKER = BrokerFacts(
    is_enabled=True, has_socket=True, absence="", masked=(), place_problem="",
    answer_error="", policy="read", policy_error="", policy_warnings=(), variable="",
)  # fmt: skip
JOURNAL = JournalFacts("", "", True, True)
UNITS = UnitFacts(
    system=(
        UnitFile("/usr/local/lib/systemd/system/gpu.slice", "current"),
        UnitFile("/usr/local/lib/systemd/catalog/slicer.catalog", "current"),
    ),
    user=(UnitFile("/home/alice/.local/share/systemd/user/gpu.slice", "missing"),),
    packaged=(), masked=(),
)  # fmt: skip
ENVIRONMENT = EnvironmentFacts(
    program="/usr/local/bin/slicer", on_path=("/usr/local/bin/slicer",), prefix="/opt/slicer",
    variables=(), is_under_sudo=False,
)  # fmt: skip
WRAP = Wrap(
    path="/usr/local/bin/whisper", real="/usr/local/bin/whisper-real", route="whisper",
    slicer="/usr/local/bin/slicer", intent="install", ino=3, size=1, mtime_ns=2, package="", diverted="",
    since_s=3.0,
)  # fmt: skip
WRAPS = WrapFacts((WrapStatus(WRAP, ()),), ())
OTHERS = OthersFacts(False, "", "", "", 0, "")
