"""The files by which the queue and its attempts on other nodes speak, in ``slurm/`` of the log directory.

    ID.order     the attempt's script. Whoever renames or removes it has the attempt: the node, or the queue
    ID.begun     the node has begun it
    ID.node      where: the node's name, and the numbers of its GPUs
    ID.end       its outcome as JSON, or the exit code of a slicer that could not run it
    BATCH.batch  the script of an array, with the ids of its attempts

All but the node's line are written under another name first. Nobody else can write there, as in the whole log
directory.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection

from slicer.errors import StateError
from slicer.kernel import inotify
from slicer.kernel.inotify import Inotify
from slicer.kernel.proc import names_in
from slicer.model import Outcome
from slicer.queue.engine.slurm.script import jobs_of
from slicer.queue.state import attempt
from slicer.queue.state.log_dir import LogDir, failing
from slicer.record import record

_FOLDER = "slurm"
_MOST_BYTES = 4 << 20
_NODE = re.compile(r"([\w.-]{1,64}) ?([\d,]{0,200})\n?", re.ASCII)
_NAME = re.compile(r"([0-9a-f]{12})\.(order|begun|node|end|batch)")


@record
class AttemptResult:
    """What an attempt left: its outcome, or the exit code of its order; neither: something unreadable."""

    outcome: Outcome | None
    code: int | None


def refuse_if_running(log_dir: str) -> None:
    """Raise StateError if attempts of an earlier queue have begun, and have not ended."""
    path = f"{log_dir}/{_FOLDER}"
    names = set(names_in(path))  # none: there was none, or what is wrong with it is told later
    if any(name.endswith(".begun") and f"{name[:-6]}.end" not in names for name in names):
        hint = "without --fresh they are taken over; or end them first, with scancel"
        raise StateError("jobs of an earlier queue still run", where=path, hint=hint)


class Exchange:
    """``fd`` is readable when something in the directory has changed, if this machine is told of it."""

    def __init__(self, log_dir: LogDir) -> None:
        """Raises StateError."""
        with failing(log_dir.path):
            self._directory = log_dir.directory.own_folder(_FOLDER)
        self.path = os.path.realpath(self._directory.path)
        self._inotify = Inotify(self.path)
        self._inotify.add(self._directory.handle, inotify.MOVED_TO | inotify.CLOSE_WRITE)
        self._batches: dict[str, dict[str, int]] = {}  # the attempts of each batch, and their indices
        self._batch_of: dict[str, str] = {}
        for name, kinds in self.files().items():
            if "batch" in kinds:
                self._enter(name, jobs_of(self._read(f"{name}.batch").decode("utf-8", "replace")))

    @property
    def fd(self) -> int:
        return self._inotify.fd

    def heard(self) -> dict[str, set[str]]:
        """What came since the last call, as :meth:`files`, as far as this machine was told."""
        names: list[str] = []
        while changes := self._inotify.take():
            if any(change.mask & inotify.OVERFLOWED for change in changes):
                return self.files()
            names += (change.name for change in changes)
        return _kinds(names)

    def files(self) -> dict[str, set[str]]:
        """The kinds of files of each attempt and batch. Raises StateError."""
        with failing(self.path, "cannot be read"):
            return _kinds(self._directory.names())

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all. Raises StateError."""
        with failing(self.path, "cannot be written"):
            os.close(self._directory.replace(name, text.encode("utf-8", "surrogateescape"), mode=0o700))

    def withdraw(self, job: str) -> bool:
        """Remove an attempt's order, so that it can never begin; False: a node was faster.

        Raises StateError.
        """
        with failing(self.path, "cannot be changed"):
            try:
                self._directory.unlink(f"{job}.order")
            except FileNotFoundError:
                if not self._directory.is_there():
                    raise  # nobody can tell
                return not self._directory.has(f"{job}.begun")
        return True

    def write_batch(self, batch: str, jobs: list[str], text: str) -> None:
        """Write the script of an array with these attempts. Raises StateError."""
        self.write(f"{batch}.batch", text)
        self._enter(batch, jobs)

    def _enter(self, batch: str, jobs: list[str]) -> None:
        self._batches[batch] = {job: index for index, job in enumerate(jobs)}
        self._batch_of |= dict.fromkeys(jobs, batch)

    def place(self, job: str) -> tuple[str, int]:
        """The attempt's batch, and its index in it; "" if it is in none."""
        batch = self._batch_of.get(job, "")
        return batch, self._batches[batch][job] if batch else 0

    def sweep(self, known: Collection[str]) -> None:
        """Remove the files of all other attempts."""
        for job in {*self.files(), *self._batch_of} - self._batches.keys() - set(known):
            self.forget(job)

    def forget(self, job: str) -> None:
        """Remove the attempt's files, and its batch with the last of its attempts."""
        self._remove(job, "order", "begun", "node", "end")
        batch = self._batch_of.pop(job, "")
        if batch:
            del self._batches[batch][job]
            if not self._batches[batch]:
                del self._batches[batch]
                self._remove(batch, "batch")

    def _remove(self, name: str, *kinds: str) -> None:
        for kind in kinds:
            try:
                self._directory.unlink(f"{name}.{kind}")
            except OSError:
                continue  # most of them do not exist

    def node(self, job: str) -> tuple[str, tuple[int, ...]]:
        """Where the attempt runs: the node's name, and the numbers of its GPUs; ("", ()) unknown."""
        match = _NODE.fullmatch(self._read(f"{job}.node").decode("ascii", "replace"))
        if match is None:
            return "", ()
        numbers = [int(word) for word in match[2].split(",") if word and len(word) < 4]
        return match[1], tuple(numbers)

    def end(self, job: str) -> AttemptResult:
        data = self._read(f"{job}.end")
        if data.strip().isdigit() and len(data) < 8:
            return AttemptResult(None, int(data))
        try:
            compact = json.dumps(json.loads(data)).encode()
        except (ValueError, RecursionError):
            return AttemptResult(None, None)
        found = attempt.decode(b"0 0\n" + compact + b"\n", job, is_alive=False)
        return AttemptResult(found.outcome, None)

    def close(self) -> None:
        self._inotify.close()
        self._directory.close()

    def _read(self, name: str) -> bytes:
        """The file's contents; b"" if there is none, or something else in its place. Raises StateError."""
        with failing(f"{self.path}/{name}"):
            try:
                fd = self._directory.open_file(name, os.O_RDONLY)
            except (FileNotFoundError, StateError):
                return b""
            except OSError as error:
                if error.errno == errno.ELOOP:  # a link costs its own attempt only
                    return b""
                raise
            with open(fd, "rb") as file:
                return file.read(_MOST_BYTES)


def _kinds(names: list[str]) -> dict[str, set[str]]:
    """The kinds of files with these names, by attempt or batch."""
    found: dict[str, set[str]] = {}
    for match in filter(None, map(_NAME.fullmatch, names)):
        found.setdefault(match[1], set()).add(match[2])
    return found
