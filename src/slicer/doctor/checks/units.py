"""Findings about systemd's journal, slicer's files in systemd's directories, and wrapped programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.backend import feature_units
from slicer.doctor.facts.host import JournalFacts, SessionFacts
from slicer.doctor.facts.installed import UnitFacts, UnitFile, WrapFacts
from slicer.doctor.facts.systemd import SystemdFacts
from slicer.doctor.findings import AreaVerdict, Finding, Who
from slicer.doctor.kinds import finding
from slicer.text import counted, visible
from slicer.wrap.terms import ProblemId

_LIMITS = ".slice.d/"  # drop-ins with the configured limits of slices


def journal(facts: JournalFacts, systemd: SystemdFacts | None, who: Who) -> AreaVerdict:
    """Whether the journal accepts events, keeps them, and can be read."""
    kept = "kept across reboots" if facts.is_persistent else "lost at a reboot"
    if systemd is not None and not systemd.boots:
        return AreaVerdict("journal", "none, without systemd", (), ())
    if facts.socket_error:
        mend = who.root("systemctl start systemd-journald.socket systemd-journald")
        what = f"/run/systemd/journal/socket: {facts.socket_error}"
        return AreaVerdict("journal", "not listening", (), (finding("no-journald", what, mend),))
    return AreaVerdict("journal", f"listening; entries are {kept}", (), tuple(_journal(facts, who)))


def _journal(facts: JournalFacts, who: Who) -> Iterator[Finding]:
    persist = who.root("mkdir -p /var/log/journal && journalctl --flush")
    if facts.storage in ("none", "volatile"):
        mend = "# set Storage=persistent in journald.conf"
        yield finding("journal-volatile", f"Storage={facts.storage} in journald.conf", mend)
    elif not facts.is_persistent:
        yield finding("journal-volatile", "/var/log/journal does not exist or is not in use", persist)
    if not facts.may_read_own:
        mend = who.root(f"usermod -aG systemd-journal {who.user}")
        yield finding("journal-closed", f"{who.user} is not in the group systemd-journal", mend)


def units(
    facts: UnitFacts, systemd: SystemdFacts | None, session: SessionFacts | None, who: Who
) -> AreaVerdict:
    """The slices, the message catalog, and whether detached queues go on after a boot."""
    files = (*facts.system, *(facts.user if who.uid else ()))
    shown = tuple((file.path, file.state) for file in files if file.state not in ("missing", "current"))
    shown += tuple((path, "of a package or the administrator") for path in facts.packaged)
    if systemd is not None and not systemd.boots:
        return AreaVerdict("units", "not used, without systemd", shown, ())
    return AreaVerdict("units", _summary(facts), shown, (*_units(facts, who), *_queues(facts, session, who)))


def _queues(facts: UnitFacts, session: SessionFacts | None, who: Who) -> Iterator[Finding]:
    named = visible(", ".join(facts.queues))
    if named and not facts.restores:
        mend = "slicer install --user" if who.uid and not who.is_nixos else who.install("", "enable = true")
        yield finding("queue-not-resumed", f"{feature_units.QUEUES} is not enabled: {named}", mend)
    elif named and who.uid and session is not None and not session.lingers:
        what = f"{who.user} does not linger, so only at the next login: {named}"
        yield finding("queue-not-resumed", what, who.linger())


def _summary(facts: UnitFacts) -> str:
    found = [file.state for file in facts.system if file.state != "missing"]
    if found:
        return f"{len(found)} of {len(facts.system)} files installed by slicer install"
    if facts.packaged:
        return "installed by a package or the administrator"
    return "installed for you" if _are_there(facts.user) else "not installed"


def _are_there(files: tuple[UnitFile, ...]) -> bool:
    return any(file.state != "missing" for file in files)


def _units(facts: UnitFacts, who: Who) -> Iterator[Finding]:
    own = facts.user if who.uid else ()
    files = (*facts.system, *own)
    if facts.masked:
        yield finding("slice-masked", ", ".join(facts.masked), *who.unmask(facts.masked))
    if not (_are_there(files) or facts.packaged):
        is_own = who.uid and not who.is_nixos
        mend = "slicer install --user" if is_own else who.install("", "enable = true")
        yield finding("units-missing", "none in /usr/local/lib/systemd, nor of a package's", mend)
    for service, library in facts.lacking:
        mend = f"# pip install {library} in slicer's environment (Debian: apt install python3-{library})"
        yield finding("unit-without-library", f"{service} needs {library}", mend)
    for group, command in ((facts.system, who.install("", "enable = true")), (own, "slicer install --user")):
        old = _with(group, "outdated")
        lacking = _lacking(group, is_packaged=bool(facts.packaged) and not who.is_nixos)
        if old or lacking:
            what = ", ".join([*old, *(f"{path} (missing)" for path in lacking)])
            yield finding("units-outdated", what, command)


def _lacking(files: tuple[UnitFile, ...], *, is_packaged: bool) -> list[str]:
    """Files missing beside others. If a package has the slices: only the files with configured limits."""
    missing = _with(files, "missing")
    if _are_there(files):
        return missing
    return [path for path in missing if _LIMITS in path] if is_packaged else []


def _with(files: tuple[UnitFile, ...], state: str) -> list[str]:
    return [file.path for file in files if file.state == state]


# With these, calls fail; with any other problem they may bypass the route.
_BROKEN: tuple[ProblemId, ...] = ("program-gone", "slicer-gone", "no-route", "shim-gone")


def wraps(facts: WrapFacts) -> AreaVerdict:
    """Each wrapped program, and whether its calls go through its route."""
    shown = tuple((visible(each.wrap.path), f"{each.wrap.route}, {each.state}") for each in facts.wraps)
    summary = f"{counted(len(shown), 'program')} wrapped" if shown else "nothing is wrapped"
    return AreaVerdict("wraps", summary, shown, tuple(_wraps(facts)))


def _wraps(facts: WrapFacts) -> Iterator[Finding]:
    for status in facts.wraps:
        for problem in status.problems:
            mend = tuple(visible(line) for line in problem.mend)
            kind = "wrap-broken" if problem.id in _BROKEN else "wrap-changed"
            yield finding(kind, visible(problem.message), *mend)
    for told in facts.passed_over:
        yield finding("wrap-record-unusable", visible(told))
