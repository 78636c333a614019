"""The units of ``slicer install --serve NAME``: a socket, and the service that it starts.

The service's restrictions are of two kinds. Limits of its cgroup (devices, addresses, memory) apply only to
the proxy, because a job has its own scope. Inherited ones (mounts, capabilities, system calls) also apply to
a server that the proxy starts. So with such a server, only what it does not need is closed.
"""

from __future__ import annotations

import ipaddress
import os

from slicer.backend.unit_files import Action, is_plain, read
from slicer.config.serve import Server
from slicer.errors import SlicerError
from slicer.kernel.proc import names_in
from slicer.record import record

PREFIX, _ENDS = "slicer-serve-", (".socket", ".service")
_UNIX = "unix:"
_BESIDE_S = 20  # of TimeoutStopSec=, in addition to the configured times

# Their containers need namespaces and set-user-ID helpers.
CONTAINERS = frozenset(("apptainer", "bwrap", "enroot", "flatpak", "podman", "singularity"))

# A started server inherits these. It does not need them, in the system's manager or in a user's.
_INHERITED = """\
NoNewPrivileges=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""
_PROTECTED = "".join(
    f"Protect{what}=yes\n" for what in ("Clock", "Hostname", "KernelLogs", "KernelModules", "KernelTunables")
)
# In the system's manager. (In a user's they would hide all users but one.)
_INHERITED_OF_SYSTEM = """\
CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_IPC_LOCK CAP_KILL CAP_SETGID CAP_SETUID
CapabilityBoundingSet=CAP_SYS_NICE CAP_SYS_PTRACE
ProtectSystem=full
""" + _PROTECTED
# If nothing is started.
_ALONE = """\
UMask=0077
MemoryDenyWriteExecute=yes
SystemCallFilter=~@privileged @resources
"""
_ALONE_OF_SYSTEM = """\
CapabilityBoundingSet=
ProtectSystem=full
ProtectHome=read-only
PrivateTmp=yes
""" + _PROTECTED
# For the proxy's own cgroup.
_OWN_OF_SYSTEM = """\
DevicePolicy=closed
DeviceAllow=char-nvidia* rw
"""


@record
class Units:
    """The two units of the servers that share an address."""

    name: str  # of the first server, which gives the units their name
    servers: tuple[Server, ...]
    program: str  # the path of the slicer to start
    is_user: bool  # whether it is for the caller's own manager
    run_as: str = ""  # the user that everything belongs to; "": the manager's own

    @property
    def socket(self) -> str:
        return socket_of(self.name)

    @property
    def service(self) -> str:
        return service_of(self.name)


def socket_of(name: str) -> str:
    return f"{PREFIX}{name}.socket"


def service_of(name: str) -> str:
    return f"{PREFIX}{name}.service"


def actions(units: Units, folder: str) -> tuple[Action, Action]:
    """The two files in ``folder``. Raises SlicerError for names that no unit can contain."""
    for word in (units.program, *(each.name for each in units.servers)):
        if not is_plain(word):
            hint = "install slicer in a directory with a plain name, such as /opt/slicer"
            raise SlicerError("a unit cannot name this", where=word, hint=hint)
    return (
        Action("", f"{folder}/{units.socket}", f"the address of {units.name}", socket_text(units).encode()),
        Action("", f"{folder}/{units.service}", f"slicer serve {units.name}", service_text(units).encode()),
    )


def there(folder: str) -> tuple[str, ...]:
    """The names of the servers whose units are in ``folder``, in alphabetical order."""
    ours = (name for name in names_in(folder) if name.startswith(PREFIX))
    return tuple(sorted({name[len(PREFIX) :].rpartition(".")[0] for name in ours if name.endswith(_ENDS)}))


def run_as_of(folder: str, name: str) -> str:
    """The user of an installed service; "": the manager's own."""
    return _said(f"{folder}/{service_of(name)}", "User=")


def program_of(folder: str, name: str) -> str:
    """The slicer that an installed service starts; "": unknown."""
    return _said(f"{folder}/{service_of(name)}", "ExecStart=").partition(" ")[0]


def _said(path: str, key: str) -> str:
    text = (read(path) or b"").decode("utf-8", "replace")
    found = [line.removeprefix(key) for line in text.splitlines() if line.startswith(key)]
    return found[-1] if found else ""


def enable(units: Units, *, is_changed: bool) -> tuple[tuple[str, ...], ...]:
    """The commands for systemd once the files exist. A running service is of the older version."""
    systemctl = _systemctl(is_user=units.is_user)
    if not is_changed:
        return ((*systemctl, "enable", "--now", units.socket),)
    return (
        # systemd starts no socket while its service runs.
        (*systemctl, "stop", units.socket, units.service),
        (*systemctl, "enable", "--now", units.socket),
    )


def disable(name: str, *, is_user: bool) -> tuple[tuple[str, ...], ...]:
    """The commands for systemd before the files are removed. The service returns its GPU."""
    systemctl = _systemctl(is_user=is_user)
    return (
        (*systemctl, "disable", "--now", socket_of(name)),
        (*systemctl, "stop", service_of(name)),
    )


def _systemctl(*, is_user: bool) -> tuple[str, ...]:
    return ("systemctl", "--user") if is_user else ("systemctl",)


