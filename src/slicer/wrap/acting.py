"""The steps of a plan, each of which leaves BIN executable, and can be taken again after a kill."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from slicer import faults
from slicer.errors import SlicerError
from slicer.record import replace
from slicer.state.directory import Directory, write_all
from slicer.wrap import dpkg, shim
from slicer.wrap.model import Plan, Step, Wrap, WrapError
from slicer.wrap.planning import shim_mode
from slicer.wrap.records import Book

_DRAFT = ".slicer-wrap-"
_DRAFT_NAME = 200  # bytes of the program's name in that of the draft
_HINTS = {
    errno.EPERM: "is it immutable (lsattr), somebody else's, or on a file system without hard links?",
    errno.EACCES: "run it as root",
    errno.EROFS: "nothing can be written there",
    errno.EBUSY: "something is mounted there",
    errno.EXDEV: "something is mounted there",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EMLINK: "its file system lets no file have one more name",
    errno.EOPNOTSUPP: "its file system lets no file have two names, so the step could not be safe",
}


class Acting:
    """Takes the steps for one program, in its directory."""

    def __init__(self, wrap: Wrap, folder: Directory, book: Book) -> None:
        self._wrap = wrap
        self._folder = folder
        self._book = book
        self._bin = os.path.basename(wrap.path)
        self._real = os.path.basename(wrap.real)
        beginning = os.fsencode(self._bin)[:_DRAFT_NAME]
        self._draft = f"{_DRAFT}{os.fsdecode(beginning)}"

    def take(self, steps: tuple[Step, ...], *, is_new: bool) -> None:
        """Take the steps. Of a wrap that ``is_new``, a failure takes back those that were taken.

        Raises WrapError, StateError.
        """
        taken: list[Step] = []
        try:
            for step in steps:
                if step == "place" and "link" in taken:
                    self._check_unchanged()
                try:
                    _STEPS[step](self)
                except OSError as error:
                    raise self._failed(step, error) from error
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
            if "link" in taken and ("divert" not in taken or self._is_one_file()):
                self._folder.remove(self._real)  # our second name, of whatever was at BIN then
            if "record" in taken:
                self._book.remove(self._wrap)
        except (OSError, SlicerError):
            return  # the record stays, so `slicer wrap check` tells of what is left

    def _check_unchanged(self) -> None:
        """An upgrade that came in between has put a newer program at BIN, which the shim must not replace."""
        now = self._folder.lstat(self._bin)
        if (now.st_ino, now.st_size, now.st_mtime_ns) != _identity(self._wrap):
            raise WrapError("was replaced meanwhile", where=self._wrap.path, hint="try again")

    def _is_one_file(self) -> bool:
        return os.path.samestat(self._folder.lstat(self._bin), self._folder.lstat(self._real))

    def _failed(self, step: Step, error: OSError) -> WrapError:
        message = f"{_TOLD[step].format(bin=self._bin, real=self._real)}: {error.strerror}"
        return WrapError(message, where=self._wrap.path, hint=_HINTS.get(error.errno or 0, ""))

    # -- the steps ------------------------------------------------------------------------------------------

    def _record(self) -> None:
        self._book.write(self._wrap)

    def _forget(self) -> None:
        self._book.remove(self._wrap)

    def _link(self) -> None:
        fd = self._folder.fd
        os.link(self._bin, self._real, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        self._folder.sync()
        info = self._folder.lstat(self._real)
        linked = replace(self._wrap, ino=info.st_ino, size=info.st_size, mtime_ns=info.st_mtime_ns)
        if linked != self._wrap:  # an overlay gives a file another inode when it is first written to
            self._wrap = linked
            self._book.write(linked)

    def _exchange(self) -> None:
        fd = self._folder.fd
        self._folder.remove(self._draft)
        os.link(self._bin, self._draft, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        faults.point("wrap-draft")
        self._folder.rename(self._draft, self._folder, self._real)
        self._folder.remove(self._draft)  # a rename between two names of one file does nothing
        self._folder.sync()

    def _divert(self) -> None:
        dpkg.divert(self._wrap.diverted)

    def _undivert(self) -> None:
        dpkg.undivert(self._wrap.diverted)

    def _place(self) -> None:
        program = os.stat(self._real, dir_fd=self._folder.fd)
        mode = shim_mode(program.st_mode)
        self._folder.remove(self._draft)
        fd = self._folder.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            write_all(fd, shim.text(self._wrap))
            if bool(mode & 0o010) != bool(mode & 0o001):
                os.fchown(fd, -1, program.st_gid)  # the group makes a difference
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


def _identity(wrap: Wrap) -> tuple[int, int, int]:
    return wrap.ino, wrap.size, wrap.mtime_ns


# A step's method, and what is said where it fails.
_STEPS: dict[Step, Callable[[Acting], None]] = {
    "record": Acting._record,
    "link": Acting._link,
    "exchange": Acting._exchange,
    "divert": Acting._divert,
    "place": Acting._place,
    "restore": Acting._restore,
    "drop": Acting._drop,
    "unlink": Acting._unlink,
    "undivert": Acting._undivert,
    "forget": Acting._forget,
}
_TOLD: dict[Step, str] = {
    "record": "the wrap cannot be recorded",
    "link": "{bin} cannot get the name {real}",
    "exchange": "{bin} cannot get the name {real}",
    "divert": "dpkg cannot be told",
    "place": "the shim cannot be put there",
    "restore": "{real} cannot be put back",
    "drop": "{real} cannot be removed",
    "unlink": "the shim cannot be removed",
    "undivert": "dpkg cannot be told",
    "forget": "the record cannot be removed",
}


def act(plan: Plan, folder: Directory, book: Book, *, is_new: bool = False) -> None:
    """Take the steps of a plan. Raises WrapError, StateError."""
    Acting(plan.wrap, folder, book).take(plan.steps, is_new=is_new)
