"""Findings about profiles' limits and about the configuration. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.backend.plain import BEST_EFFORT
from slicer.backend.scopes import acting
from slicer.config.properties import controller
from slicer.doctor.facts.configuration import ConfigurationFacts
from slicer.doctor.facts.host import DiskFacts
from slicer.doctor.facts.systemd import SystemdFacts
from slicer.doctor.findings import ActiveLimits, AreaVerdict, Finding, Who
from slicer.doctor.kinds import finding
from slicer.text import quote

_NOT_GIVEN = ("io", "cpuset")  # systemd's user@.service does not delegate these to user managers
_IO_WEIGHTS = ("IOWeight", "IODeviceWeight")
_NO_CONTROLLER = "no controller {}"
_ROTATING = ("sd", "vd", "hd", "xvd")  # on these disks bfq has no noticeable cost


def profiles(
    configuration: ConfigurationFacts, systemd: SystemdFacts, disks: DiskFacts, who: Who
) -> tuple[ActiveLimits, ...]:
    """The effect of each profile's directives; empty while the manager does not run, so nothing is known."""
    if systemd.boots and not systemd.is_there:
        return ()
    return tuple(
        _acting(profile.name, profile.directives, systemd, disks, who)
        for profile in configuration.profiles if not profile.error
    )  # fmt: skip


def _acting(
    name: str, directives: tuple[str, ...], systemd: SystemdFacts, disks: DiskFacts, who: Who
) -> ActiveLimits:
    if not systemd.boots:
        acts = frozenset(each for each in directives if each in BEST_EFFORT)
    else:
        controllers = frozenset(systemd.controllers)
        acts = acting(
            directives, controllers, who.manager, lambda: disks.weighs, lambda: disks.oomd_runs,
            lambda: systemd.filters_devices,
        )  # fmt: skip
    idle = tuple((each, _reason(each, systemd, who)) for each in directives if each not in acts)
    return ActiveLimits(name, tuple(each for each in directives if each in acts), idle)


def _reason(directive: str, systemd: SystemdFacts, who: Who) -> str:
    needed = controller(directive)
    if not systemd.boots:
        return "no systemd"
    if needed == "devices":
        if who.manager == "system":
            return "the kernel does not let systemd fence devices"
        return "only root's manager may fence devices"
    if needed and needed not in systemd.controllers:
        return _NO_CONTROLLER.format(needed)
    return "systemd-oomd is not running" if directive.startswith("ManagedOOM") else "no disk honours weights"


def limits(acts: tuple[ActiveLimits, ...], systemd: SystemdFacts, disks: DiskFacts, who: Who) -> AreaVerdict:
    """The findings about limits. ``acts``: from :func:`profiles`."""
    shown = tuple((each.profile, _described(each)) for each in acts)
    shown += tuple((f"disk {disk.name}", f"scheduler {disk.scheduler}") for disk in disks.disks)
    idle = sorted({directive for each in acts for directive, _ in each.idle})
    summary = f"no effect: {', '.join(idle)}" if idle else "all limits of all profiles act"
    if not systemd.boots:
        summary = "best effort, without systemd"
    elif not acts and systemd.is_there:
        summary = "not known without a configuration"
    elif not systemd.is_there:
        summary = "not known while your manager is not running"
    return AreaVerdict("limits", summary, shown, tuple(_limits(acts, systemd, disks, who)))


def _described(acts: ActiveLimits) -> str:
    idle = ", ".join(f"{directive} ({why})" for directive, why in acts.idle)
    acting = ", ".join(acts.acting) or "no limit"
    return f"{acting}; not {idle}" if idle else acting


def _limits(
    acts: tuple[ActiveLimits, ...], systemd: SystemdFacts, disks: DiskFacts, who: Who
) -> Iterator[Finding]:
    users: dict[str, list[str]] = {}  # a directive without effect -> the profiles that use it
    for each in acts:
        for directive, _ in each.idle:
            users.setdefault(directive, []).append(each.profile)
    fenced = [name for name in users if controller(name) == "devices"]
    if fenced:
        mend = "# run these as root, or remove the directives from the profile"
        yield finding("devices-not-fenced", _used(fenced, users), mend)
    if not systemd.boots:
        return  # the finding "no-systemd" covers the rest
    lacking = {name: controller(name) for name in users if controller(name) not in ("", "devices")}
    lacking = {name: needed for name, needed in lacking.items() if needed not in systemd.controllers}
    given = [name for name, needed in lacking.items() if who.manager == "user" and needed in _NOT_GIVEN]
    gone = [name for name in lacking if name not in given]
    for names in (gone, given):
        if names:
            yield _missing(names, lacking, systemd, who, users)
    weights = [name for name in users if name in _IO_WEIGHTS and name not in lacking]
    if weights:
        yield finding("io-weight-not-heeded", _used(weights, users), *_weigh(disks, who))
    oomd = [name for name in users if name.startswith("ManagedOOM") and name not in lacking]
    if oomd:
        mend = who.configured("systemctl enable --now systemd-oomd", "systemd.oomd.enable = true")
        yield finding("oomd-absent", _used(oomd, users), mend)


