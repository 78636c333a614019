"""For each finding facts that bring it about, and nothing worse."""

from __future__ import annotations

from collections.abc import Callable

from slicer.doctor.checks import gpus, host, limits, state, units
from slicer.doctor.facts.configuration import ProfileFacts
from slicer.doctor.facts.gpus import DeviceNode, GpuUser
from slicer.doctor.facts.host import Disk, DiskFacts, SessionFacts
from slicer.doctor.facts.installed import UnitFile, WrapFacts
from slicer.doctor.findings import AreaVerdict, Who
from slicer.doctor.glance import LookFacts
from slicer.doctor.looks import LookResult
from slicer.model import OutOfService
from slicer.record import replace
from slicer.wrap import judging, shim
from slicer.wrap.judging import Sight
from slicer.wrap.terms import ABSENT, FileState, Wrap, WrapStatus
from tests.unit.doctor.made_up import (
    ALICE,
    BROKER,
    CONFIGURATION,
    DEVICES,
    DISKS,
    DRIVER,
    ENVIRONMENT,
    FENCE,
    GPU,
    JOURNAL,
    KERNEL,
    NO_DEVICES,
    NO_DRIVER,
    OF_THE_BROKER,
    ON_NIXOS,
    OTHERS,
    ROOT,
    SESSION,
    SHARING,
    STATE,
    SYSTEMD,
    UNITS,
    WRAP,
    WRAPS,
    place,
)  # fmt: skip

OLLAMA = GpuUser(
    0, 4711, "llama-server", 6144, False, ("/usr/lib/ollama/llama-server", "--port", "1"), "ollama.service"
)
_PIP = "/opt/slicer/bin/python -m pip install nvidia-ml-py"
_SHUT = "/usr/local/lib/systemd/system/user.slice.d/50-slicer-closed-shop.conf"
_DEB = "debian/rules pynvml && dpkg-buildpackage -b -us -uc"

Case = Callable[[], AreaVerdict]

INFER = ProfileFacts("infer", ("MemoryMax",), "", "both")


def on_systemd(who: Who = ALICE, **changes: object) -> Case:
    return lambda: host.systemd(replace(SYSTEMD, **changes), who)


def on_kernel(who: Who = ALICE, **changes: object) -> Case:
    return lambda: host.kernel(replace(KERNEL, **changes), who)


def on_session(version: str = "257.13", who: Who = ALICE, **changes: object) -> Case:
    return lambda: host.session(replace(SESSION, **changes), replace(SYSTEMD, version=version), who)


def on_limits(*directives: str, disks: DiskFacts = DISKS, who: Who = ALICE, **changes: object) -> Case:
    """``changes``: of systemd's facts."""

    def judged() -> AreaVerdict:
        asked = replace(CONFIGURATION, profiles=(ProfileFacts("mine", directives, ""),))
        facts = replace(SYSTEMD, **changes)
        return limits.limits(limits.profiles(asked, facts, disks, who), facts, disks, who)

    return judged


def on_configuration(**changes: object) -> Case:
    return lambda: limits.configuration(replace(CONFIGURATION, **changes))


def on_driver(container: str = "", who: Who = ALICE, **changes: object) -> Case:
    return lambda: gpus.gpus(DEVICES, replace(DRIVER, **changes), container, who)


def on_gpu(who: Who = ALICE, **changes: object) -> Case:
    return on_driver(who=who, gpus=(replace(GPU, **changes),))


def on_devices(who: Who = ALICE, **changes: object) -> Case:
    return lambda: gpus.gpus(replace(DEVICES, **changes), DRIVER, "", who)


def on_sharing(*profiles: ProfileFacts, who: Who = ROOT, limits: str = "", **changes: object) -> Case:
    """``limits``: why the driver cannot limit GPU memory by cgroup."""

    def judged() -> AreaVerdict:
        facts, driver = replace(SHARING, **changes), replace(DRIVER, why_no_limits=limits)
        found = tuple(gpus.sharing(facts, profiles, driver, who))
        return gpus.gpus(DEVICES, driver, "", who, ((), found))

    return judged


def on_fence(
    who: Who = ALICE, reason: str = "", *, broker: bool = True, filters: bool = True, **changes: object
) -> Case:
    """``changes``: of what is seen of the fence. ``broker``: there is one; ``filters``: devices can be."""

    def judged() -> AreaVerdict:
        there = replace(BROKER, has_socket=broker)
        systemd = replace(SYSTEMD, filters_devices=filters)
        facts = replace(FENCE, **changes)
        found = tuple(gpus.fence(facts, DEVICES, systemd, there, who))
        return gpus.gpus(DEVICES, replace(DRIVER, reason=reason), "", who, ((), found))

    return judged


