"""``slicer hold --protocol 1``: a lease for the program that started this one, in lines of JSON.

The program reads what happens from our stdout, and keeps the lease for as long as our stdin is open. So the
lease ends with the program, whatever ends it. docs/client.md has the lines.
"""

from __future__ import annotations

import os
import sys
import threading

from slicer import api
from slicer.cli import run, say
from slicer.errors import EX_OK, BusyError, SlicerError, UsageError
from slicer.gpu.observer import GpuObserver
from slicer.job import granting, scope
from slicer.job.launch import open_ledger
from slicer.job.plan import Invocation, needs_of, plan_of
from slicer.kernel import proc
from slicer.kernel.signals import block_interrupts, signal
from slicer.ledger import leasing
from slicer.ledger.leasing import CancelToken, Hooks, Requester
from slicer.model import manager_of
from slicer.text import command_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from slicer.model import Busy

VERSION = "1"
_MEANINGLESS = ("timeout", "linger", "outcome")  # they are about a command


class _Over(BaseException):
    """The program has closed our stdin, or somebody ends us."""


def perform(options: dict[str, Any], command: tuple[str, ...]) -> int:
    """Hold the lease that the options ask for until stdin ends; returns slicer's exit code."""
    parent = os.getppid()
    mask = block_interrupts() - {signal.SIGTERM}
    for signo in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # meant for the program, which may go on
        signal.signal(signo, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    try:
        _said("hello", protocol=int(VERSION), slicer=_version())
        _end_with_stdin()
        _hold(_invocation(options, command, parent), parent, mask, _Lines(options["verbosity"]))
    except _Over:
        return EX_OK
    except BusyError as failure:
        _said("busy", **say.busy_dict(failure.busy), waited=failure.waited_s or 0.0)
        return failure.exit_code
    except SlicerError as failure:
        where, hint = failure.where or None, failure.hint or None
        _said("error", error=failure.kind, message=failure.message, where=where, hint=hint)
        return failure.exit_code
    return EX_OK


def _hold(asked: Invocation, parent: int, mask: frozenset[int], lines: _Lines) -> None:
    environ = dict(os.environ)
    ledger = open_ledger(environ, lines, asked.backend)
    ledger.mask = mask
    ledger.patience_s = None if asked.wait else leasing.AT_ONCE_S
    try:
        plan = plan_of(asked, environ, ledger)
        if not plan.profile.gpus and not plan.profile.slots:
            raise UsageError("nothing to hold", hint="say --gpus, --vram, --cpu-slots or --slot")
        for warning in plan.config.warnings:
            lines.warning(warning)
        needs, observer = needs_of(plan), GpuObserver(plan.config.policy)
        who = Requester(
            os.urandom(6).hex(), scope.label(asked.name, asked.command), command_text(asked.command),
            "plain", manager_of(os.geteuid()), "", plan.outer.leases, plan.profile.name,
        )  # fmt: skip
        wanted = granting.prepare(plan.broker, who, needs, observer)
        ledger.patience_s = leasing.patience_s(needs)
        hooks = Hooks(lines.waiting, None, CancelToken(), lines.still_waiting)
        lease = api.take(wanted, plan.outer, ledger, hooks, plan.broker, parent)
    except BaseException:
        ledger.close()
        raise
    ledger.mask = None  # from here on the lease is the program's, and only the end of stdin is its end
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # stopped, it would not see that the program has ended
    try:
        lines.acquired(lease.held, lease.waited_s)
        _say_acquired(lease, environ)
        _until_over()
    finally:
        lease.release()


def _invocation(options: dict[str, Any], command: tuple[str, ...], parent: int) -> Invocation:
    """The request for that process. Raises UsageError."""
    if command:
        raise UsageError("starts no command", where="--protocol", hint="the lease is its caller's")
    for field in _MEANINGLESS:
        if options[field]:
            raise UsageError("cannot go with --protocol, which starts no command", where=f"--{field}")
    # It runs already: nothing is looked for in its PATH.
    shown = proc.command_line(parent) or (str(parent),)
    return Invocation(**run.fields(options, shown), hold=True, program=sys.executable)


# -- until when ------------------------------------------------------------------------------------------


def _stop(signo: int, frame: FrameType | None) -> None:
    raise _Over


_ended = threading.Event()  # stdin has


def _end_with_stdin() -> None:
    """From now on the end of stdin is a SIGTERM to us, which acts where we sleep."""

    def read() -> None:
        try:
            while os.read(0, 4096):  # says nothing in this version
                pass
        except OSError:
            pass  # as good as closed
        _ended.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="stdin", daemon=True).start()


def _until_over() -> None:
    """Sleep until the program closes our stdin. Only then it uses the lease no more: not at a SIGTERM."""
    while not _ended.is_set():
        signal.sigwait({signal.SIGTERM})


# -- what is said ----------------------------------------------------------------------------------------


class _Lines(say.Messages):
    """Tells the program in lines of JSON why it waits, and a person on stderr as ``slicer hold`` does."""

    _told: tuple[object, ...] = ()

    def waiting(self, busy: Busy) -> None:
        super().waiting(busy)
        self._tell(busy)

    def still_waiting(self, busy: Busy) -> float | None:
        self._tell(busy)
        return super().still_waiting(busy)

    def _tell(self, busy: Busy) -> None:
        known = busy.kind, busy.slot, tuple(lease.job for lease in busy.holders), busy.ahead, busy.why
        if known != self._told:
            self._told = known
            _said("waiting", **say.busy_dict(busy), ahead=busy.ahead)


def _say_acquired(lease: api.Lease, environ: dict[str, str]) -> None:
    made = lease.env
    _said(
        "acquired", job=lease.job, waited=round(lease.waited_s, 3), forced=lease.forced,
        nested=not lease.is_own, gpus=lease.gpus, gpu_indices=lease.gpu_indices, slots=lease.slots,
        environment={name: value for name, value in made.items() if environ.get(name) != value},
    )  # fmt: skip


def _said(event: str, **fields: Any) -> None:
    """One line on stdout. Raises _Over if nobody reads it any more."""
    import json

    left = json.dumps({"event": event, **fields}).encode() + b"\n"
    try:
        while left:
            left = left[os.write(1, left) :]
    except OSError:
        raise _Over from None


def _version() -> str:
    from slicer.version import __version__

    return __version__
