"""Findings about the GPUs, the fence around them, sharing, and model servers on them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.doctor.facts.broker import BrokerFacts
from slicer.doctor.facts.configuration import ProfileFacts
from slicer.doctor.facts.gpus import DeviceFacts, DriverFacts, FenceFacts, GpuUser, SharingFacts
from slicer.doctor.facts.systemd import SystemdFacts
from slicer.doctor.findings import AreaVerdict, Finding, Who
from slicer.doctor.kinds import finding
from slicer.gpu.nvml import GpuDetails
from slicer.quantity import format_mib
from slicer.record import record
from slicer.text import counted, quote

Fact = tuple[str, str]
_OLDEST_LIBRARY = (12, 535)
_MENDS = {
    "no-library": "# install NVIDIA's driver",
    "no-driver": "modprobe nvidia",
    "driver-mismatch": "# reboot: the driver was upgraded while it was loaded",
    "no-devices": "dmesg | grep -i -e nvrm -e xid",
    "permission": "ls -l /dev/nvidia*",
    "error": "nvidia-smi; dmesg | grep -i -e nvrm -e xid",
}
_AS_ROOT = ("no-driver", "no-devices", "error")


def gpus(
    devices: DeviceFacts, driver: DriverFacts | None, container: str, who: Who,
    sharing: tuple[tuple[Fact, ...], tuple[Finding, ...]] = ((), ()), served: tuple[str, ...] = (),
) -> AreaVerdict:  # fmt: skip
    """``driver``: None if it did not answer in time. ``sharing``: facts and findings about ``--share``.

    ``served``: the kinds of servers that run on their own behind `slicer serve`.
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
        found += outside_servers(driver.users, served, who)
        found += _foreign(tuple(user for user in driver.users if known_server(user) is None))
    shown = (*_facts(devices, driver), *sharing[0])
    return AreaVerdict("gpus", _summary(devices, driver), shown, (*found, *sharing[1]))


def _summary(devices: DeviceFacts, driver: DriverFacts | None) -> str:
    if driver is None:
        return "not known"
    if driver.gpus:
        names = sorted({gpu.name.removeprefix("NVIDIA ") for gpu in driver.gpus})
        return f"{counted(len(driver.gpus), 'GPU')} ({', '.join(names)}), driver {driver.version}"
    if driver.reason == "fenced":
        return "this shell is fenced off from them"
    return "no usable GPU" if devices.nvidia else "none"


def _facts(devices: DeviceFacts, driver: DriverFacts | None) -> tuple[tuple[str, str], ...]:
    shown = [("kernel module", devices.driver or "none")]
    if driver is not None:
        shown += [("driver", driver.version or driver.message), ("nvidia-ml-py", driver.library or "none")]
        shown += [(f"GPU {gpu.index}", _described(gpu)) for gpu in driver.gpus]
    return tuple(shown)


def _described(gpu: GpuDetails) -> str:
    words = [gpu.name, format_mib(gpu.memory_mib or None), f"compute mode {gpu.compute_mode or 'unknown'}"]
    words += ["display"] if gpu.has_display else []
    words += ["MIG"] if gpu.is_mig else []
    return ", ".join(words)


def _unusable(devices: DeviceFacts, driver: DriverFacts, container: str, who: Who) -> Iterator[Finding]:
    if driver.reason == "fenced":
        return  # as intended, in a job without a GPU lease or in a closed shop
    if driver.reason == "no-pynvml":
        if devices.nvidia or devices.driver:  # without a GPU nothing needs pynvml
            yield finding("no-nvidia-ml-py", driver.message, *_binding(driver))
        return
    if not devices.nvidia and not devices.driver:
        if driver.reason == "no-library":
            return  # without a GPU nothing needs a driver
    elif container and driver.reason in ("no-library", "no-driver", "no-devices"):
        what = f"the host has {counted(len(devices.nvidia), 'GPU')}, this container none"
        yield finding("gpus-not-passed-in", what, "# on the host: docker run --gpus all …")
        return
    elif devices.nvidia and driver.reason in ("no-library", "no-driver") and _other_drivers(devices):
        return  # the finding "nouveau" reports it
    mend = _MENDS.get(driver.reason, f"# {driver.hint}")
    mend = who.root(mend) if driver.reason in _AS_ROOT else mend
    if devices.nvidia or devices.driver or driver.reason != "no-driver":
        yield finding("driver-unusable", driver.message, mend)


