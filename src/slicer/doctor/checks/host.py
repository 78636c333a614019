"""Findings about systemd, the kernel and the session. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.doctor.facts.host import KernelFacts, SessionFacts
from slicer.doctor.facts.systemd import SystemdFacts
from slicer.doctor.findings import AreaVerdict, Finding, Who
from slicer.doctor.kinds import finding

_TESTED = 252
_STOPS_LINGERING = ((255, 0), (256, 2))  # systemd#43361: first and last version with the bug


def systemd(facts: SystemdFacts, who: Who) -> AreaVerdict:
    """The manager that would start jobs, and the cgroups below it."""
    whose = "your user manager" if who.manager == "user" else "the system manager"
    whose += ", through the broker" if who.is_brokered else ""
    inside = f", in a container ({facts.container})" if facts.container else ""
    named = f"systemd {facts.version}" if facts.version else "systemd, version unknown"
    summary = f"{named}, {whose}; cgroup {facts.cgroups}{inside}" if facts.boots else f"not running{inside}"
    shown = (
        ("manager", who.manager), ("cgroup of the manager", facts.at or "/"),
        ("controllers there", " ".join(facts.controllers) or "none"),
        ("controllers on cgroup v1", " ".join(facts.on_v1) or "none"),
    )  # fmt: skip
    found = _manager(facts, who) if facts.boots else _no_systemd(facts)
    return AreaVerdict("systemd", summary, shown, tuple(found))


def _no_systemd(facts: SystemdFacts) -> Iterator[Finding]:
    if facts.is_wsl:
        line = r"printf '[boot]\nsystemd=true\n' | sudo tee -a /etc/wsl.conf"
        yield finding("no-systemd", "this is WSL", line, "# then in Windows: wsl --shutdown")
    elif facts.container:
        what = f"this is a container ({facts.container})"
        yield finding("no-systemd", what, "# run slicer on the host: slicer run -- docker exec …")
    else:
        yield finding("no-systemd", "PID 1 is another program", "# boot with systemd as PID 1")


def _manager(facts: SystemdFacts, who: Who) -> Iterator[Finding]:
    if facts.cgroups in ("v1", "none"):
        what = "the machine uses cgroup v1" if facts.cgroups == "v1" else "no cgroups are mounted"
        mend = "# add to the kernel command line: systemd.unified_cgroup_hierarchy=1"
        yield finding("no-cgroup2", what, mend)
        return
    if facts.unreachable:
        # A lingering user's manager may have failed, or been stopped.
        mends: tuple[str, ...] = (who.linger(), who.root(f"systemctl start user@{who.uid}.service"))
        if who.manager == "system":
            mends = (who.root("systemctl start dbus.socket"),)
        yield finding("manager-unreachable", facts.unreachable, *mends)
    if facts.version and facts.number[0] < _TESTED:
        yield finding("systemd-old", f"systemd has version {facts.version}", "# upgrade the distribution")


def kernel(facts: KernelFacts, who: Who) -> AreaVerdict:
    """Whether the kernel lets slicer wait for processes and files."""
    shown = (("inotify instances", facts.inotify_instances or "unknown"),)
    return AreaVerdict("kernel", f"Linux {facts.release}", shown, tuple(_kernel(facts, who)))


def _kernel(facts: KernelFacts, who: Who) -> Iterator[Finding]:
    if facts.pidfd_error:
        what = f"pidfd_open(2) fails: {facts.pidfd_error}"
        yield finding("no-pidfd", what, "# upgrade the container runtime")
    if facts.inotify_error:
        what = f"{facts.inotify_error} (fs.inotify.max_user_instances is {facts.inotify_instances})"
        yield finding("inotify-exhausted", what, who.root("sysctl fs.inotify.max_user_instances=1024"))


def session(facts: SessionFacts, systemd: SystemdFacts | None, who: Who) -> AreaVerdict:
    """Whether a user's jobs outlive the logout. Root's always do."""
    if not who.uid:
        return AreaVerdict("session", "root's jobs outlive every logout", (), ())
    if systemd is not None and not systemd.boots:
        return AreaVerdict("session", "no systemd, so no logind to end jobs", (), ())
    outlives = facts.lingers or who.is_brokered
    summary = "jobs outlive your logout" if outlives else "jobs end at your last logout"
    return AreaVerdict("session", summary, (), tuple(_session(facts, systemd, who)))


def _session(facts: SessionFacts, systemd: SystemdFacts | None, who: Who) -> Iterator[Finding]:
    first, last = _STOPS_LINGERING
    if who.is_brokered:
        pass  # the system manager runs the jobs
    elif not facts.lingers and facts.has_runtime:
        yield finding("no-linger", f"{who.user} does not linger", who.linger())
    elif systemd is not None and first <= systemd.number <= last:
        what = f"{who.user} lingers, but systemd {systemd.version} stops the user manager anyway"
        yield finding("linger-in-vain", what, "# upgrade systemd to 256.3 or later")
    if facts.kills_processes:
        what = f"KillUserProcesses=yes applies to {who.user}"
        yield finding("logout-kills", what, "slicer queue --detach JOBS.txt")
