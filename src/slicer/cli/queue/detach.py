"""``slicer queue --detach``: the queue as a service of the user's manager (for root: of the system's)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress

from slicer import backend as backends
from slicer.backend.manager_calls import start_service
from slicer.backend.systemd import SystemdBackend
from slicer.cli import placing, say
from slicer.cli.common import failing
from slicer.cli.queue.show import choose
from slicer.detach import handover, service, starting
from slicer.doctor.facts.host import gather_session
from slicer.errors import EX_OK, BackendError, StateError, UsageError
from slicer.model import manager_of
from slicer.queue.file.live_file import is_pipe
from slicer.queue.loop import Queue
from slicer.queue.model import QueueOptions
from slicer.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.doctor.facts.host import SessionFacts
    from slicer.model import Manager


def detach(options: QueueOptions, environ: Mapping[str, str], *, as_json: bool, quiet: bool) -> int:
    """Start this command line again as a service, or as a process where none would last, and return.

    Errors that would prevent its start are raised before, as a queue raises them.
    """
    uid = os.geteuid()
    manager = manager_of(uid)
    broker, session = backends.broker_socket(environ) if uid else "", gather_session(uid)
    with closing(SystemdBackend(manager)) as backend:
        has_service = backends.has_systemd() and (not uid or placing.reaches(backend))
        has_service = has_service and (not broker or session.lingers)
        _check(options, environ)
        log_dir = os.path.realpath(options.log_dir)
        if has_service:
            unit = service.queue_unit(log_dir)
            _start_service(backend, unit, options, log_dir, environ)
            ends = placing.ends_early(manager, session)
            systemctl = "systemctl --user" if manager == "user" else "systemctl"
            name, stop = unit, f"{systemctl} stop {unit}"
        else:
            pid, ends = _start_process(options, log_dir, environ, broker, session)
            name, stop = f"process {pid}", f"kill {pid}"
    if as_json:
        told = {
            "v": 1, "event": "detached", "at": round(time.time(), 3), "job": None,
            "unit": name if has_service else None, "manager": manager if has_service else None,
            "log": os.path.abspath(f"{options.log_dir}/queue.log"),
        }  # fmt: skip
        print(json.dumps(told, separators=(",", ":")))
    elif not quiet:
        log, board = (quote(f"{options.log_dir}/{name}") for name in ("queue.log", "status.txt"))
        print(f"detached as {name}: tail -f {log}, watch cat {board}")
        print(f"{stop}: starts no new jobs and waits for the running ones")
        print("after a reboot, the same command without --fresh resumes it")
    if ends:
        say.line(ends)
    return EX_OK


def _start_service(
    backend: SystemdBackend, unit: str, options: QueueOptions, log_dir: str, environ: Mapping[str, str]
) -> None:
    path = _hand_over(unit, log_dir, environ, backend.manager)
    described, settings = service.queue_description(options.jobs_file), service.queue_properties(unit)
    try:
        backend.converse(start_service(unit, described, starting.taker(path), settings, backend.manager))
    except BackendError:
        os.unlink(path)
        with suppress(OSError):  # a running service uses it
            os.rmdir(os.path.dirname(path))
        raise


def _start_process(
    options: QueueOptions, log_dir: str, environ: Mapping[str, str], broker: str, session: SessionFacts
) -> tuple[int, str]:
    """As a job's: its pid, and what would end it early. Raises StateError."""
    described, job = service.queue_description(options.jobs_file), os.urandom(6).hex()
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    arguments = service.queue_arguments(sys.argv[1:])
    handed = starting.handed_by_us(arguments, environ, f"{log_dir}/queue.log", reports=False)
    with starting.HandOver() as hand_over:
        found = placing.start_process(hand_over, job, described, broker, mask, session)
        hand_over.send(handed)
        failed = hand_over.hear(say.line, at_end="runs")
    if failed != "runs":
        raise StateError("the queue was not started", where="--detach")
    return found


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


def _hand_over(unit: str, log_dir: str, environ: Mapping[str, str], manager: Manager) -> str:
    """Write the service's hand-over. Returns the path of its file. Raises StateError."""
    arguments = service.queue_arguments(sys.argv[1:])
    handed = starting.handed_by_us(arguments, environ, f"{log_dir}/queue.log")
    runtime = f"/run/user/{os.geteuid()}" if manager == "user" else "/run"
    # A running service may have its own hand-over, under another name.
    path = f"{runtime}/{unit.removesuffix('.service')}/{os.urandom(4).hex()}"
    with failing("cannot be written", path, kind=StateError):
        handover.write(path, handed)
    return path
