"""The directories of the ledger and the history, and whether slicer could create them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from slicer.doctor.facts.host import Mount, holding, mounts
from slicer.doctor.facts.reading import lstat, setting
from slicer.errors import SlicerError
from slicer.kernel.open_files import flock_holder
from slicer.kernel.proc import is_stopped
from slicer.outcome import history
from slicer.record import record
from slicer.state import statedir
from slicer.state.directory import open_trusted


@record
class PathFacts:
    """A path and what is there. ``uid`` and ``mode`` are -1 if nothing is."""

    path: str
    kind: str  # "directory", "file", "link", "other", "" for nothing
    uid: int
    mode: int
    file_system: str  # "tmpfs", "ext4", …; "" unknown
    free_bytes: int  # for the caller; -1 unknown
    free_files: int  # inodes; -1 unknown, or the file system does not count them


@record
class StateFacts:
    """``error`` says why there can be no ledger; "" if there can."""

    ledger: PathFacts
    error: str
    hint: str
    is_chosen: bool  # by SLICER_STATE_DIR
    squatted: str  # the usual path, which another user has taken; "" if not
    lock_holder: int  # the stopped process that holds the ledger's lock; 0: none
    public: tuple[PathFacts, ...]  # the directories for users' ledgers
    history: PathFacts
    history_directory: PathFacts
    is_emptied: bool = False  # logind deletes the ledger at the user's last logout
    history_shut: str = ""  # the directory in which the history's cannot be created; "" if it can


def gather(environ: Mapping[str, str], uid: int, *, asks_for_lock: bool = True) -> StateFacts:
    """Examines the directories with lstat, and changes none.

    ``asks_for_lock``: finds the holder of the ledger's lock, which takes the kernel a while.
    """
    mounted = mounts()
    error = hint = ""
    try:
        path = statedir.where(environ, uid)
        open_trusted(os.path.dirname(path.partition("/sim-")[0])).close()
    except SlicerError as wrong:
        path = environ.get("SLICER_STATE_DIR") or f"{statedir.PUBLIC_DIRS[0]}/slicer-{uid}"
        error, hint = f"{wrong.where}: {wrong.message}", wrong.hint
    ledger = place(path, mounted)
    is_ours = ledger.kind == "directory" and ledger.uid == uid  # otherwise its contents cannot be trusted
    database = history.default_path(environ)
    usual = os.path.join(os.path.dirname(path), f"slicer-{uid}")
    is_chosen = bool(environ.get("SLICER_STATE_DIR"))
    return StateFacts(
        ledger=ledger, error=error, hint=hint, is_chosen=is_chosen,
        squatted=usual if uid and not is_chosen and path.startswith(f"{usual}.") else "",
        lock_holder=_stopped_holder(f"{path}/lock") if asks_for_lock and is_ours else 0,
        public=tuple(place(each, mounted) for each in statedir.PUBLIC_DIRS),
        history=place(database, mounted), history_directory=place(os.path.dirname(database), mounted),
        is_emptied=statedir.may_be_emptied(path, uid) and _removes_ipc(),
        history_shut=shut(os.path.dirname(database)),
    )  # fmt: skip


def _removes_ipc() -> bool:
    return setting("logind.conf", "RemoveIPC").lower() not in ("no", "false", "0", "off")


def place(path: str, mounted: tuple[Mount, ...]) -> PathFacts:
    """What is at a path, and how much room its file system has."""
    info, on = lstat(path), holding(path, mounted)
    free_bytes, free_files = _room(path)
    kind = "" if info is None else _kind(info.st_mode)
    uid, mode = (-1, -1) if info is None else (info.st_uid, stat.S_IMODE(info.st_mode))
    return PathFacts(path, kind, uid, mode, on.kind if on else "", free_bytes, free_files)


def shut(path: str) -> str:
    """The nearest existing directory above a missing path if the caller may not write there, else ""."""
    if os.path.lexists(path):
        return ""
    while not os.path.lexists(path) and path not in ("", "/"):
        path = os.path.dirname(path)
    return "" if os.access(path or "/", os.W_OK) else path


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISREG(mode):
        return "file"
    return "link" if stat.S_ISLNK(mode) else "other"


def _room(path: str) -> tuple[int, int]:
    """Free bytes and inodes on the file system of a path, or of its nearest existing parent."""
    while not os.path.lexists(path) and path not in ("", "/"):
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path or "/")
    except OSError:
        return -1, -1
    is_root = os.geteuid() == 0
    blocks, files = (found.f_bfree, found.f_ffree) if is_root else (found.f_bavail, found.f_favail)
    return blocks * found.f_frsize, files if found.f_files else -1


def _stopped_holder(path: str) -> int:
    info = lstat(path)
    if info is None or not stat.S_ISREG(info.st_mode):
        return 0
    try:
        holder = flock_holder(info, exclusively=True)
    except OSError:
        return 0
    return holder if holder and is_stopped(holder) else 0
