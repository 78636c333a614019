"""slicer's files in systemd's directories: those of ``slicer install``, and of a distribution's package."""

from __future__ import annotations

import os

from slicer.backend import install_units
from slicer.record import record

_SLICES = ("gpu.slice", "cpu.slice")
# Where systemd looks before the directory of `slicer install`, and after it (systemd.unit(5)).
_BEFORE = ("/etc/systemd/{}", "/run/systemd/{}")
_AFTER = ("/usr/lib/systemd/{}", "/lib/systemd/{}")


@record
class UnitFile:
    """A file that `slicer install` would put there. ``state`` is missing, current, outdated or edited."""

    path: str
    what: str
    state: str


@record
class UnitFacts:
    """``packaged``: slices that a package or the administrator put elsewhere. ``masked``: to /dev/null."""

    system: tuple[UnitFile, ...]
    user: tuple[UnitFile, ...]  # this user's own
    packaged: tuple[str, ...]
    masked: tuple[str, ...]
    delegation: str  # the drop-in for user managers: missing, current, outdated or edited
    old_files: tuple[str, ...]  # that only older versions installed
    old_shared: tuple[str, ...]  # directories that older versions shared with a group
    old_group: bool  # the group that older versions made is to go


def gather() -> UnitFacts:
    """Reads the files."""
    settled = install_units.plan(user_delegation=True)
    *system, delegation = (
        UnitFile(action.destination, action.what, state) for action, state in install_units.states(settled)
    )
    own = install_units.states(install_units.plan(user=True))
    old = install_units.outdated(settled)
    elsewhere = [
        f"{directory.format(kind)}/{name}"
        for directory in (*_BEFORE, *_AFTER) for kind in ("system", "user") for name in _SLICES
    ]  # fmt: skip
    there = [path for path in elsewhere if os.path.lexists(path)]
    masked = tuple(path for path in there if os.path.realpath(path) == os.devnull)
    return UnitFacts(
        system=tuple(system),
        user=tuple(UnitFile(action.destination, action.what, state) for action, state in own),
        packaged=tuple(path for path in there if path not in masked),
        masked=masked,
        delegation=delegation.state,
        old_files=tuple(action.destination for action in old.files),
        old_shared=old.shared,
        old_group=bool(old.commands),
    )
