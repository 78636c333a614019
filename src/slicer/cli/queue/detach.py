"""``slicer queue --detach``: the queue as a service of the user's manager (for root: of the system's)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress

from slicer import backend as backends
from slicer.backend.manager_calls import start_service
from slicer.backend.systemd import SystemdBackend
from slicer.cli import say
from slicer.cli.common import failing
from slicer.cli.queue.show import choose
from slicer.detach import handover, service, starting
from slicer.errors import EX_OK, BackendError, StateError, UsageError
from slicer.kernel.users import user_name
from slicer.model import manager_of
from slicer.queue.file.live_file import is_pipe
from slicer.queue.loop import Queue
from slicer.queue.model import QueueOptions
from slicer.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Manager

_LINGER = "/var/lib/systemd/linger"
_OTHERWISE = "run it in tmux, or with nohup"


def detach(options: QueueOptions, environ: Mapping[str, str], *, as_json: bool, quiet: bool) -> int:
    """Start this command line again as a service, and return.

    Errors that would prevent its start are raised before, as a queue raises them.
    """
    manager = manager_of(os.geteuid())
    backend = _backend(manager)
    _check(options, environ)
    log_dir = os.path.realpath(options.log_dir)
    unit = service.queue_unit(log_dir)
    path = _hand_over(unit, log_dir, environ, manager)
    described, settings = service.queue_description(options.jobs_file), service.queue_properties(unit)
    try:
        backend.converse(start_service(unit, described, starting.taker(path), settings, manager))
    except BackendError:
        os.unlink(path)
        with suppress(OSError):  # a running service uses it
            os.rmdir(os.path.dirname(path))
        raise
    finally:
        backend.close()
    if as_json:
        told = {
            "v": 1, "event": "detached", "at": round(time.time(), 3), "job": None, "unit": unit,
            "manager": manager, "log": os.path.abspath(f"{options.log_dir}/queue.log"),
        }  # fmt: skip
        print(json.dumps(told, separators=(",", ":")))
    elif not quiet:
        log, board = (quote(f"{options.log_dir}/{name}") for name in ("queue.log", "status.txt"))
        print(f"detached as {unit}: tail -f {log}, watch cat {board}")
        systemctl = "systemctl --user" if manager == "user" else "systemctl"
        print(f"{systemctl} stop {unit}: starts no new jobs and waits for the running ones")
    user = user_name(os.geteuid())
    if manager == "user" and not os.path.exists(f"{_LINGER}/{user}"):
        say.line(f"your last logout would end it: loginctl enable-linger {user} keeps it running")
    return EX_OK


def _backend(manager: Manager) -> SystemdBackend:
    """The connection to the manager. Raises BackendError."""
    if not backends.has_systemd():
        raise BackendError("needs systemd, which is not running", where="--detach", hint=_OTHERWISE)
    backend = SystemdBackend(manager)
    try:
        backend.connect()
    except BackendError as error:
        hint = _OTHERWISE
        if manager == "user":
            hint = f"loginctl enable-linger {user_name(os.geteuid())} (as root if refused); or {_OTHERWISE}"
        raise BackendError(error.message, where="--detach", hint=hint) from error
    return backend


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
    path = f"{queue.register.log_dir.path}/queue.log"
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