def _used(names: list[str], users: dict[str, list[str]]) -> str:
    asking = sorted({profile for name in names for profile in users[name]})
    return f"{', '.join(names)} in the profile{'s' * (len(asking) > 1)} {', '.join(asking)}"


def _missing(
    names: list[str], lacking: dict[str, str], systemd: SystemdFacts, who: Who, users: dict[str, list[str]]
) -> Finding:
    """A missing I/O weight costs only fairness; somebody may rely on any other limit."""
    needed = ", ".join(sorted({lacking[name] for name in names}))
    what = f"no controller {needed}: {_used(names, users)}"
    host = "the host's" if systemd.container else "the"
    is_delegable = who.manager == "user" and all(lacking[name] in _NOT_GIVEN for name in names)
    mends: tuple[str, ...]
    if systemd.on_v1:
        options = "systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all"
        mends = (f"# add to {host} kernel command line: {options}",)
    elif is_delegable:
        delegate = who.install("--user-delegation", "userDelegation = true")
        mends = delegate, "# then log out everywhere and log in again"
    elif systemd.container:
        mends = (f"# on the host: delegate {needed} to the container's cgroup",)
    elif who.manager == "user":
        mends = (who.root(f"systemctl show -p DelegateControllers user@{who.uid}.service"),)
    else:
        mends = ("cat /sys/fs/cgroup/cgroup.controllers /proc/cmdline",)
    if all(name in _IO_WEIGHTS for name in names):
        return finding("io-controller-missing", what, *mends)
    return finding("not-delegated" if is_delegable else "controllers-missing", what, *mends)


def _weigh(disks: DiskFacts, who: Who) -> Iterator[str]:
    for disk in disks.disks[:1]:
        if "bfq" in disk.offered or disk.name.startswith(_ROTATING):
            yield who.root(f"modprobe bfq && echo bfq > /sys/block/{disk.name}/queue/scheduler")
            rule = f'ACTION=="add|change", KERNEL=="{disk.name}", ATTR{{queue/scheduler}}="bfq"'
            yield who.root(f"echo '{rule}' > /etc/udev/rules.d/60-{disk.name}-bfq.rules")
        elif disks.has_io_cost:
            yield who.root(f"echo '{disk.number} enable=1' > /sys/fs/cgroup/io.cost.qos")
            line = f"w /sys/fs/cgroup/io.cost.qos - - - - {disk.number} enable=1"
            yield who.root(f"echo '{line}' > /etc/tmpfiles.d/io-cost.conf")
    if not disks.disks:
        yield "# no disk with a scheduler here; in a virtual machine, check the host"


def configuration(facts: ConfigurationFacts) -> AreaVerdict:
    """Mistakes in the files, and profiles that do not work on this machine."""
    shown = tuple(("file", path) for path in facts.files)
    if facts.error:
        look = f"ls -ld {quote(facts.place)}  # it must be a file that you may read"
        mend = f"# {facts.hint}" if facts.hint else look if facts.place else "# correct that line"
        broken = finding("configuration-broken", facts.error, mend)
        return AreaVerdict("configuration", "cannot be used", shown, (broken,))
    read = f"{len(facts.files)} files" if len(facts.files) != 1 else "1 file"
    summary = f"{read}, {len(facts.profiles)} profiles, {facts.default_profile} by default"
    found = [finding("configuration-warning", warning) for warning in facts.warnings]
    for profile in facts.profiles:
        if profile.error:
            mend = f"slicer profiles show {profile.name}"
            found.append(finding("profile-unusable", f"{profile.name}: {profile.error}", mend))
    return AreaVerdict("configuration", summary, shown, tuple(found))