def on_state(who: Who = ALICE, **changes: object) -> Case:
    return lambda: state.state(replace(STATE, **changes), who)


def on_broker(who: Who = ALICE, **changes: object) -> Case:
    return lambda: state.broker(replace(BROKER, **changes), who)


def on_journal(who: Who = ALICE, **changes: object) -> Case:
    return lambda: units.journal(replace(JOURNAL, **changes), SYSTEMD, who)


def on_units(who: Who = ALICE, session: SessionFacts | None = None, **changes: object) -> Case:
    return lambda: units.units(replace(UNITS, **changes), SYSTEMD, session, who)


def on_environment(**changes: object) -> Case:
    return lambda: state.environment(replace(ENVIRONMENT, **changes))


def on_wrap(bin: FileState, real: FileState, wrap: Wrap = WRAP, **changes: object) -> Case:
    def judged() -> AreaVerdict:
        shim_there = replace(bin, head=shim.text(wrap)) if bin.kind == "shim" else bin
        sight = replace(Sight(shim_there, real, True, True, ()), **changes)
        status = WrapStatus(wrap, judging.problems(wrap, sight))
        return units.wraps(replace(WRAPS, wraps=(status,)))

    return judged


def on_others(**changes: object) -> Case:
    return lambda: state.others(replace(OTHERS, **changes))


def unanswered(look: LookResult, name: str = "others") -> Case:
    def judged() -> AreaVerdict:
        verdict = LookFacts({name: look}).unknown(name, name)  # type: ignore[arg-type]
        assert verdict is not None
        return verdict

    return judged


SHIM = FileState("shim", 1, 2, mode=0o755)
PROGRAM = FileState("file", 1, 3, 1, 2, mode=0o755)
NEW_PROGRAM = replace(PROGRAM, ino=4, size=5)
OF_DPKG = replace(WRAP, diverted=WRAP.path, package="w")
NO_UNITS = tuple(replace(file, state="missing") for file in UNITS.system)
LIMITS = UnitFile("/usr/local/lib/systemd/system/gpu.slice.d/10-slicer-config.conf", "missing")
NVIDIA = DEVICES.nvidia
IDLE = Disk("sda", "8:0", "none", ("none", "bfq"))
NVME = Disk("nvme0n1", "259:0", "none", ("none",))
UNDER_NOUVEAU = replace(NO_DEVICES, nvidia=NVIDIA, driven_by=("nouveau",))