def _binding(driver: DriverFacts) -> tuple[str, ...]:
    there = ("# in slicer's source directory; then install the package that this builds:",)
    return *(there if driver.hint.startswith("debian/") else ()), driver.hint


def _other_drivers(devices: DeviceFacts) -> tuple[str, ...]:
    return tuple(name for name in devices.driven_by if name not in ("nvidia", ""))


def _details(driver: DriverFacts, who: Who) -> Iterator[Finding]:
    if library_is_old(driver.library):
        yield finding("no-nvidia-ml-py", f"nvidia-ml-py has version {driver.library}", *_binding(driver))
    for gpu in driver.gpus:
        choose = f"nvidia-smi -i {gpu.index}"
        if gpu.fault:
            yield finding("gpu-out-of-service", f"GPU {gpu.index} ({gpu.name}): {gpu.fault}", f"{choose} -q")
        if gpu.is_mig:
            yield finding("mig-on", f"GPU {gpu.index} ({gpu.name})", who.root(f"{choose} -mig 0"))
        if gpu.compute_mode in ("exclusive-process", "exclusive-thread", "prohibited"):
            what = f"GPU {gpu.index} ({gpu.name}): {gpu.compute_mode}"
            yield finding("exclusive-compute", what, who.root(f"{choose} -c DEFAULT"))
        if gpu.has_display:
            mend = '# in config.toml: [gpu] idle_threshold = "1G"'
            yield finding("display-on-gpu", f"GPU {gpu.index} ({gpu.name})", mend)


