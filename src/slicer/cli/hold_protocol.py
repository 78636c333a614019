"""``slicer hold --protocol 1``: a lease for the program that started this one, reported in lines of JSON.

The lease lasts until our stdin ends. So it ends with the program, however that ends. See docs/client.md.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from types import FrameType
from typing import Any

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
from slicer.ledger.leasing import CancelToken, Hooks
from slicer.model import Busy
from slicer.record import replace
from slicer.version import __version__

_OF_COMMANDS = ("timeout", "linger", "outcome")  # options for a command
_stdin_ended = threading.Event()


class _Over(BaseException):
    """The program has closed our stdin, or we were asked to end."""


def perform(options: dict[str, Any], command: tuple[str, ...]) -> int:
    """Hold the requested lease until stdin ends; returns slicer's exit code."""
    parent = os.getppid()
    mask = block_interrupts() - {signal.SIGTERM}
    for signo in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # meant for the program, which may go on
        signal.signal(signo, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    try:
        _say("hello", protocol=int(options["protocol"]), slicer=__version__)
        threading.Thread(target=_follow_stdin, daemon=True).start()
        _hold(_invocation(options, command, parent), parent, mask, _Messages(options["verbosity"]))
    except _Over:
        pass
    except BusyError as failure:
        _say("busy", **say.busy_dict(failure.busy), waited=round(failure.waited_s or 0.0, 3))
        return failure.exit_code
    except SlicerError as failure:
        _say("error", **say.error_dict(failure))
        return failure.exit_code
    return EX_OK


def _invocation(options: dict[str, Any], command: tuple[str, ...], parent: int) -> Invocation:
    wrong = [f"--{field}" for field in _OF_COMMANDS if options[field]] + ["a command"] * bool(command)
    if wrong:
        raise UsageError(f"starts no command, so it cannot be combined with {wrong[0]}", where="--protocol")
    shown = proc.command_line(parent) or (str(parent),)
    # The program runs already, so there is none to find.
    return Invocation(**run.fields(options, shown), hold=True, program=sys.executable)


def _hold(asked: Invocation, parent: int, mask: frozenset[int], messages: _Messages) -> None:
    ledger = open_ledger(os.environ, messages, asked.backend)
    ledger.mask = mask
    ledger.patience_s = None if asked.wait else leasing.AT_ONCE_S
    try:
        plan = plan_of(asked, dict(os.environ), ledger)
        if not plan.profile.gpus and not plan.profile.slots:
            raise UsageError("nothing to hold", hint="use --gpus, --vram, --cpu-slots or --slot")
        for warning in plan.config.warnings:
            messages.warning(warning)
        name = scope.label(asked.name, asked.command)
        who = leasing.of_process(name, asked.command, plan.outer, plan.profile.name)
        wanted = granting.prepare(plan.broker, who, needs_of(plan), GpuObserver(plan.config.policy))
        # The lease covers the program's memory, and `slicer stop` ends the program. We only wait for it.
        draft = replace(wanted.draft, pid=parent, pid_start=proc.start_time(parent) or 0)
        hooks = Hooks(messages.waiting, None, CancelToken(), messages.still_waiting)
        held, waited_s = api.take(replace(wanted, draft=draft), plan.outer, ledger, hooks, plan.broker)
    except BaseException:
        ledger.close()
        raise
    ledger.mask = None
    lease = api.Lease(held, plan.outer.leases, ledger, waited_s)
    lease.gpu_ids = plan.profile.gpu_ids
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # if stopped, it would miss the program's end
    try:
        messages.acquired(held.lease, waited_s)
        _say(
            "acquired", job=lease.job, waited=round(waited_s, 3), forced=lease.forced, gpus=lease.gpus,
            gpu_indices=lease.gpu_indices, slots=lease.slots, environment=lease.env,
        )  # fmt: skip
        while not _stdin_ended.is_set():  # a SIGTERM alone does not end it: the program still uses the lease
            signal.sigwait({signal.SIGTERM})
    finally:
        lease.release()


def _stop(signo: int, frame: FrameType | None) -> None:
    raise _Over


def _follow_stdin() -> None:
    """Turn the end of stdin into a SIGTERM to ourselves, which interrupts any sleep."""
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass  # treat it as closed
    _stdin_ended.set()
    os.kill(os.getpid(), signal.SIGTERM)


class _Messages(say.Messages):
    """Tells the program why it waits, and a person on stderr, like ``slicer hold``."""

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
            _say("waiting", **say.busy_dict(busy), ahead=busy.ahead)


def _say(event: str, **fields: Any) -> None:
    """Print one line on stdout. Raises _Over if the reader is gone."""
    left = json.dumps({"event": event, **fields}).encode() + b"\n"
    try:
        while left:
            left = left[os.write(1, left) :]
    except OSError:
        raise _Over from None
