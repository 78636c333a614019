"""The last queues of a user, running or ended, in ``queues/`` beside the history.

Each log directory has a file, which its queue writes when it begins. The journal in the log directory has all
else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from slicer.errors import SlicerError, StateError
from slicer.outcome.job_files import open_folder
from slicer.outcome.queue_files import folder as folder_of
from slicer.queue.file import jobs_file
from slicer.queue.model import Status
from slicer.queue.show import rows
from slicer.queue.state import folding, journal
from slicer.queue.state.journal import Journal
from slicer.queue.state.log_dir import failing
from slicer.record import record
from slicer.state.directory import Directory

_KEPT = 20
_NAME = re.compile("[0-9a-f]{40}")
_LONGEST = 1 << 16  # bytes of a file
SHOWN = 5
_WITHIN_S = 7 * 86400


@record
class EndedQueue:
    """A queue that has run. A job without a line is not pending."""

    file: str  # the jobs file, absolute
    log_dir: str  # absolute
    ended_at: float  # seconds since the epoch
    counts: dict[Status, int]


def note(environ: Mapping[str, str], file: str, log_dir: str) -> None:
    """A queue begins. Raises StateError."""
    log_dir = os.path.realpath(log_dir)
    about = {"file": os.path.abspath(file), "log_dir": log_dir, "pid": os.getpid()}
    name = hashlib.sha1(os.fsencode(log_dir), usedforsecurity=False).hexdigest()
    path = folder_of(environ)
    with closing(open_folder(path)) as folder, failing(path, "cannot be written"):
        os.close(folder.replace(name, json.dumps(about).encode("ascii"), mode=0o600))
        for name in _names(folder)[_KEPT:]:
            folder.remove(name)


def ended(
    environ: Mapping[str, str], pids: Collection[int], warn: Callable[[str], None]
) -> list[EndedQueue]:
    """The queues that ended lately, the last one first. ``pids``: of those that run.

    What is gone is forgotten. ``warn`` gets messages about queues that cannot be read. Raises StateError.
    """
    path, over, found = folder_of(environ), list[tuple[float, str, str]](), list[EndedQueue]()
    if not os.path.lexists(path):
        return found
    with closing(open_folder(path)) as folder, failing(path):
        for name in _names(folder):
            try:
                about = json.loads(folder.read(name, _LONGEST))
                file, log_dir = str(about["file"]), str(about["log_dir"])
                is_there = os.path.lexists(file)
                ended_at = os.stat(journal.path_in(log_dir)).st_mtime
                is_over = about["pid"] not in pids
            except (OSError, StateError, ValueError, TypeError, KeyError, RecursionError):
                is_there = False
            if not is_there:
                folder.remove(name)
            elif is_over and ended_at > time.time() - _WITHIN_S:
                over.append((ended_at, file, log_dir))
    for ended_at, file, log_dir in sorted(over, reverse=True)[:SHOWN]:
        try:
            found.append(EndedQueue(file, log_dir, ended_at, _counts(file, log_dir)))
        except SlicerError as error:
            warn(str(error))
    return found


def _counts(file: str, log_dir: str) -> dict[Status, int]:
    states = folding.fold(Journal.peek(log_dir) or ()).values()
    lines = {entry.key for entry in jobs_file.parse(jobs_file.read(file, is_live=True), name=file)}
    return rows.counts(rows.of_file(states, lines))


def _names(folder: Directory) -> list[str]:
    """The newest first."""
    names = (name for name in folder.names() if _NAME.fullmatch(name))
    return sorted(names, key=lambda name: -folder.lstat(name).st_mtime)