# By the id of the finding; with several ways to it, each once.
CASES: dict[str, tuple[Case, ...]] = {
    "no-systemd": (
        on_systemd(boots=False), on_systemd(boots=False, is_wsl=True),
        on_systemd(boots=False, container="docker"),
    ),
    "manager-unreachable": (
        on_systemd(unreachable="alice is not logged in (cron, su)"),
        on_systemd(who=ROOT, unreachable="no connection to systemd"),
    ),
    "systemd-hangs": (unanswered(LookResult(None), "systemd"),),
    "systemd-old": (on_systemd(version="249.11"),),
    "no-cgroup2": (on_systemd(cgroups="v1"), on_systemd(cgroups="none")),
    "no-pidfd": (on_kernel(pidfd_error="Operation not permitted"),),
    "inotify-exhausted": (on_kernel(inotify_error="cannot be watched"),),
    "no-linger": (on_session(lingers=False),),
    "linger-in-vain": (on_session("255.4-1ubuntu8"), on_session("255"), on_session("256.2")),
    "logout-kills": (on_session(kills_processes=True),),
    "controllers-missing": (
        on_limits("MemoryMax", controllers=("cpu",)),
        on_limits("MemoryMax", controllers=(), on_v1=("memory",)),
        on_limits("MemoryMax", controllers=(), container="docker"),
        on_limits("IOWeight", "MemoryMax", controllers=("cpu",), who=ROOT),
    ),
    "not-delegated": (
        on_limits("AllowedCPUs", controllers=("cpu", "memory", "pids")),
        on_limits("IOWeight", "IOReadBandwidthMax", controllers=("cpu", "memory", "pids")),
    ),
    "io-controller-missing": (
        on_limits("IOWeight", controllers=("cpu", "memory", "pids")),
        on_limits("IOWeight", controllers=("cpu",), who=ROOT),
        on_limits("IOWeight", controllers=("cpu",), who=ROOT, container="docker"),
    ),
    "io-weight-not-heeded": (
        on_limits("IOWeight", disks=DiskFacts((), False, False, False)),
        on_limits("IOWeight", disks=DiskFacts((IDLE,), False, True, False)),
        on_limits("IOWeight", disks=DiskFacts((NVME,), False, True, False)),
    ),
    "oomd-absent": (on_limits("ManagedOOMSwap"),),
    "devices-not-fenced": (on_limits("DeviceAllow"), on_limits("DevicePolicy", who=ROOT, boots=False)),
    "profile-unusable": (on_configuration(profiles=(ProfileFacts("big", (), "no such CPU"),)),),
    "configuration-broken": (
        on_configuration(error="/etc/slicer/config.toml:3: unknown key 'x'"),
        on_configuration(error="/etc/slicer/config.toml: Permission denied", place="/etc/slicer/config.toml"),
    ),
    "configuration-warning": (on_configuration(warnings=("it is passed over",)),),
    "driver-hangs": (lambda: gpus.gpus(DEVICES, None, "", ALICE),),
    "driver-unusable": (
        lambda: gpus.gpus(DEVICES, replace(NO_DRIVER, reason="driver-mismatch"), "", ALICE),
        lambda: gpus.gpus(replace(DEVICES, driver="", nodes=()), NO_DRIVER, "", ALICE),
        lambda: gpus.gpus(DEVICES, replace(NO_DRIVER, reason="error"), "docker", ALICE),
    ),
    "gpus-not-passed-in": (
        lambda: gpus.gpus(replace(NO_DEVICES, nvidia=NVIDIA), NO_DRIVER, "docker", ALICE),
    ),
    "no-nvidia-ml-py": (
        lambda: gpus.gpus(DEVICES, replace(NO_DRIVER, reason="no-pynvml", hint=_PIP), "", ALICE),
        lambda: gpus.gpus(DEVICES, replace(NO_DRIVER, reason="no-pynvml", hint=_DEB), "", ALICE),
        lambda: gpus.gpus(DEVICES, replace(DRIVER, library="11.450.51"), "", ALICE),
    ),
    "nouveau": (lambda: gpus.gpus(UNDER_NOUVEAU, NO_DRIVER, "", ALICE),),
    "no-uvm-node": (on_devices(nodes=(DeviceNode("/dev/nvidia-uvm", False, False),)),),
    "node-missing": (on_devices(nodes=(DeviceNode("/dev/nvidia0", False, False),)),),
    "node-forbidden": (
        on_devices(nodes=(DeviceNode("/dev/nvidia0", True, False, "video"),)),
        on_devices(nodes=(DeviceNode("/dev/nvidia0", True, False, "root"),)),
    ),
    "gpu-out-of-service": (on_gpu(fault="the driver asks for a reset"),),
    "mig-on": (on_gpu(is_mig=True),),
    "exclusive-compute": tuple(
        on_gpu(compute_mode=mode) for mode in ("exclusive-process", "exclusive-thread", "prohibited")
    ),
    "display-on-gpu": (on_gpu(has_display=True),),
    "foreign-process": (
        on_driver(users=(GpuUser(0, 4711, "python", 1024, False),)),
        on_driver(users=(GpuUser(0, 0, "", None, False),)),
    ),
    "server-outside": (
        on_driver(users=(OLLAMA,)),
        on_driver(users=(GpuUser(1, 9, "python3", None, False, ("python3", "/srv/ComfyUI/main.py")),)),
    ),
    "amd-not-handled": (on_devices(amd=2),),
    "share-library-unusable": (on_sharing(INFER, library_error="there is no such file"),),
    "mps-beside-share": (
        on_sharing(INFER, mps="/tmp/nvidia-mps"), on_sharing(INFER, mps="/tmp/nvidia-mps", who=ALICE),
    ),
    "dmem-not-enabled": (on_sharing(INFER, is_dmem_on=False),),
    "ledger-unusable": (
        on_state(error="/run/lock: belongs to uid 1", hint="set SLICER_STATE_DIR"),
        on_state(error="x: must be an absolute path", is_chosen=True),
        on_state(error="none", public=(place("/run/lock", uid=0, mode=0o755),)),
        on_state(ledger=place("/run/lock/slicer-1000", "link")),
        on_state(ledger=place("/run/lock/slicer-1000", uid=1001)),
    ),
    "ledger-open": (
        on_state(ledger=place("/srv/slicer", mode=0o770)),
        on_state(who=ROOT, ledger=place("/run/slicer", uid=0, mode=0o2770)),
    ),
    "ledger-full": (
        on_state(ledger=replace(place("/run/lock/slicer-1000"), free_bytes=4096)),
        on_state(ledger=replace(place("/run/lock/slicer-1000"), free_files=1)),
    ),
    "ledger-stuck": (on_state(lock_holder=4711),),
    "ledger-emptied": (
        on_state(ledger=place("/dev/shm/slicer-1000"), is_emptied=True),
        on_state(who=ON_NIXOS, ledger=place("/dev/shm/slicer-1000"), is_emptied=True),
    ),
    "ledger-on-disk": (on_state(ledger=place("/srv/slicer", on="ext4"), is_chosen=True),),
    "ledger-name-taken": (on_state(squatted="/run/lock/slicer-1000"),),
    "history-unusable": (
        on_state(history=place("/home/alice/h", "link")),
        on_state(history=place("/home/alice/h", "file", 1001)),
        on_state(history_directory=place("/home/alice/.local", mode=0o777)),
        on_state(history_directory=place("/home/alice/.local", uid=1001)),
        on_state(history_directory=place("/home/alice/.local", uid=0)),
        on_state(history_shut="/home/alice/.local"),
        on_state(history_directory=place("/home/alice/.local", "file")),
        on_state(history=replace(STATE.history, free_bytes=1000)),
    ),
    "no-journald": (on_journal(socket_error="Connection refused"),),
    "journal-volatile": (
        on_journal(is_persistent=False), on_journal(is_persistent=False, storage="volatile"),
        on_journal(storage="none"),
    ),
    "journal-closed": (on_journal(may_read_own=False),),
    "wrap-changed": (
        on_wrap(NEW_PROGRAM, PROGRAM), on_wrap(PROGRAM, ABSENT), on_wrap(PROGRAM, PROGRAM),
        on_wrap(NEW_PROGRAM, replace(NEW_PROGRAM, ino=5)),
        on_wrap(ABSENT, ABSENT), on_wrap(SHIM, PROGRAM, replace(WRAP, intent="restore")),
        on_wrap(SHIM, PROGRAM, OF_DPKG), on_wrap(replace(SHIM, mode=0o644), PROGRAM),
    ),
    "wrap-broken": (
        on_wrap(SHIM, ABSENT), on_wrap(ABSENT, PROGRAM), on_wrap(SHIM, PROGRAM, slicer_runs=False),
        on_wrap(SHIM, PROGRAM, has_route=False),
        on_wrap(SHIM, ABSENT, replace(WRAP, path="/a\n\x1b[31m'b", real="/a\n\x1b[31m'b-real")),
    ),
    "wrap-record-unusable": (lambda: units.wraps(replace(WRAPS, passed_over=("a record: not whole",))),),
    "units-missing": (
        on_units(system=NO_UNITS), on_units(who=ROOT, system=NO_UNITS),
        on_units(who=ON_NIXOS, system=NO_UNITS),
    ),
    "unit-without-library": (on_units(lacking=(("slicer-web.service", "aiohttp"),)),),
    "queue-not-resumed": (
        on_units(queues=("/home/alice/sweep/jobs.txt",)),
        on_units(who=ROOT, queues=("/root/jobs.txt",)),
        on_units(session=replace(SESSION, lingers=False), queues=("/home/alice/jobs.txt",), restores=True),
    ),
    "units-outdated": (
        on_units(system=(replace(UNITS.system[0], state="outdated"),)),
        on_units(system=(UNITS.system[0], replace(UNITS.system[1], state="missing"))),
        on_units(user=(UnitFile("/home/alice/x", "outdated"),)),
        on_units(system=(LIMITS,), packaged=("/usr/lib/systemd/system/gpu.slice",)),
    ),
    "slice-masked": (
        on_units(masked=("/etc/systemd/system/gpu.slice",)),
        on_units(masked=("/etc/systemd/user/gpu.slice",)),
    ),
    "gpus-not-fenced": (on_fence(broker=False), on_fence(who=ROOT, filters=False)),
    "closed-shop": (on_fence(closed_shop=_SHUT), on_fence(closed_shop=_SHUT, acts=True, reason="fenced")),
    "closed-shop-without-broker": (on_fence(who=ROOT, closed_shop=_SHUT, acts=True, broker=False),),
    "closed-shop-not-acting": (
        on_fence(who=ROOT, closed_shop=_SHUT, acts=False), on_fence(left_open=("user.slice",)),
        on_fence(closed_shop=_SHUT, left_open=("cron.service",)),
    ),
    "broker-broken": (on_broker(answer_error="the broker has not answered for 5 s"),),
    "broker-place": (on_broker(place_problem="/run/slicer-broker belongs to uid 1001"),),
    "broker-stopped": (
        on_broker(has_socket=False, absence="the broker is switched on"),
        on_broker(has_socket=False, is_enabled=False, absence="the broker was switched off"),
        on_broker(
            has_socket=False, absence="the broker is switched on",
            masked=("/run/systemd/system/slicer-broker.socket",),
        ),
    ),
    "broker-bypassed": (on_broker(variable="off"), on_broker(variable="/tmp/\x1b[2J")),
    "policy-broken": (on_broker(who=ROOT, policy="broken", policy_error="policy.toml:3: no"),),
    "policy-unknown-name": (on_broker(policy_warnings=("policy.toml:3: there is no user 'x'",)),),
    "gpu-taken-out": (on_broker(out_of_service=(OutOfService("GPU-3f2a91c0", "too hot", 1.7e9),)),),
    "subuid-overlap": (on_broker(overlaps=("first.last (108472) in alice's",)),),
    "policy-without-broker": (on_broker(is_enabled=False, has_socket=False),),
    "several-slicers": (on_environment(on_path=("/usr/local/bin/slicer", "/usr/bin/slicer")),),
    "under-sudo": (on_environment(is_under_sudo=True),),
    "gpu-lock-skipped": (on_environment(variables=(("SLICER_SKIP_GPU_LOCK", "1"),)),),
    "gpu-lock-claimed": (on_environment(variables=(("GPU_LOCK_HELD", "1"),)),),
    "gpu-lock-held": (on_others(lock="/tmp/gpu.lock", lock_holder=4711, lock_holder_name="sh"),),
    "gpu-lock-unusable": (on_others(lock="/tmp/gpu.lock", lock_problem="is not a plain file"),),
    "docker-is-outside": (on_others(has_docker=True),),
    "podman-is-outside": (on_others(old_podman="/usr/bin/podman"),),
    "look-hangs": (unanswered(LookResult(None)),),
    "look-failed": (
        unanswered(LookResult(None, "OSError: no")), unanswered(LookResult(None, "no"), "systemd"),
    ),
}  # fmt: skip

