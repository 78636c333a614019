"""The doctor's findings, as plain data."""

from __future__ import annotations

from typing import Literal, get_args

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Manager

# A problem breaks a promise: jobs do not start, or run without what their lease or limits say.
# A warning will surprise somebody. A note is good to know.
Severity = Literal["problem", "warning", "note"]
Area = Literal[
    "systemd", "kernel", "session", "limits", "gpus", "state", "broker", "journal", "units",
    "configuration", "environment", "wraps", "others",
]  # fmt: skip
AREAS: tuple[Area, ...] = get_args(Area)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@record
class FindingKind:
    """A possible finding. ``id`` is stable; ``title``, ``why`` and ``cure`` apply to every case."""

    id: str
    area: Area
    severity: Severity
    title: str
    why: str
    cure: str


@record
class Finding:
    """An actual finding: ``what`` describes the case, ``mend`` has the lines to paste into a shell.

    A line of ``mend`` that starts with "# " is an instruction for a person, where no command helps.
    """

    kind: FindingKind
    what: str
    mend: tuple[str, ...]


@record
class AreaVerdict:
    """The result for one area. ``facts`` are names and values for the full report."""

    area: Area
    summary: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]


@record
class ActiveLimits:
    """What a profile's limits do here. ``idle`` has the directives without effect, with the reasons."""

    profile: str
    acting: tuple[str, ...]
    idle: tuple[tuple[str, str], ...]


@record
class Who:
    """The user whose slicer this is. ``manager``: the systemd manager that starts the jobs.

    ``is_sudoer``: sudo is installed, so root's commands are written with it. ``is_nixos``: the system's
    configuration decides what is installed.
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
        """The command line with which this user runs a command as root."""
        if not self.uid:
            return command
        quoted = command.replace("'", "'\\''")
        if not self.is_sudoer:
            return f"su - -c '{quoted}'"  # without "-", root would search the user's PATH
        return f"sudo sh -c '{quoted}'" if any(sign in command for sign in "|>&;") else f"sudo {command}"

    def install(self, options: str, setting: str) -> str:
        """Root's command ``slicer install OPTIONS``, or the NixOS setting that does the same."""
        return self.configured(f"slicer install {options}".rstrip(), f"programs.slicer.{setting}")

    def configured(self, command: str, setting: str) -> str:
        """What makes a change permanent: root's command, or on NixOS, where no command lasts, a setting."""
        return f"# in the configuration: {setting}" if self.is_nixos else self.root(command)

    def unmask(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """The commands that remove these masks: each call of systemctl searches only one place."""
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
        """The command that keeps the user's manager running. With polkit, users may run it themselves."""
        command = f"loginctl enable-linger {self.user}"
        return f"{command} || {self.root(command)}" if self.uid else command


@record
class DoctorReport:
    """The whole result, in the order of AREAS."""

    who: Who
    verdicts: tuple[AreaVerdict, ...]
    profiles: tuple[ActiveLimits, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all areas, the worst first."""
        found = [finding for verdict in self.verdicts for finding in verdict.findings]
        return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.kind.severity)))

    @property
    def is_well(self) -> bool:
        """Whether no promise is broken: no finding is a problem."""
        return all(finding.kind.severity != "problem" for finding in self.findings)


def worst(findings: tuple[Finding, ...]) -> Severity | None:
    """The worst severity among the findings; None if there are none."""
    found = {finding.kind.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in found), None)
