"""``slicer queue suggest``: the jobs file with declarations that fit the jobs' use."""

from __future__ import annotations

import os
import stat
import sys

import click

from slicer.cli import say
from slicer.cli.common import failing
from slicer.cli.queue import parameters
from slicer.errors import StateError, UsageError
from slicer.queue.file import adding, jobs_file, suggestion
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.state import folding
from slicer.queue.state.journal import Journal
from slicer.state.directory import Directory


@click.command(
    "suggest",
    short_help="Print the jobs file with declarations that fit.",
    epilog="""\
\b
Examples:
  slicer queue suggest jobs.txt | diff jobs.txt -   what would change
  slicer queue suggest jobs.txt --in-place          change it
  slicer queue suggest jobs.txt --tolerance 0.5     only large differences""",
)
@parameters.jobs_file
@parameters.log_dir()
@parameters.tolerance("Correct declarations that differ from the use by more than this.")
@click.option("-i", "--in-place", is_flag=True, help="Change FILE itself, and print nothing.")
def command(file: str, log_dir: str, tolerance: float, in_place: bool) -> None:
    """Print FILE with declarations that fit: `vram=` becomes what each job used, and a little more.

    Everything else stays as it is, including comments. stderr shows how many lines were changed.
    """
    if not in_place:
        _check_output(file)
        text = jobs_file.read(file, keep_newlines=True)
    else:
        folder, name, fd = adding.locked(file, os.O_RDWR, "slicer queue suggest --in-place FILE")
        text = jobs_file.content(fd, file, is_live=True)
    keys = {entry.key for entry in jobs_file.parse(text, name=file)}
    records = Journal.peek(log_dir)
    if records is None:
        raise parameters.no_journal(log_dir)
    proposed = suggestion.proposals(folding.fold(records).values(), tolerance)
    declared = {key: mib for key, mib in proposed.items() if key in keys}
    corrected = suggestion.corrected(text, declared)
    if not in_place:
        sys.stdout.write(corrected)
        sys.stdout.flush()
    elif corrected != text:
        _replace(folder, name, fd, corrected.encode())
    say.line(f"{len(declared)} of {len(keys)} declarations changed")


def _check_output(file: str) -> None:
    """Raise UsageError if stdout is the file itself: with ">", the shell has already emptied it."""
    try:
        read, written = os.stat(file), os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return  # no such file, which reading it will report; or no stdout
    if os.path.samestat(read, written) and stat.S_ISREG(read.st_mode):
        gone = "" if read.st_size else ", and your shell has just emptied it"
        hint = "" if read.st_size else "restore it from a copy, then: "
        raise UsageError(
            f"is also the output{gone}", where=file, hint=f"{hint}slicer queue suggest --in-place FILE"
        )


def _replace(folder: Directory, name: str, read: int, data: bytes) -> None:
    """Atomically replace the file that was read by ``data``. Raises JobsFileError, StateError."""
    before = os.fstat(read)

    def settle(fd: int) -> None:
        if before.st_uid != os.geteuid() or before.st_gid != os.getegid():
            os.fchown(fd, before.st_uid, before.st_gid)
        os.fchmod(fd, before.st_mode & 0o777)
        os.fsync(fd)
        if not os.path.samestat(before, folder.lstat(name)):
            raise JobsFileError("was replaced meanwhile", name=name, hint="try again")

    with failing("cannot be changed", f"{folder.path}/{name}", kind=StateError):
        folder.replace_shared(name, data, 0o600, settle)
