"""``slicer queue stop``, ``pause`` and ``resume``: a word for a running queue as a whole."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import click

from slicer.cli import say
from slicer.cli.queue import parameters
from slicer.errors import StateError, UsageError
from slicer.job.stop import DEADLINE_S, StillThere, signal_process
from slicer.kernel.sleep import until_readable
from slicer.outcome import queue_files
from slicer.queue.control import client
from slicer.queue.control.client import Asked
from slicer.text import counted, quote

if TYPE_CHECKING:
    from slicer.cli.named_jobs import Done

_log_dir = click.option("--log-dir", metavar="DIR", type=click.Path(), help="The LOG_DIR of the queue.")


@click.command(
    "stop",
    short_help="End a queue and its running jobs.",
    epilog="""\
\b
Examples:
  slicer queue stop jobs.txt            its running jobs end, too
  slicer queue stop jobs.txt --finish   they may finish
  slicer queue jobs.txt                 resumes it""",
)
@parameters.jobs_file
@_log_dir
@click.option("--finish", is_flag=True, help="Let the running jobs finish, and do not wait for them.")
def command(file: str, log_dir: str | None, finish: bool) -> None:
    """End the queue that runs FILE, and wait for its end. Nothing that has not begun begins any more.

    Lines that did not begin, and jobs that ran and were ended, run when the queue is started again. A
    detached queue that a reboot has ended is not resumed.
    """
    with client.queues(os.environ) as found:
        asked = client.of_file(found, file, log_dir)
        if asked is None:
            _forget(file, log_dir)
            return
        running = tell_to_leave(asked, finish=finish)
        if finish:
            print(f"{quote(file)} starts nothing new; {counted(len(running), 'job')} may finish")
        else:
            print(end_of(asked)[0])


@click.command(
    "pause",
    short_help="Let a queue start nothing new.",
    epilog="""\
\b
Examples:
  slicer queue pause jobs.txt    nothing new is started
  slicer queue resume jobs.txt   jobs are started again""",
)
@parameters.jobs_file
@_log_dir
def pause_command(file: str, log_dir: str | None) -> None:
    """Let the queue that runs FILE start nothing new, until `slicer queue resume FILE`.

    Running jobs run on; `slicer pause JOB` freezes one. A queue that is started again stays paused.
    """
    _set_paused(file, log_dir, is_paused=True)


@click.command(
    "resume",
    short_help="Let a paused queue go on.",
    epilog="""\
\b
Examples:
  slicer queue resume jobs.txt                the queue of that file
  slicer queue resume jobs.txt --log-dir b    if several run it""",
)
@parameters.jobs_file
@_log_dir
def resume_command(file: str, log_dir: str | None) -> None:
    """Let the queue that runs FILE start jobs again."""
    _set_paused(file, log_dir, is_paused=False)


def _forget(file: str, log_dir: str | None) -> None:
    """Forget the file's detached queues, which a reboot has ended. Raises UsageError if there are none."""
    queues = queue_files.known(os.environ, say.line)
    ours = [each.log_dir for each in queues if each.jobs_file == os.path.abspath(file)]
    chosen = [each for each in ours if log_dir is None or each == os.path.realpath(log_dir)]
    for each in chosen:
        queue_files.forget(os.environ, each)
        print(f"{quote(file)} does not run; its queue in {quote(each)} will not be resumed after a boot")
    if not chosen:
        raise _not_running(file)


def _not_running(file: str) -> UsageError:
    return UsageError(f"no queue runs {quote(file)}", hint="slicer queue lists your queues")


def _set_paused(file: str, log_dir: str | None, *, is_paused: bool) -> None:
    with client.queues(os.environ) as found:
        asked = client.of_file(found, file, log_dir)
        if asked is None:
            raise _not_running(file)
        answer = asked.ask("pause", paused=is_paused)
    waiting = counted(answer["pending"], "line")
    if not answer["changed"]:
        print(f"{quote(file)} was {'paused already' if is_paused else 'not paused'}")
    elif is_paused:
        print(f"paused {quote(file)}: nothing new is started, {waiting} wait")
    else:
        print(f"resumed {quote(file)}: {waiting} to start")


def tell_to_leave(asked: Asked, *, finish: bool = False) -> list[str]:
    """Have a queue start nothing more, and end its jobs unless they may ``finish``. Returns their ids."""
    if asked.queue is None:  # it is stopped (Ctrl-Z): it leaves once it runs again
        for signo in (signal.SIGTERM, signal.SIGCONT):
            signal_process(asked.pid, None, os.geteuid(), signo)
        return []
    try:
        return list(map(str, asked.ask("leave", finish=finish)["jobs"]))
    except StateError:
        if asked.receive() != b"":
            raise
        return []  # it has just ended


def end_of(asked: Asked) -> Done:
    """Wait until the queue has ended. Raises StillThere."""
    file = asked.queue.file if asked.queue is not None else ""
    label = quote(os.path.basename(file)) or f"the queue of pid {asked.pid}"
    end = time.monotonic() + DEADLINE_S
    while asked.receive() != b"":  # it closes the connection when all of its own is written
        if not until_readable([asked.connection.fileno()], max(0.0, end - time.monotonic()), None):
            raise StillThere(f"{label} has not ended within {DEADLINE_S:g} s", hint="see slicer queue")
    return f"stopped {label}", {"job": None, "name": file or None, "done": "stopped"}
