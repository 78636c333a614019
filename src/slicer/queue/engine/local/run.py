"""The run of one attempt, in the process that the queue has forked for it: an ordinary ``slicer run``.

It asks for its lease like any other, starts its scope, and waits for the queue's word, which comes when the
register is on the disk. From then on it needs no queue.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import time
from typing import TYPE_CHECKING

from slicer import faults
from slicer.errors import SlicerError
from slicer.job import launch, words
from slicer.job.following import RemoteFollower, Teller
from slicer.job.gpu_use import Escaped, Exceeded
from slicer.kernel import proc
from slicer.kernel.open_files import close_all_but
from slicer.kernel.signals import INTERRUPTS, STOP, block_interrupts, signal
from slicer.queue.state.attempt import Attempt
from slicer.record import as_dict, record, replace

if TYPE_CHECKING:
    from slicer.job.gpu_use import Found, GpuUse
    from slicer.job.plan import Plan
    from slicer.ledger.leasing import PreparedRequest
    from slicer.ledger.ledger import Ledger
    from slicer.model import Busy, Lease

_COMM = b"slicer-run"
_TELL_S = 1.0  # between two tellings of the same use


def preload() -> None:
    """Import what every run needs, once for all."""
    from slicer.job import command, ending, job_control, keeper, report, stop_rule, supervisor, watching
    from slicer.kernel import cgroup
    from slicer.ledger import waiting, watch
    from slicer.outcome import history, journal
    from slicer.placement import decision, order

    del cgroup, command, decision, ending, job_control, journal, keeper, order, report, stop_rule, supervisor
    del waiting, watch, watching
    history.preload()


def preload_gpus() -> None:
    """The same for a run with GPUs."""
    from slicer.gpu import attribution, device_nodes, ordinals, snapshot
    from slicer.job import gpu_leftovers, gpu_watch

    del attribution, device_nodes, gpu_leftovers, gpu_watch, ordinals, snapshot


class Withdrawn(BaseException):
    """The queue does not want the job any more, or is dead."""


@record
class RunOrder:
    """What the queue wants to be run."""

    job: str  # its id
    plan: Plan  # with its directory and log
    arrived_s: float  # of its request, by the ledger's clock
    ahead_of: str  # as in PreparedRequest
    starts_late: bool  # its scope starts with its command


def be_run(
    order: RunOrder, connection: socket.socket, ledger: Ledger, attempts: int, logs: int,
    mask: frozenset[int], limits: tuple[int, int],
) -> None:  # fmt: skip
    """The forked process. ``attempts``, ``logs``: directories; ``mask``, ``limits``: for the command."""
    gc.disable()  # collecting would copy the pages that all runs share
    os.setsid()  # Ctrl-C and Ctrl-Z at the queue's terminal are for the queue
    block_interrupts()  # as in slicer run: they are taken in sleeps, and later for the job
    signal.pthread_sigmask(signal.SIG_BLOCK, {STOP})
    for signo in (*INTERRUPTS, signal.SIGCONT, signal.SIGWINCH):
        signal.signal(signo, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    close_all_but((connection.fileno(), attempts, logs, *ledger.descriptors()))
    ledger.after_fork()
    with open("/proc/self/comm", "wb", buffering=0) as comm:
        comm.write(_COMM)
    proc.retitle(f"slicer run: {order.plan.invocation.name}")  # who ends the queue by its title spares it
    faults.point("run-forked")
    teller = Teller(connection)
    signal.signal(signal.SIGTERM, _withdraw)
    teller.signals(signal.SIGTERM)
    invocation = replace(
        order.plan.invocation,
        attempt=Attempt(attempts, order.job, logs, os.path.basename(order.plan.invocation.log)),
    )
    told = _ToQueue(teller)

    def ask(wanted: PreparedRequest) -> PreparedRequest:
        told.wanted = wanted
        ticket = replace(wanted.ticket, arrived_s=order.arrived_s)
        return replace(wanted, ticket=ticket, ahead_of=order.ahead_of)

    try:
        if teller.is_alone():
            return
        plan = replace(order.plan, invocation=invocation)
        follower = _Follower(teller, starts_late=order.starts_late)
        launch.run_planned(order.job, plan, ledger, told, mask, follower, ask)
    except SlicerError as error:
        teller.fail(error)
    except Withdrawn:
        return


def _withdraw(signo: int, frame: object) -> None:
    raise Withdrawn


class _ToQueue:
    """What the run says to people goes to the queue."""

    wanted: PreparedRequest | None = None

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._why: str | None = None  # unsaid

    def notice(self, text: str) -> None:
        if self.wanted is None or text not in self.wanted.observer.notes:  # those are for single jobs
            self._teller.tell("notice", text=text)

    def warning(self, text: str) -> None:
        self._teller.tell("warning", text=text)

    def waiting(self, busy: Busy) -> None:
        self.still_waiting(busy)

    def still_waiting(self, busy: Busy) -> float | None:
        why = words.describe_busy(busy, proc.now_s(), in_public=True, is_brief=True)
        if why != self._why:
            self._why = why
            self._teller.tell("waiting", why=why)
        return None

    def acquired(self, lease: Lease, waited_s: float) -> None:
        """Nothing: the follower hears more."""


class _Follower(RemoteFollower):
    """Also hears how the job uses its GPUs."""

    _told: object = None
    _tell_at = 0.0  # monotonic

    def used(self, use: GpuUse, *, is_last: bool = False) -> None:
        known = use.now_mib, use.peak_mib
        if not is_last and known == self._told and time.monotonic() < self._tell_at:
            return
        self._told, self._tell_at = known, time.monotonic() + _TELL_S
        self._teller.tell("used", **as_dict(use))

    def found(self, news: Found) -> bool:
        if isinstance(news, Escaped):
            self._teller.tell("escaped", **as_dict(news))
        elif isinstance(news, Exceeded):
            self._teller.tell("exceeds", **as_dict(news))
        else:
            text = news.words()
            self._teller.tell("idle", what=news.kind, text=text, idle_s=news.idle_s, left_s=news.left_s)
        return True
