"""``slicer wrap`` from end to end: look, plan and act, all under the lock of the records.

Each step of a plan leaves BIN executable, and can be repeated after a kill.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from slicer import faults
from slicer.errors import SlicerError
from slicer.record import replace
from slicer.state.directory import Directory, write_all
from slicer.state.named_file import hops
from slicer.wrap import dpkg, judging, look, planning, records, shim
from slicer.wrap.judging import Sight
from slicer.wrap.planning import Keep, WrapRequest, shim_mode
from slicer.wrap.records import WrapRecords
from slicer.wrap.terms import ABSENT, Diversion, Step, Wrap, WrapError, WrapPlan, WrapRefused, WrapStatus

_DRAFT = ".slicer-wrap-"
_DRAFT_NAME = 200  # bytes of the program's name in the draft's name
_HINTS = {
    errno.EPERM: "is it immutable (lsattr), another user's, or on a file system without hard links?",
    errno.EACCES: "run it as root",
    errno.EROFS: "the file system is read-only",
    errno.EBUSY: "something is mounted there",
    errno.EXDEV: "something is mounted there",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EMLINK: "its file system allows no further name for this file",
    errno.EOPNOTSUPP: "its file system allows only one name for a file, so the step would not be safe",
}


class StepRunner:
    """Takes the steps of a plan in the program's directory."""

    def __init__(self, plan: WrapPlan, folder: Directory, book: WrapRecords) -> None:
        wrap = self._wrap = plan.wrap
        self._steps = plan.steps
        self._folder = folder
        self._book = book
        self._bin = os.path.basename(wrap.path)
        self._real = os.path.basename(wrap.real)
        beginning = os.fsencode(self._bin)[:_DRAFT_NAME]
        self._draft = f"{_DRAFT}{os.fsdecode(beginning)}"

    def take(self, *, is_new: bool = False) -> None:
        """Take the steps. If the wrap ``is_new``, a failure undoes the steps taken so far.

        Raises WrapError, StateError.
        """
        taken: list[Step] = []
        try:
            for step in self._steps:
                if step == "place" and "link" in taken:
                    self._check_unchanged()
                do, told = _STEPS[step]
                try:
                    do(self)
                except OSError as error:
                    message = f"{told.format(bin=self._bin, real=self._real)}: {error.strerror}"
                    hint = _HINTS.get(error.errno or 0, "")
                    raise WrapError(message, where=self._wrap.path, hint=hint) from error
                taken.append(step)
                faults.point(f"wrap-{step}")
        except (SlicerError, KeyboardInterrupt):
            if is_new:
                self._take_back(taken)
            raise

    def _take_back(self, taken: list[Step]) -> None:
        try:
            self._folder.remove(self._draft)
            if "divert" in taken:
                dpkg.undivert(self._wrap.diverted)
            stat = self._folder.lstat
            if "link" in taken and (
                "divert" not in taken or os.path.samestat(stat(self._bin), stat(self._real))
            ):
                self._folder.remove(self._real)  # our second name of the file that was at BIN then
            if "record" in taken:
                self._book.remove(self._wrap)
        except (OSError, SlicerError):
            return  # the record stays, so `slicer wrap check` reports what is left

    def _check_unchanged(self) -> None:
        """Raises WrapError if an upgrade has replaced BIN: the shim must not overwrite a newer program."""
        now = self._folder.lstat(self._bin)
        wrapped = self._wrap.ino, self._wrap.size, self._wrap.mtime_ns
        if (now.st_ino, now.st_size, now.st_mtime_ns) != wrapped:
            raise WrapError("was replaced meanwhile", where=self._wrap.path, hint="try again")

    def _link(self) -> None:
        fd = self._folder.fd
        os.link(self._bin, self._real, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        self._folder.sync()
        info = self._folder.lstat(self._real)
        linked = replace(self._wrap, ino=info.st_ino, size=info.st_size, mtime_ns=info.st_mtime_ns)
        if linked != self._wrap:  # on an overlay, a file's inode changes with the first write
            self._wrap = linked
            self._book.write(linked)

    def _exchange(self) -> None:
        fd = self._folder.fd
        self._folder.remove(self._draft)
        os.link(self._bin, self._draft, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        faults.point("wrap-draft")
        self._folder.rename(self._draft, self._folder, self._real)
        self._folder.remove(self._draft)  # renaming between two names of one file does nothing
        self._folder.sync()

    def _place(self) -> None:
        program = os.stat(self._real, dir_fd=self._folder.fd)
        mode = shim_mode(program.st_mode)
        self._folder.remove(self._draft)
        fd = self._folder.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            write_all(fd, shim.text(self._wrap))
            if bool(mode & 0o010) != bool(mode & 0o001):
                os.fchown(fd, -1, program.st_gid)  # the group matters
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        faults.point("wrap-draft")
        self._folder.rename(self._draft, self._folder, self._bin)
        self._folder.sync()

    def _restore(self) -> None:
        self._folder.remove(self._draft)
        self._folder.rename(self._real, self._folder, self._bin)
        self._folder.sync()

    def _drop(self) -> None:
        self._folder.remove(self._draft)
        self._folder.unlink(self._real)
        self._folder.sync()

    def _unlink(self) -> None:
        self._folder.remove(self._draft)
        self._folder.remove(self._bin)
        self._folder.sync()


# Each step's method, and the error message if it fails.
_STEPS: dict[Step, tuple[Callable[[StepRunner], None], str]] = {
    "record": (lambda acting: acting._book.write(acting._wrap), "the wrap cannot be recorded"),
    "link": (StepRunner._link, "{bin} cannot be linked as {real}"),
    "exchange": (StepRunner._exchange, "{bin} cannot be linked as {real}"),
    "divert": (lambda acting: dpkg.divert(acting._wrap.diverted), "dpkg cannot set the diversion"),
    "place": (StepRunner._place, "the shim cannot be put in place"),
    "restore": (StepRunner._restore, "{real} cannot be put back"),
    "drop": (StepRunner._drop, "{real} cannot be removed"),
    "unlink": (StepRunner._unlink, "the shim cannot be removed"),
    "undivert": (lambda acting: dpkg.undivert(acting._wrap.diverted), "dpkg cannot remove the diversion"),
    "forget": (lambda acting: acting._book.remove(acting._wrap), "the record cannot be removed"),
}


def install(
    program: str, route: str, environ: Mapping[str, str], *, slicer: str, probes: tuple[str, ...] = (),
    force: bool = False, dry: bool = False,
) -> WrapPlan:  # fmt: skip
    """Wrap a program, or repair its wrap. Returns the plan that was carried out, or with ``dry`` would be.

    ``slicer``: for the shim to call. ``probes``: programs that the route runs to measure. Raises WrapRefused,
    WrapError, StateError.
    """
    path = look.named(program)
    tool = look.tool(slicer)
    measuring = tuple(hop for probe in filter(None, map(shutil.which, probes)) for hop in hops(probe))
    request = WrapRequest(route, os.geteuid(), time.time(), force, measuring)
    with contextlib.ExitStack() as stack:
        book = None if dry else stack.enter_context(records.opened(environ))
        known = _known(path, environ) if book is None else book.find(path)
        folder, way = look.open_folder(os.path.dirname(path))
        stack.callback(folder.close)
        site = look.site(folder, way, path, asks_dpkg=request.uid == 0)
        sight = None if known is None else _sight(known, folder, None, dpkg.diversions())
        plan = planning.install(request, site, tool, known, sight)
        if book is not None:
            StepRunner(plan, folder, book).take(is_new=known is None)
        return plan


def remove(program: str, environ: Mapping[str, str], keep: Keep | None) -> WrapPlan:
    """Unwrap a program. Returns the plan that was carried out. Raises WrapRefused, WrapError, StateError."""
    with records.opened(environ) as book:
        path = _meant(program, environ)
        known = book.find(path)
        if known is None:
            hint = "slicer wrap list shows what is wrapped"
            raise WrapRefused("is not wrapped, according to your records", where=path, hint=hint)
        with _folder_of(known) as folder:
            if folder is None:  # it is gone, with everything in it
                book.remove(known)
                return WrapPlan(known, ("forget",))
            plan = planning.remove(known, _sight(known, folder, None, dpkg.diversions()), keep)
            StepRunner(plan, folder, book).take()
        return plan


def statuses(environ: Mapping[str, str], routes: Collection[str] | None) -> tuple[WrapStatus, ...]:
    """Every wrap in the caller's records and its state; ``routes``: the existing ones; None: unknown.

    Starts no program and changes nothing. Raises StateError.
    """
    diversions = dpkg.diversions()
    return tuple(_status(wrap, routes, diversions) for wrap in records.read(environ)[0])


def mend(path: str, environ: Mapping[str, str], slicer: str) -> str:
    """Repair a recorded wrap. Returns why that failed, or "". Raises StateError."""
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
                StepRunner(plan, folder, book).take()
        except SlicerError as error:
            return str(error)
        return ""


def _known(path: str, environ: Mapping[str, str]) -> Wrap | None:
    return next((wrap for wrap in records.read(environ)[0] if wrap.path == path), None)


def _meant(program: str, environ: Mapping[str, str]) -> str:
    """The path of the wrap that a person names: by its path, or by its base name if that is unique."""
    if "/" in program:
        return look.canonical(program)
    found = [each.path for each in records.read(environ)[0] if os.path.basename(each.path) == program]
    if len(found) > 1:
        raise WrapRefused(f"could be {' or '.join(found)}", where=program, hint="give its path")
    return found[0] if found else look.named(program)


@contextlib.contextmanager
def _folder_of(wrap: Wrap, *, lists: bool = True) -> Iterator[Directory | None]:
    """The directory of a wrap; None if it is gone."""
    path = os.path.dirname(wrap.path)
    if not os.path.lexists(path):
        yield None
        return
    with contextlib.closing(look.open_folder(path, lists=lists)[0]) as folder:
        yield folder


def _status(wrap: Wrap, routes: Collection[str] | None, diversions: tuple[Diversion, ...]) -> WrapStatus:
    has_route = None if routes is None else wrap.route in routes
    try:
        with _folder_of(wrap, lists=False) as folder:
            sight = _sight(wrap, folder, has_route, diversions)
    except SlicerError:  # its directory is now a link, or not open to us
        sight = _sight(wrap, None, has_route, diversions)
    return WrapStatus(wrap, judging.problems(wrap, sight))


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
