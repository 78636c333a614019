"""What to say of systemd, the kernel and the session. Pure."""

from __future__ import annotations

from slicer.doctor.kinds import finding
from slicer.doctor.model import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicer.doctor.facts.kernel import KernelFacts
    from slicer.doctor.facts.session import SessionFacts
    from slicer.doctor.facts.systemd import SystemdFacts
    from slicer.doctor.model import Finding, Who

_TESTED = 252
_STOPS_LINGERING = ((255, 0), (256, 2))  # systemd#43361: from, to
_FEW_FILES = 256
_FEW_LEFT = 64  # processes
_MOST_TASKS = 0.9  # of TasksMax


def systemd(facts: SystemdFacts, who: Who) -> Verdict:
    """The manager that would start jobs, and the cgroups below it."""
    whose = "your user manager" if who.manager == "user" else "the system manager"
    whose += ", through the broker" if who.is_brokered else ""
    inside = f", in a container ({facts.container})" if facts.container else ""
    named = f"systemd {facts.version}" if facts.version else "systemd of an unknown version"
    summary = f"{named}, {whose}; cgroup {facts.cgroups}{inside}" if facts.boots else f"not running{inside}"
    shown = (
        ("version", facts.version or "unknown"), ("manager", who.manager),
        ("state", facts.state or "unknown"), ("cgroups", facts.cgroups),
        ("cgroup of the manager", facts.at or "/"),
        ("controllers there", " ".join(facts.controllers) or "none"),
        ("controllers on cgroup v1", " ".join(facts.on_v1) or "none"), ("container", facts.container or "no"),
    )  # fmt: skip
    found = _manager(facts, who) if facts.boots else _no_systemd(facts)
    return Verdict("systemd", summary, shown, tuple(found))


def _no_systemd(facts: SystemdFacts) -> Iterator[Finding]:
    if facts.is_wsl:
        line = r"printf '[boot]\nsystemd=true\n' | sudo tee -a /etc/wsl.conf"
        yield finding(
            "no-systemd", "this is WSL", line, "# then in Windows: wsl --shutdown"
        )
    elif facts.container:
        what = f"this is a container ({facts.container})"
        yield finding("no-systemd", what, "# run slicer on the host: slicer run -- docker exec …")
    else:
        yield finding("no-systemd", "PID 1 is another program", "# boot with systemd as PID 1")


def _manager(facts: SystemdFacts, who: Who) -> Iterator[Finding]:
    if facts.cgroups in ("v1", "none"):
        what = (
            f"the machine has cgroup {facts.cgroups}" if facts.cgroups == "v1" else "no cgroups are mounted"
        )
        yield finding(
            "no-cgroup2", what, "# add to the kernel command line: systemd.unified_cgroup_hierarchy=1"
        )
        return
    if "pystemd" in facts.unreachable:
        yield finding("no-pystemd", facts.unreachable, who.root("apt install python3-pystemd"))
    elif facts.unreachable:
        # One that lingers already may have failed, or been stopped.
        mends: tuple[str, ...] = (who.linger(), who.root(f"systemctl start user@{who.uid}.service"))
        if who.manager == "system":
            mends = (who.root("systemctl start dbus.socket"),)
        yield finding("manager-unreachable", facts.unreachable, *mends)
    if facts.version and facts.number[0] < _TESTED:
        yield finding("systemd-old", f"systemd is of version {facts.version}", "# upgrade the distribution")
    if facts.failed:
        flag = " --user" if who.manager == "user" else ""
        names = " ".join(facts.failed)
        yield finding("units-failed", f"failed: {names}", f"systemctl{flag} reset-failed {names}")


def kernel(facts: KernelFacts, who: Who) -> Verdict:
    """What the kernel lacks, and which limits are near."""
    features = (
        ("pidfd", facts.pidfd), ("memory.peak", facts.memory_peak), ("cgroup.kill", facts.cgroup_kill),
        ("PSI", facts.psi), ("dmem", facts.dmem),
    )  # fmt: skip
    there = " ".join(name for name, has in features if has) or "nothing of what slicer uses"
    shown = (
        ("release", facts.release),
        *((name, "not known" if has is None else "yes" if has else "no") for name, has in features),
        ("open files (ulimit -n)", _limit(facts.open_files)),
        ("processes (ulimit -u)", f"{facts.own_processes} of {_limit(facts.processes)}"),
        ("tasks of your slice", f"{facts.tasks} of {facts.tasks_max or 'no limit that is seen'}"),
        ("inotify instances", facts.inotify_instances or "unknown"),
    )
    found = (*_features(facts, who), *_resources(facts, who))
    return Verdict("kernel", f"Linux {facts.release}: {there}", shown, found)


