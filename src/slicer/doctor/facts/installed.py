"""slicer's files in systemd's directories, and wrapped programs (slicer wrap)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from slicer.backend import feature_units, install_units, serve_units
from slicer.backend.feature_units import FEATURES
from slicer.backend.unit_files import SYSTEM_UNITS, program_in
from slicer.config import profiles, routes
from slicer.doctor.facts.reading import masks_in
from slicer.errors import SlicerError
from slicer.kernel import home, on_host
from slicer.model import manager_of
from slicer.outcome import queue_files
from slicer.record import record
from slicer.wrap import records, wrapping
from slicer.wrap.terms import WrapStatus

_SLICES = ("gpu.slice", "cpu.slice")
# Where systemd searches before and after the directory of `slicer install` (systemd.unit(5)).
_BEFORE = ("/etc/systemd/{}", "/run/systemd/{}")
_AFTER = ("/usr/lib/systemd/{}", "/lib/systemd/{}")


@record
class UnitFile:
    """A file that `slicer install` writes. ``state`` is missing, current, outdated or edited."""

    path: str
    state: str


@record
class UnitFacts:
    """``packaged``: slices from a package or the administrator. ``masked``: slices linked to /dev/null."""

    system: tuple[UnitFile, ...]
    user: tuple[UnitFile, ...]  # this user's own
    packaged: tuple[str, ...]
    masked: tuple[str, ...]
    lacking: tuple[tuple[str, str], ...] = ()  # installed services, and the library that each lacks
    queues: tuple[str, ...] = ()  # jobs files of detached queues that are to go on after a boot
    restores: bool = False  # the unit that resumes them is enabled


def gather_units(environ: Mapping[str, str]) -> UnitFacts:
    """Reads the files, and the configuration, which may set limits for the slices."""
    own_units, system_units = f"{install_units.data_home(environ)}/systemd/user", on_host(SYSTEM_UNITS)
    config = os.environ.get("XDG_CONFIG_HOME") or f"{home(os.environ)}/.config"
    own = (f"{config}/systemd/user", f"/run/user/{os.getuid()}/systemd/user")
    masks = masks_in([f"{directory}/{name}" for directory in own for name in _SLICES])
    elsewhere = [
        f"{directory.format(kind)}/{name}"
        for directory in (*_BEFORE, *_AFTER) for kind in ("system", "user") for name in _SLICES
    ]  # fmt: skip
    there = [path for path in elsewhere if os.path.lexists(path)]
    masks = (*masks, *masks_in(there))
    return UnitFacts(
        system=_files(environ, broker=feature_units.broker_program(), program=_resumer(system_units)),
        user=_files(environ, user=True, program=_resumer(own_units)),
        packaged=tuple(path for path in there if path not in masks),
        masked=masks,
        lacking=tuple(_lacking(environ)),
        queues=tuple(each.jobs_file for each in queue_files.known(environ, lambda text: None)),
        restores=feature_units.resumes_queues(manager_of(os.geteuid()), environ),
    )


def _resumer(folder: str) -> str:
    """The program of the installed unit that resumes queues; "": it is not installed."""
    return program_in(f"{folder}/{feature_units.QUEUES}", feature_units.PROGRAM)


def _lacking(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    needed = {"web": "aiohttp", "metrics": "prometheus-client"}
    services = [(f"slicer-{each}.service", needed[each]) for each in FEATURES if feature_units.is_there(each)]
    for folder in (on_host(SYSTEM_UNITS), f"{install_units.data_home(environ)}/systemd/user"):
        services += [(serve_units.service_of(name), "aiohttp") for name in serve_units.there(folder)]
    return (each for each in services if find_spec(each[1].replace("-", "_")) is None)


def _files(environ: Mapping[str, str], **options: Any) -> tuple[UnitFile, ...]:
    try:
        plan = install_units.configured(environ=environ, **options)[0]
    except SlicerError:  # the look at the configuration reports it
        plan = install_units.plan(environ=environ, **options)
    return tuple(UnitFile(action.destination, state) for action, state in install_units.states(plan))


@record
class WrapFacts:
    """``passed_over`` has messages about records that slicer does not trust."""

    wraps: tuple[WrapStatus, ...]
    passed_over: tuple[str, ...]


def gather_wraps(environ: Mapping[str, str]) -> WrapFacts:
    """Starts no program and does not write the cache. Raises StateError."""
    known: tuple[str, ...] | None
    try:
        known = routes.names(profiles.load(environ, profiles.host(), remembers=False).layers)
    except SlicerError:  # the look at the configuration reports it
        known = None
    return WrapFacts(wrapping.statuses(environ, known), records.read(environ)[1])
