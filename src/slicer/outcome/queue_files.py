"""Files of detached queues beside the history, ``queues/….detached``: those that are to go on after a boot.

Each is a queue's hand-over (:mod:`slicer.detach.handover`), from which its service starts it. It is written
before the queue starts, and removed once the queue has nothing left to do or is told to end. So if it is
there and its queue does not run, that was killed, or ended with the machine or the user's manager.

It has the caller's environment, so only its user may read it. Several machines may share the directory (NFS),
so its name depends on the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from slicer.errors import StateError
from slicer.kernel import on_host
from slicer.kernel.proc import text_of
from slicer.outcome.history import default_path
from slicer.outcome.job_files import RULES, open_folder
from slicer.record import record
from slicer.state.directory import Directory, failing

_KIND = ".detached"
_LONGEST = 16 << 20  # bytes: an environment and a command line have 2 MiB each at most


@record
class DetachedQueue:
    """A queue that is to go on after a boot."""

    jobs_file: str  # absolute
    log_dir: str  # absolute, without links
    handed: dict[str, Any]  # what its process is to have: slicer.detach.service.handed


def folder(environ: Mapping[str, str]) -> str:
    return f"{os.path.dirname(default_path(environ))}/queues"


def path_of(environ: Mapping[str, str], log_dir: str) -> str:
    """The file of the queue with that log directory, on this machine."""
    machine = text_of(on_host("/etc/machine-id"))  # "": a container without systemd
    digest = hashlib.sha1(os.fsencode(f"{machine} {log_dir}"), usedforsecurity=False).hexdigest()
    return f"{folder(environ)}/{digest}{_KIND}"


def keep(environ: Mapping[str, str], queue: DetachedQueue) -> None:
    """Write its file, which replaces an earlier one of that log directory. Raises StateError."""
    about = {**queue.handed, "jobs_file": queue.jobs_file, "log_dir": queue.log_dir}
    with _changing(path_of(environ, queue.log_dir), "cannot be written") as (directory, name):
        directory.replace_shared(name, json.dumps(about).encode("ascii"), 0o600, os.fsync)


def forget(environ: Mapping[str, str], log_dir: str) -> bool:
    """The queue does not go on after a boot; whether it would have. Raises StateError."""
    path = path_of(environ, log_dir)
    if not os.path.lexists(path):
        return False
    with _changing(path, "cannot be removed") as (directory, name):
        directory.remove(name)
    return True


@contextmanager
def _changing(path: str, how: str) -> Iterator[tuple[Directory, str]]:
    """The directory, whose change is on the disk afterwards, and the file's name."""
    above, name = os.path.split(path)
    with closing(open_folder(above)) as directory, failing(path, how, RULES):
        yield directory, name
        directory.sync()


def known(environ: Mapping[str, str], warn: Callable[[str], None]) -> list[DetachedQueue]:
    """The queues of this machine. ``warn`` gets messages about bad files. Raises StateError."""
    above, found = folder(environ), list[DetachedQueue]()
    if not os.path.lexists(above):
        return found
    with closing(open_folder(above)) as directory:
        for name in sorted(name for name in directory.names() if name.endswith(_KIND)):
            try:
                handed = json.loads(directory.read(name, _LONGEST))
                queue = DetachedQueue(str(handed["jobs_file"]), str(handed["log_dir"]), handed)
                if not (handed["command"] and isinstance(handed["environment"], dict)):
                    raise ValueError("it lacks the command")
            except (StateError, ValueError, TypeError, KeyError, RecursionError) as error:
                warn(f"{above}/{name}: is not a detached queue's file ({error}); remove it")
                continue
            found += [queue] if path_of(environ, queue.log_dir) == f"{above}/{name}" else []
    return found