def _devices(devices: DeviceFacts, who: Who) -> Iterator[Finding]:
    other = _other_drivers(devices)
    if other:
        what = f"{counted(len(devices.nvidia), 'NVIDIA GPU')} driven by {', '.join(other)}"
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
            yield finding("node-forbidden", f"{who.user} may not open {node.path}", mend)
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
    """Whether this nvidia-ml-py is older than slicer needs; False if there is none."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return len(numbers) == 2 and numbers < _OLDEST_LIBRARY


@record
class KnownServer:
    """A server that `slicer serve` supports: its usual name, and its kind and command there."""

    what: str
    kind: str
    command: tuple[str, ...]


_OLLAMA = KnownServer("Ollama", "ollama", ("ollama", "serve"))
_LLAMACPP = KnownServer("llama.cpp", "llamacpp", ("llama-server", "-m", "MODEL.gguf", "--port", "${PORT}"))
_VLLM = KnownServer("vLLM", "openai", ("vllm", "serve", "MODEL", "--port", "${PORT}"))
_SGLANG = KnownServer("SGLang", "openai", ("sglang", "serve", "--model-path", "MODEL", "--port", "${PORT}"))
_TGI = KnownServer("TGI", "openai", ("text-generation-launcher", "--model-id", "MODEL", "--port", "${PORT}"))
_COMFYUI = KnownServer("ComfyUI", "comfyui", ("python3", "ComfyUI/main.py", "--port", "${PORT}"))

# Matched against the first words of a command. The first match wins: Ollama starts a llama-server.
_ENDS = (
    ("ollama", _OLLAMA), ("ollama_llama_server", _OLLAMA), ("llama-server", _LLAMACPP), ("vllm", _VLLM),
    ("vllm.entrypoints.openai.api_server", _VLLM), ("sglang.launch_server", _SGLANG), ("sglang", _SGLANG),
    ("text-generation-launcher", _TGI), ("text-generation-server", _TGI), ("ComfyUI/main.py", _COMFYUI),
)  # fmt: skip
_BEGINNINGS = (("VLLM::", _VLLM), ("sglang::", _SGLANG))
_WORDS = 3  # of a command; its program or script is among these


def known_server(user: GpuUser) -> KnownServer | None:
    """The server that a GPU process is; None if unknown, or if its command line cannot be trusted."""
    if not user.command:
        return None
    if user.unit == "ollama.service" or "/ollama/" in user.command[0]:
        return _OLLAMA
    for word in user.command[:_WORDS]:
        for end, server in _ENDS:
            if word == end or word.endswith(f"/{end}"):
                return server
    beginning = user.command[0]
    return next((server for start, server in _BEGINNINGS if beginning.startswith(start)), None)


def outside_servers(users: tuple[GpuUser, ...], served: tuple[str, ...], who: Who) -> tuple[Finding, ...]:
    """A finding for each such server. ``served``: the kinds that `slicer serve` already manages."""
    found: dict[str, tuple[KnownServer, list[GpuUser]]] = {}
    for user in users:
        server = None if user.is_slicers else known_server(user)
        if server is not None and server.kind not in served:
            found.setdefault(server.what, (server, []))[1].append(user)
    return tuple(_server_outside(server, processes, who) for server, processes in found.values())


def _server_outside(server: KnownServer, users: list[GpuUser], who: Who) -> Finding:
    shown = "; ".join(f"pid {each.pid}, {format_mib(each.used_mib)} of GPU {each.gpu}" for each in users)
    name = server.what.lower().replace(".", "")
    words = ", ".join(f'"{word}"' for word in server.command)
    what = f"{server.what}: {shown}"
    if who.is_nixos:
        setting = f"programs.slicer.settings.serve.{name}"
        return finding("server-outside", what, f"# in the configuration: {setting}, not its own unit")
    units = dict.fromkeys(each.unit for each in users if each.unit)
    stops = [who.root(f"systemctl disable --now {quote(unit)}") for unit in units]
    return finding(
        "server-outside", what, *stops,
        f'# in config.toml: [serve.{name}], kind = "{server.kind}", command = [{words}]',
        f"slicer serve {name} --dry-run",
    )  # fmt: skip


def fence(
    facts: FenceFacts, devices: DeviceFacts, systemd: SystemdFacts, broker: BrokerFacts | None, who: Who
) -> Iterator[Finding]:
    """The findings about the fence. ``broker``: None if that look failed."""
    has_broker = broker is None or (broker.has_socket and broker.variable != "off")
    if devices.driver and systemd.boots:
        if who.manager == "system" and not systemd.filters_devices:
            look = "journalctl -b | grep -i bpf"
            mend = "# on the host: allow bpf(2) in this container" if systemd.container else look
            yield finding("gpus-not-fenced", "systemd may not load BPF programs here", mend)
        elif who.manager == "user" and not has_broker:
            mend = who.install("--broker", "broker.enable = true")
            yield finding("gpus-not-fenced", "your manager cannot do it, and there is no broker", mend)
    if not facts.closed_shop and not facts.left_open:
        return
    undo = who.install("--closed-shop --remove", "broker.closedShop = false")
    if facts.left_open:
        mend = who.install("--closed-shop --yes", "broker.closedShop = true")
        what = f"{', '.join(facts.left_open)} can still open the GPUs"
        yield finding("closed-shop-not-acting", what, mend, undo)
    elif facts.acts is False:
        mends = who.root("systemctl daemon-reload"), who.root("systemd-run --wait --collect true")
        yield finding("closed-shop-not-acting", facts.closed_shop, *mends)
    elif not has_broker:
        mend = who.install("--broker", "broker.enable = true")
        yield finding("closed-shop-without-broker", facts.closed_shop, mend, undo)
    else:
        yield finding("closed-shop", facts.closed_shop, undo)


_QUIT = "echo quit | nvidia-cuda-mps-control"
_ENABLE = "echo +dmem > /sys/fs/cgroup{}/cgroup.subtree_control"


def sharing(
    facts: SharingFacts, profiles: tuple[ProfileFacts, ...], driver: DriverFacts | None, who: Who
) -> Iterator[Finding]:
    """The findings about sharing. ``driver``: None if it did not answer in time."""
    sharers = [profile for profile in profiles if profile.share]
    if not sharers:
        return
    if facts.library_error:
        what = f"{facts.library}: {facts.library_error}"
        yield finding("share-library-unusable", what, "# reinstall slicer; from source, this needs gcc")
    if facts.mps and any(profile.share in ("lock", "both") for profile in sharers):
        yield finding("mps-beside-share", f"MPS has its pipes in {facts.mps}", who.root(_QUIT))
    can = driver is not None and not driver.reason and not driver.why_no_limits
    if can and not who.uid and facts.has_dmem and facts.is_dmem_on is False:
        what = "the driver can limit GPU memory by cgroup, but gpu.slice does not pass on dmem"
        yield finding("dmem-not-enabled", what, _ENABLE.format(""), _ENABLE.format("/gpu.slice"))


def driver_limit(facts: SharingFacts, driver: DriverFacts | None, who: Who) -> str:
    """What becomes of a limit of a job's GPU memory by the driver."""
    if driver is None or driver.reason:
        return "not known"
    if driver.why_no_limits:
        return f"no: {driver.why_no_limits}"
    if who.uid:
        return "not allowed: only root may set it"
    if facts.has_dmem and facts.is_dmem_on is False:
        return "no: gpu.slice does not pass on the controller dmem"
    return "by the driver"
