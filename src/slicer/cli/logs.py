"""``slicer logs``: shows a job's output."""

from __future__ import annotations

import os
import re
import stat
import sys

import click

from slicer.cli import complete, say
from slicer.cli.ends import Awaited, asleep
from slicer.cli.job_register import JobRegister, KnownJob, SeenLedger
from slicer.errors import UsageError
from slicer.kernel import inotify, punch
from slicer.queue.control.line_watch import LineWatch
from slicer.queue.control.messages import QueuedLine
from slicer.queue.model import UNBEGUN
from slicer.record import replace
from slicer.text import one_line

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BLOCK = 1 << 16
_LONGEST = 200  # characters of a line among a job's last
_APPEARS_S = 0.05  # the keeper makes the log of a queue's job a moment after its start


class NoLog(UsageError):
    """No file has the job's output (any more)."""

    kind = "no-log"


@click.command(
    "logs",
    epilog="""\
\b
Examples:
  slicer logs train             all of its output so far
  slicer logs -f                of your last job, until it ends
  slicer logs -n 20 train       the last 20 lines
  slicer logs -f train          all, and new output until the job ends
  slicer logs 'jobs.txt#7'      a job of a queue, by its line

\b
Exit codes:
    0  shown; with --follow, the job has ended
    2  no such job, or slicer has no log of it""",
)
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("-f", "--follow", is_flag=True, help="Show new output until the job ends.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines; all by default."
)
def command(job: str | None, follow: bool, lines: int | None) -> int:
    """Show the output of a job that was started with --detach, or by a queue.

    JOB is a job's id (or at least its first four characters), its unit, its name, or a line of a jobs file as
    in jobs.txt#7. A name means the living job that has it, otherwise the last job that had it. Without JOB:
    your last job, which is said first. With --follow, a line that has not begun is waited for. The output is
    shown unchanged. Its beginning is lost once the log has grown beyond [logs] max_size.
    """
    known = JobRegister().find(job)
    line = known.line
    if line is not None and line.status == "pending" and follow:
        known = _begun(known, line)
    elif line is not None and line.status == "pending" and not line.log:
        why = f": {line.waits_for}" if line.waits_for else ""
        raise NoLog(f"{known.name} has not begun{why}", hint="slicer logs -f waits until it begins")
    fd = _opened(known)
    begin = punch.beginning(fd)
    place = _after_line(fd, begin) if begin else 0
    if lines is not None:
        place = _copy_lines(fd, last_lines(fd, lines, place))
    if follow:
        _follow(fd, place, known)
    else:
        _copy(fd, place)
    return 0


def _begun(known: KnownJob, line: QueuedLine) -> KnownJob:
    """The line's next attempt, once its log is there. Raises NoLog if it ends without one."""
    watch = LineWatch(os.environ, line, "begun")
    while (found := watch.look()) is None:
        asleep([watch], None)
    if not found.log or found.status in UNBEGUN:
        raise NoLog(f"{known.name} has not begun: {found.reason or found.status}")
    known = replace(known, job=found.job, line=found)
    awaited, seen = Awaited(known, is_attempt=True), SeenLedger(say.line)
    while not os.path.lexists(found.log) and awaited.look(seen.look()) is None:
        asleep([awaited], _APPEARS_S)
    return known


def _opened(known: KnownJob) -> int:
    """The log. Raises NoLog."""
    path = known.output
    if not path and known.outcome is None:
        raise NoLog(f"slicer keeps no log of {known.label}", hint="slicer run --detach does")
    if not path:
        hint = "slicer run --detach keeps a log"
        raise NoLog(f"the output of {known.label} went to its caller's stdout and stderr", hint=hint)
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError as error:
        hint = "logs of old jobs are removed: [logs] keep"
        raise NoLog(f"the log of {known.label} is gone", where=path, hint=hint) from error
    except OSError as error:
        raise NoLog(f"cannot be read: {error.strerror}", where=path) from error
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise NoLog("is not a regular file, and cannot be shown", where=path, hint=f"{known.label} writes there")


def tail(path: str, most: int) -> list[str]:
    """The last lines of a log, fit for display; none of one that is gone or cannot be read."""
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return []
    try:
        about = os.fstat(fd)
        is_log = stat.S_ISREG(about.st_mode)
        end = os.pread(fd, _BLOCK, max(punch.beginning(fd), about.st_size - _BLOCK)) if is_log else b""
    finally:
        os.close(fd)
    lines = _OVERWRITTEN.sub(b"", end).decode(errors="replace").splitlines()
    return [one_line(line, _LONGEST) for line in lines if line.strip()][-most:]


def _after_line(fd: int, begin: int) -> int:
    """The beginning of the first whole line from ``begin`` on; the line there may be partly freed."""
    found = os.pread(fd, _BLOCK, begin).find(b"\n")
    return begin + found + 1 if found >= 0 else begin


def last_lines(fd: int, number: int, begin: int = 0) -> int:
    """The offset of a file's last ``number`` lines, at least ``begin``."""
    end = os.fstat(fd).st_size
    if not number:
        return end
    place, wanted = end, number
    if end > begin and os.pread(fd, 1, end - 1) == b"\n":
        wanted += 1  # the last line ends there
    while place > begin:
        start = max(begin, place - _BLOCK)
        block = os.pread(fd, place - start, start)
        at = len(block)
        while wanted and (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
        if not wanted:
            return start + at + 1
        place = start
    return begin


_OVERWRITTEN = re.compile(rb"^[^\n]*\r(?=[^\r\n])", re.MULTILINE)  # tried once a line: one may have megabytes


def _copy_lines(fd: int, place: int) -> int:
    """As :func:`_copy`, but each line as it ended: a progress bar writes hundreds over each other."""
    with open(fd, "rb", closefd=False) as file:
        file.seek(place)
        for line in file:
            place += len(line)
            sys.stdout.buffer.write(_OVERWRITTEN.sub(b"", line))
    sys.stdout.flush()
    return place


def _copy(fd: int, place: int) -> int:
    """Print the existing data from an offset on, without freed parts; the offset behind it."""
    while data := os.pread(fd, _BLOCK, place := punch.beginning(fd, place)):
        sys.stdout.buffer.write(data)
        place += len(data)
    sys.stdout.flush()
    return place


def _follow(fd: int, place: int, known: KnownJob) -> None:
    awaited, seen = Awaited(known, is_attempt=True), SeenLedger(say.line)
    watch = inotify.Inotify(f"/proc/self/fd/{fd}")
    watch.add(f"/proc/self/fd/{fd}", inotify.MODIFY)
    while True:
        ended = awaited.look(seen.look())
        place = _copy(fd, place)
        if ended is not None:
            say.line(ended.text)
            return
        while watch.fd in asleep([awaited], None, others=(watch.fd,)):
            watch.take()
            place = _copy(fd, place)