def socket_text(units: Units) -> str:
    """The unit of the socket. Raises SlicerError for an address at which systemd cannot listen."""
    listened = dict.fromkeys(address for server in units.servers for address in server.listen)
    streams = [_stream(address) for address in listened]
    options = []
    if any(address.startswith(_UNIX) for address in listened):
        options += ["# Only its user may connect.", "SocketMode=0600", "DirectoryMode=0755"]
        options += [f"SocketUser={units.run_as}"] if units.run_as else []
    if any(stream.startswith("[") for stream in streams):
        options.append("BindIPv6Only=ipv6-only")
    if any(not address.startswith(_UNIX) and not _is_anywhere(address) for address in listened):
        options += ["# The address may appear later than the socket.", "FreeBind=yes"]
    return "\n".join([
        *_head(units),
        "[Unit]",
        f"Description=The address of {_names(units)}",
        "Documentation=man:slicer-serve(1)",
        "# Without its program no request would be answered.",
        f"ConditionFileIsExecutable={units.program}",
        "",
        "[Socket]",
        *(f"ListenStream={stream}" for stream in streams),
        f"FileDescriptorName={units.name}",
        *options,
        "# Once stopped, it is removed, and clients are refused at once.",
        "RemoveOnStop=yes",
        "Backlog=1024",
        "# However often the service fails, the next request starts it.",
        "TriggerLimitIntervalSec=0",
        "",
        "[Install]",
        "WantedBy=sockets.target",
        "",
    ])  # fmt: skip


def _stream(address: str) -> str:
    """An address of the configuration in systemd's form."""
    if address.startswith(_UNIX):
        path = address.removeprefix(_UNIX)
        if not is_plain(path):
            raise SlicerError("a unit cannot name this path", where=address, hint="give it a plain name")
        return path
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        hint = "write an IP address, such as 127.0.0.1:11434"
        raise SlicerError("systemd cannot listen at a host name", where=address, hint=hint) from None
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"


def _is_anywhere(address: str) -> bool:
    """Whether the machine has the address at all times: it is loopback's, or all of them."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return host == "localhost" or _ip(host).is_loopback or _ip(host).is_unspecified


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host)


def service_text(units: Units) -> str:
    stop_s = max(each.drain_s + each.release_timeout_s for each in units.servers) + _BESIDE_S
    names = " ".join(each.name for each in units.servers)
    return "\n".join([
        *_head(units),
        "[Unit]",
        f"Description=slicer serve {names}: a GPU while it is in use",
        "Documentation=man:slicer-serve(1)",
        *([] if units.is_user else ["After=slicer-broker.socket nvidia-persistenced.service"]),
        "# However often it fails, it is tried again. The fault may be fixed by then.",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={units.program} serve {names}",
        *([f"User={units.run_as}"] if units.run_as else []),
        "# If its program stays missing, beyond an upgrade, slicer was removed.",
        _left_behind(units),
        "# It exits by itself when all its servers are stopped. The next request starts it.",
        "Restart=on-failure",
        "RestartSec=10s",
        "# SIGTERM: no more requests. Running ones may end, and the GPUs are returned.",
        "KillMode=mixed",
        f"TimeoutStopSec={int(stop_s)}s",
        "MemoryMax=512M",
        "TasksMax=512",
        "",
        *_sandbox(units),
        "",
    ])  # fmt: skip


def _left_behind(units: Units) -> str:
    """The line that keeps systemd from trying for ever to start a missing program."""
    stop = " ".join((*_systemctl(is_user=units.is_user), "--no-block", "stop", units.socket, units.service))
    script = f"p={units.program}; test -x $$p || {{ sleep 3; test -x $$p || {stop}; }}"
    return f"ExecStopPost={'' if units.is_user else '+'}/bin/sh -c '{script}'"


def _sandbox(units: Units) -> list[str]:
    is_alone = not any(each.command for each in units.servers)
    containers = [os.path.basename(each.command[0]) for each in units.servers if each.command]
    containers = [name for name in containers if name in CONTAINERS]
    own = [] if units.is_user else _OWN_OF_SYSTEM.splitlines()
    if not units.is_user and all(_is_local(each) for each in units.servers):
        own += ["IPAddressDeny=any", "IPAddressAllow=localhost"]
    shown = ["# For the proxy alone, because a job has its own scope:", *own] if own else []
    if containers:
        return [*shown, f"# The rest is open: {containers[0]} needs namespaces, and would inherit limits."]
    if is_alone:
        closed = _INHERITED + _ALONE + ("" if units.is_user else _ALONE_OF_SYSTEM)
        return [*shown, "# It starts nothing:", *closed.splitlines()]
    closed = _INHERITED + ("" if units.is_user else _INHERITED_OF_SYSTEM)
    return [*shown, "# A server that it starts inherits these:", *closed.splitlines()]


def _is_local(server: Server) -> bool:
    """Whether only this machine can reach it, and it forwards to no other."""
    host = server.upstream.partition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]")
    try:
        is_near = not server.upstream or host == "localhost" or _ip(host).is_loopback
    except ValueError:
        return False
    return is_near and not server.public


def _head(units: Units) -> list[str]:
    scope = "--user " if units.is_user else ""
    return [
        f"# Written by `slicer install {scope}--serve {units.name}` from the configuration. Run it again",
        f"# when that has changed. Do not change this file: `systemctl {scope}edit {units.service}`.",
        "",
    ]


def _names(units: Units) -> str:
    return ", ".join(each.name for each in units.servers)