def _limit(value: int) -> str:
    return "no limit" if value < 0 else str(value)


def _features(facts: KernelFacts, who: Who) -> Iterator[Finding]:
    if not facts.pidfd:
        yield finding(
            "no-pidfd", f"pidfd_open(2) fails: {facts.pidfd_error}", "# upgrade the container runtime"
        )
    if facts.memory_peak is False:
        yield finding("no-memory-peak", f"Linux {facts.release} has no memory.peak", "# upgrade the kernel")
    if facts.cgroup_kill is False:
        yield finding("no-cgroup-kill", f"Linux {facts.release} has no cgroup.kill", "# upgrade the kernel")
    if not facts.psi:
        yield finding("no-psi", "/proc/pressure is not there", "# add to the kernel command line: psi=1")
    if facts.hidepid and who.uid:
        yield finding("proc-hidden", f"/proc is mounted with hidepid={facts.hidepid}")


def _resources(facts: KernelFacts, who: Who) -> Iterator[Finding]:
    if 0 <= facts.open_files < _FEW_FILES:
        room = facts.open_files_hard < 0 or facts.open_files_hard > facts.open_files
        most = 4096 if facts.open_files_hard < 0 else min(4096, facts.open_files_hard)
        mend = f"ulimit -n {most}" if room else who.root(f"prlimit --pid $$ --nofile={4096}")
        yield finding("few-open-files", f"a process may open {facts.open_files} files", mend)
    if who.uid and 0 <= facts.processes < facts.own_processes + _FEW_LEFT:
        what = f"{facts.own_processes} of {facts.processes} processes are in use (ulimit -u)"
        yield finding("few-processes", what, f"ulimit -u {facts.own_processes + 16384}")
    if facts.tasks_max and facts.tasks > _MOST_TASKS * facts.tasks_max:
        what = f"{facts.tasks} of {facts.tasks_max} tasks are in use in user-{who.uid}.slice"
        mend = who.root(f"systemctl set-property user-{who.uid}.slice TasksMax=infinity")
        yield finding("tasks-max-near", what, mend)
    if facts.inotify_error:
        what = f"{facts.inotify_error} (fs.inotify.max_user_instances is {facts.inotify_instances})"
        yield finding("inotify-exhausted", what, who.root("sysctl fs.inotify.max_user_instances=1024"))


def session(facts: SessionFacts, systemd: SystemdFacts | None, who: Who) -> Verdict:
    """Whether a user's jobs outlive the logout. Root's do."""
    shown = (
        ("lingers", "yes" if facts.lingers else "no"),
        ("logged in", "yes" if facts.has_runtime else "no"),
        ("logind ends what a session leaves behind", "yes" if facts.kills_processes else "no"),
    )
    if not who.uid:
        return Verdict("session", "root's jobs outlive every logout", shown, ())
    if systemd is not None and not systemd.boots:
        return Verdict("session", "no systemd, so no logind that ends jobs", shown, ())
    outlives = facts.lingers or who.is_brokered
    summary = "jobs outlive the logout" if outlives else "jobs end with the last logout"
    return Verdict("session", summary, shown, tuple(_session(facts, systemd, who)))


def _session(facts: SessionFacts, systemd: SystemdFacts | None, who: Who) -> Iterator[Finding]:
    first, last = _STOPS_LINGERING
    if who.is_brokered:
        pass  # the system's manager has the jobs
    elif not facts.lingers and facts.has_runtime:
        mend = who.linger()
        yield finding("no-linger", f"{who.user} does not linger", mend)
    elif systemd is not None and first <= systemd.number <= last:
        what = f"{who.user} lingers, but systemd {systemd.version} stops the user manager all the same"
        yield finding("linger-in-vain", what, "# upgrade systemd to 256.3 or later")
    if facts.kills_processes:
        yield finding(
            "logout-kills", f"KillUserProcesses=yes holds for {who.user}", "slicer queue --detach JOBS.txt"
        )
