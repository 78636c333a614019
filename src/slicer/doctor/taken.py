"""The facts of several looks, and what to say where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slicer.backend import broker_socket
from slicer.doctor.kinds import finding
from slicer.doctor.looks import Look
from slicer.doctor.model import AREAS, Area, Finding, Verdict, Who
from slicer.kernel.users import user_name
from slicer.model import manager_of


def who_is(uid: int, environ: Mapping[str, str], *, is_sudoer: bool, is_nixos: bool = False) -> Who:
    """The user of that number. The broker has everybody's jobs started by the system manager."""
    manager = "system" if broker_socket(environ) else manager_of(uid)
    return Who(uid, user_name(uid), manager, is_sudoer, is_nixos)


class Taken:
    """The looks' facts by their names, and findings for those that came to nothing."""

    def __init__(self, taken: Mapping[str, Look]) -> None:
        self._taken = taken

    def __getitem__(self, name: str) -> Any:
        return self._taken[name].facts if name in self._taken else None

    def unknown(self, area: Area, *names: str) -> Verdict | None:
        """What to say of an area without the facts of these looks; None where all are there."""
        failed = [name for name in names if self[name] is None and name in self._taken]
        if not failed:
            return None
        found: list[Finding] = []
        for name in failed:
            why = self._taken[name].failed
            if name == "systemd" and not why:
                found.append(finding("systemd-hangs", "no answer over D-Bus in time", "systemctl list-jobs"))
            elif name == area or name not in AREAS:  # else the look's own area says it
                kind, what = (
                    ("look-failed", f"{name}: {why}") if why else ("look-hangs", f"the look at: {name}")
                )
                found.append(finding(kind, what))
        return Verdict(area, "not known", (), tuple(found))