# What all is well with, area by area.
HEALTHY: tuple[Case, ...] = (
    on_systemd(), on_kernel(), on_session(), on_session("255.4", who=ROOT), on_session("254.9"),
    on_session("256.3"), on_limits("CPUWeight", "IOWeight", "MemoryMax"), on_limits("DevicePolicy", who=ROOT),
    on_session("255.4", who=OF_THE_BROKER, lingers=False), on_systemd(OF_THE_BROKER),
    on_limits("MemoryMax", "CPUQuota", boots=False), on_limits("MemoryMax", is_there=False, controllers=()),
    on_configuration(), on_driver(), lambda: gpus.gpus(NO_DEVICES, NO_DRIVER, "", ALICE), on_state(),
    lambda: gpus.gpus(NO_DEVICES, replace(NO_DRIVER, reason="no-pynvml"), "", ALICE),
    on_state(ledger=place("/run/lock/slicer-1000", "", -1)), on_state(ledger=place("/dev/shm/slicer-1000")),
    on_state(OF_THE_BROKER, ledger=place("/dev/shm/slicer-1000"), is_emptied=True),
    on_fence(), on_fence(who=ROOT, broker=False), on_fence(reason="fenced"),
    on_broker(), on_broker(policy="hidden"), on_broker(policy="none", is_enabled=False, has_socket=False),
    on_broker(policy="none", is_enabled=False, has_socket=False, variable="off"),
    on_journal(), on_units(), on_units(system=NO_UNITS, packaged=("/usr/lib/x",)),
    on_environment(), on_environment(variables=(("GPU_LOCK_HELD", "0"),)), on_others(),
    on_wrap(SHIM, PROGRAM), on_wrap(SHIM, NEW_PROGRAM, has_route=None),
    lambda: units.wraps(WrapFacts((), ())),
    # sharing: not for those who do not; for those who do, only what concerns them
    on_sharing(INFER), on_sharing(INFER, is_dmem_on=None),
    on_sharing(INFER, has_dmem=False, is_dmem_on=False),
    on_sharing(library_error="there is no such file", mps="/tmp/nvidia-mps", is_dmem_on=False),
    on_sharing(ProfileFacts("infer", (), "", "cap"), mps="/tmp/nvidia-mps"),
    on_sharing(INFER, who=ALICE, is_dmem_on=False),
    on_sharing(INFER, limits="it requires driver 615, this is 575.57.08", is_dmem_on=False),
    # NixOS
    on_units(system=(*NO_UNITS, LIMITS), packaged=("/etc/systemd/system/gpu.slice",), who=ON_NIXOS),
)  # fmt: skip
