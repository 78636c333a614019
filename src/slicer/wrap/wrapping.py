"""``slicer wrap`` from end to end: look, plan, act, all under the lock of the records."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from slicer.errors import SlicerError
from slicer.record import record
from slicer.state.directory import Directory
from slicer.wrap import acting, dpkg, judging, look, planning, records
from slicer.wrap.judging import Sight
from slicer.wrap.model import ABSENT, Diversion, Plan, Status, Wrap, WrapRefused
from slicer.wrap.planning import Keep, Request


@record
class Asked:
    """What ``slicer wrap install`` was asked for. ``probes``: programs that the route runs to measure."""

    program: str
    route: str
    slicer: str
    probes: tuple[str, ...]
    force: bool


def install(asked: Asked, environ: Mapping[str, str], *, dry: bool = False) -> Plan:
    """Wrap a program, or make its wrap whole. Returns what was done; ``dry``: what would be.

    Raises WrapRefused, WrapError, StateError.
    """
    path = look.named(asked.program)
    tool = look.tool(asked.slicer)
    probes = tuple(hop for name in asked.probes for hop in _places(name))
    request = Request(asked.route, os.geteuid(), time.time(), asked.force, probes)
    with contextlib.ExitStack() as stack:
        book = None if dry else stack.enter_context(records.opened(environ))
        known = _known(path, environ) if book is None else book.find(path)
        folder, way = look.open_folder(os.path.dirname(path))
        stack.callback(folder.close)
        site = look.site(folder, way, path, asks_dpkg=request.uid == 0)
        sight = None if known is None else _sight(known, folder, None, dpkg.diversions())
        plan = planning.install(request, site, tool, known, sight)
        if book is not None:
            acting.act(plan, folder, book, is_new=known is None)
        return plan


def remove(program: str, environ: Mapping[str, str], keep: Keep | None) -> Plan:
    """Unwrap a program. Returns what was done. Raises WrapRefused, WrapError, StateError."""
    with records.opened(environ) as book:
        path = _meant(program, environ)
        known = book.find(path)
        if known is None:
            hint = "slicer wrap list shows what is wrapped"
            raise WrapRefused("is not wrapped, as far as your records tell", where=path, hint=hint)
        with _folder_of(known) as folder:
            if folder is None:  # with all that was in it
                plan = Plan(known, ("forget",))
                book.remove(known)
                return plan
            plan = planning.remove(known, _sight(known, folder, None, dpkg.diversions()), keep)
            acting.act(plan, folder, book)
        return plan


def statuses(environ: Mapping[str, str], routes: Collection[str] | None) -> tuple[Status, ...]:
    """Every wrap in the caller's records and how it is; ``routes``: those there are, None: not known.

    Starts no program and changes nothing. Raises StateError.
    """
    diversions = dpkg.diversions()
    return tuple(_status(wrap, routes, diversions) for wrap in records.read(environ)[0])


def warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What is to be said of records that are not believed. Raises StateError."""
    return records.read(environ)[1]


def mend(path: str, environ: Mapping[str, str], slicer: str) -> str:
    """Make a recorded wrap what it is to be. Returns why not, or "". Raises StateError."""
    with records.opened(environ) as book:
        known = book.find(path)
        if known is None:
            return ""  # unwrapped meanwhile
        try:
            if not os.path.lexists(os.path.dirname(path)):
                return f"{os.path.dirname(path)} is gone"
            folder, way = look.open_folder(os.path.dirname(path))
            with contextlib.closing(folder):
                planning.check_way(way, os.geteuid(), path)
                plan = planning.mend(known, _sight(known, folder, None, dpkg.diversions()), slicer)
                acting.act(plan, folder, book)
        except SlicerError as error:
            return str(error)
        return ""


def _known(path: str, environ: Mapping[str, str]) -> Wrap | None:
    return next((wrap for wrap in records.read(environ)[0] if wrap.path == path), None)


def _meant(program: str, environ: Mapping[str, str]) -> str:
    """The path of a wrap that a person names: by its path, or by its last name if that says enough."""
    if "/" in program:
        return look.canonical(program)
    found = [each.path for each in records.read(environ)[0] if os.path.basename(each.path) == program]
    if len(found) > 1:
        raise WrapRefused(f"could be {' or '.join(found)}", where=program, hint="name its path")
    return found[0] if found else look.named(program)


def _places(name: str) -> Iterable[str]:
    found = shutil.which(name)
    return () if found is None else look.hops(found)


@contextlib.contextmanager
def _folder_of(wrap: Wrap, *, lists: bool = True) -> Iterator[Directory | None]:
    """The directory of a wrap; None where it is gone."""
    path = os.path.dirname(wrap.path)
    if not os.path.lexists(path):
        yield None
        return
    folder = look.open_folder(path, lists=lists)[0]
    try:
        yield folder
    finally:
        folder.close()


def _status(wrap: Wrap, routes: Collection[str] | None, diversions: tuple[Diversion, ...]) -> Status:
    has_route = None if routes is None else wrap.route in routes
    try:
        with _folder_of(wrap, lists=False) as folder:
            sight = _sight(wrap, folder, has_route, diversions)
    except SlicerError:  # its directory is a link now, or closed to us
        sight = _sight(wrap, None, has_route, diversions)
    return Status(wrap, judging.problems(wrap, sight))


def _sight(
    wrap: Wrap, folder: Directory | None, has_route: bool | None, diversions: tuple[Diversion, ...]
) -> Sight:
    bin = real = ABSENT
    real_runs = False
    if folder is not None:
        real_runs = os.access(os.path.basename(wrap.real), os.X_OK, dir_fd=folder.fd)
        bin, real = (look.seen(folder, os.path.basename(path)) for path in (wrap.path, wrap.real))
    slicer_runs = os.path.isfile(wrap.slicer) and os.access(wrap.slicer, os.X_OK)
    return Sight(bin, real, slicer_runs, has_route, diversions, real_runs)
