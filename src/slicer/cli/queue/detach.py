"""``slicer queue --detach``: the queue as a service of the user's manager (for root: of the system's).

``slicer queue restore`` starts those again that ended with the machine, or with that manager.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import closing

import click

from slicer import backend as backends
from slicer.backend import feature_units
from slicer.backend.manager_calls import UnitExists
from slicer.cli import placing, say
from slicer.cli.common import failing
from slicer.cli.placing import Placed
from slicer.cli.queue.show import choose
from slicer.detach import handover, service, starting
from slicer.doctor.facts.host import gather_session
from slicer.errors import EX_OK, EX_SLICER, SlicerError, StateError, UsageError
from slicer.model import manager_of
from slicer.outcome import queue_files
from slicer.outcome.queue_files import DetachedQueue
from slicer.queue.file.live_file import is_pipe
from slicer.queue.loop import Queue
from slicer.queue.model import QueueOptions
from slicer.queue.state.log_dir import LogDir, QueueRunning
from slicer.record import replace
from slicer.text import quote

_HINT = "slicer queue stop {} if it is not to go on"


def detach(options: QueueOptions, environ: Mapping[str, str], *, as_json: bool, quiet: bool) -> int:
    """Start this command line again as a service, or as a process where none would last, and return.

    Errors that would prevent its start are raised before, as a queue raises them.
    """
    _check(options, environ)
    log_dir, manager = os.path.realpath(options.log_dir), manager_of(os.geteuid())
    arguments = service.queue_arguments(sys.argv[1:])
    handed = starting.handed_by_us(arguments, environ, f"{log_dir}/queue.log", reports=False)
    queue = DetachedQueue(os.path.abspath(options.jobs_file), log_dir, handed)
    queue_files.keep(environ, queue)
    try:
        started = _start(queue, environ)
    except UnitExists:  # somebody was faster, whose queue goes on
        raise
    except SlicerError:
        queue_files.forget(environ, log_dir)
        raise
    if as_json:
        told = {
            "v": 1, "event": "detached", "at": round(time.time(), 3), "job": None,
            "unit": started.unit or None, "manager": manager if started.unit else None,
            "log": os.path.abspath(f"{options.log_dir}/queue.log"),
        }  # fmt: skip
        print(json.dumps(told, separators=(",", ":")))
    elif not quiet:
        log, board = (quote(f"{options.log_dir}/{name}") for name in ("queue.log", "status.txt"))
        print(f"detached as {_named(started)}: tail -f {log}, watch cat {board}")
        file = quote(options.jobs_file)
        print(f"slicer queue stop {file} --finish: starts no new jobs, and the running ones may finish")
        lingers = manager == "system" or gather_session(os.geteuid()).lingers
        print(service.after_boot(is_restored=feature_units.resumes_queues(manager, environ), lingers=lingers))
    if started.ends:
        say.line(started.ends)
    return EX_OK


@click.command(
    "restore",
    short_help="Resume detached queues after a boot.",
    epilog="""\
\b
Examples:
  slicer queue restore          all that ended with the machine
  slicer queue stop jobs.txt    this one is not to be resumed""",
)
def restore() -> int:
    """Resume the detached queues that ended with the machine, or with your systemd user manager.

    `slicer install` has systemd do this at each boot. Those that run, have ended or were stopped stay as they
    are; a paused one is paused again. Each has the directory, environment and options that it was given.
    """
    code = EX_OK
    for queue in queue_files.known(os.environ, say.line):
        file = quote(queue.jobs_file)
        try:
            with failing("it cannot go on", file, kind=StateError, hint=_HINT.format(file)):
                for path in (queue.jobs_file, queue.log_dir):
                    os.stat(path)
            LogDir(queue.log_dir).close()  # nobody else may write there, and no queue runs
            started = _start(_with_program(queue), os.environ)
        except (QueueRunning, UnitExists):
            continue
        except SlicerError as error:
            say.line(str(error))
            code = EX_SLICER
        else:
            print(f"{file} goes on as {_named(started)}")
    return code


def _with_program(queue: DetachedQueue) -> DetachedQueue:
    """The queue, with this slicer if an upgrade has removed that which it was started with."""
    command = queue.handed["command"]
    if os.access(command[0], os.X_OK):
        return queue
    arguments = command[command.index("queue") :]
    found = replace(queue, handed={**queue.handed, "command": [*starting.program(), *arguments]})
    queue_files.keep(os.environ, found)
    return found


def _named(started: Placed) -> str:
    return started.unit or f"process {started.pid}"


def _start(queue: DetachedQueue, environ: Mapping[str, str]) -> Placed:
    """Start it from its file, or hand that over. Raises UnitExists, BackendError, StateError."""
    broker = backends.broker_socket(queue.handed["environment"]) if os.geteuid() else ""
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    described = service.queue_description(queue.jobs_file)
    with starting.HandOver() as hand_over:
        placed = placing.start(
            hand_over, os.urandom(6).hex(), described, broker, mask, unit=service.queue_unit(queue.log_dir),
            settings=service.queue_properties(), path=queue_files.path_of(environ, queue.log_dir),
        )  # fmt: skip
        if placed.pid:
            hand_over.send(queue.handed)
            if hand_over.hear(say.line, at_end="runs") != "runs":
                raise StateError("the queue was not started", where="--detach")
    return placed


def _check(options: QueueOptions, environ: Mapping[str, str]) -> None:
    """Open the queue once, to find what prevents its start. --fresh acts here, not in the service."""
    if is_pipe(options.jobs_file):
        raise UsageError(
            "the service cannot read this pipe", where=options.jobs_file, hint="save its lines in a file"
        )
    renderer = choose(as_json=False, verbose=False, quiet=True, stdout=sys.stdout)
    queue = Queue(options, environ, renderer)
    for doubt in queue.doubts():
        say.line(doubt)
    path = f"{os.path.realpath(queue.register.log_dir.path)}/queue.log"
    # Do not close the whole queue: the last queue's board stays until the service has a new one.
    with closing(queue.register), failing("cannot be written", path, kind=StateError):
        os.close(handover.open_log(path))
