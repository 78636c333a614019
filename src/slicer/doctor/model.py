"""What the doctor says, as plain data."""

from __future__ import annotations

from typing import Literal, get_args

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Manager

# A problem breaks a promise: jobs do not start, or run without what their lease or limits say.
# A warning will surprise somebody. A note is worth knowing.
Severity = Literal["problem", "warning", "note"]
Area = Literal[
    "systemd", "kernel", "session", "limits", "gpus", "state", "broker", "journal", "units",
    "configuration", "environment", "wraps", "others",
]  # fmt: skip
AREAS: tuple[Area, ...] = get_args(Area)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@record
class Kind:
    """One thing that can be found. ``id`` is stable; ``title``, ``why`` and ``cure`` hold for every case."""

    id: str
    area: Area
    severity: Severity
    title: str
    why: str
    cure: str


@record
class Finding:
    """A thing that was found: ``what`` is the case at hand, ``mend`` the lines to paste into a shell.

    A line of ``mend`` that starts with "# " is for people: what no command does.
    """

    kind: Kind
    what: str
    mend: tuple[str, ...]


@record
class Verdict:
    """What is to be said of one area. ``facts`` are names and values, for those who want to see all."""

    area: Area
    summary: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]


@record
class Acting:
    """What a profile's limits do here. ``idle`` has the directives that do not act, each with the reason."""

    profile: str
    acting: tuple[str, ...]
    idle: tuple[tuple[str, str], ...]


@record
class Who:
    """Whose slicer it is. ``manager``: which systemd starts the jobs.

    ``is_sudoer``: there is a sudo to write commands for root with. ``is_nixos``: what is installed is said in
    the system's configuration.
    """

    uid: int
    user: str
    manager: Manager
    is_sudoer: bool
    is_nixos: bool = False

    @property
    def is_brokered(self) -> bool:
        """Whether the broker starts the jobs of an ordinary user."""
        return bool(self.uid) and self.manager == "system"

    def root(self, command: str) -> str:
        """The command as this user has root run it."""
        if not self.uid:
            return command
        quoted = command.replace("'", "'\\''")
        if not self.is_sudoer:
            return f"su - -c '{quoted}'"  # without "-" root would look in the user's own PATH
        return f"sudo sh -c '{quoted}'" if any(sign in command for sign in "|>&;") else f"sudo {command}"

    def install(self, options: str, setting: str) -> str:
        """What root does so that ``slicer install OPTIONS`` holds; the setting of NixOS that is the same."""
        return self.configured(f"slicer install {options}".rstrip(), f"programs.slicer.{setting}")

    def configured(self, command: str, setting: str) -> str:
        """What root does for good: a command, or on NixOS, where nothing else lasts, a setting."""
        return f"# in the configuration: {setting}" if self.is_nixos else self.root(command)

    def unmask(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """What takes these masks away: systemctl looks in one place at a time."""
        found: dict[str, str] = {}
        for path in paths:
            folder, _, unit = path.rpartition("/")
            runtime = " --runtime" if path.startswith("/run/") else ""
            if folder.endswith("/systemd/system"):
                mend = self.root(f"systemctl{runtime} unmask")
            elif folder in ("/etc/systemd/user", "/run/systemd/user"):
                mend = self.root(f"systemctl --global{runtime} unmask")
            else:
                mend = f"systemctl --user{runtime} unmask"
            found[mend] = f"{found.get(mend, mend)} {unit}"
        return tuple(found.values())

    def linger(self) -> str:
        """The command with which the user's manager stays. Where there is polkit, it lets users do so."""
        command = f"loginctl enable-linger {self.user}"
        return f"{command} || {self.root(command)}" if self.uid else command


@record
class Report:
    """All of it, in the order of AREAS."""

    who: Who
    verdicts: tuple[Verdict, ...]
    profiles: tuple[Acting, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all areas, the worst first."""
        found = [finding for verdict in self.verdicts for finding in verdict.findings]
        return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.kind.severity)))

    @property
    def is_well(self) -> bool:
        """Whether no promise is broken: there is no problem."""
        return all(finding.kind.severity != "problem" for finding in self.findings)


def worst(findings: tuple[Finding, ...]) -> Severity | None:
    """The worst severity among them; None for no finding."""
    found = {finding.kind.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in found), None)
