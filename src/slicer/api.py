"""``import slicer``: a lease for a part of a program, instead of a whole command.

    with slicer.acquire("train", gpus=1, vram="8G", expected_seconds=900, wait=True) as lease:
        os.environ.update(lease.env)
        ...

The lease belongs to this process. It ends with the ``with``, with the process, and with ``kill -9``. Inside
a job of ``slicer run`` that already holds what is requested, and inside another ``with``, nothing more is
taken.

It imports nothing outside the standard library, except the driver's library if GPUs are needed.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import sys

from slicer.api_arguments import Arguments, check, needs_of
from slicer.backend import broker_socket, has_systemd
from slicer.config import profiles
from slicer.errors import BusyError
from slicer.gpu.observer import GpuObserver
from slicer.gpu.ordinals import numbered
from slicer.job import granting, plan, scope, words
from slicer.kernel import proc
from slicer.kernel.signals import BlockedInterrupts
from slicer.ledger import leasing
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.leasing import CancelToken, Hooks, PreparedRequest
from slicer.ledger.ledger import Ledger
from slicer.model import CPU, LEASE_VARIABLE
from slicer.outcome import journal
from slicer.placement.decision import expected_remaining, first_to_finish
from slicer.record import record, replace
from slicer.state import statedir
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from slicer import model
    from slicer.ledger.nesting import OuterJobs
    from slicer.model import Busy, Then

# The leases acquired in this context. Some may have ended: only those that are still held count.
inside: contextvars.ContextVar[tuple[Lease, ...]] = contextvars.ContextVar("slicer_leases", default=())


@record
class Holder:
    """A job that holds what was requested. Times in seconds; ``job`` is its id, as in ``slicer status``."""

    job: str
    name: str
    pid: int
    unit: str
    command: str
    held_for: float
    expected_remaining: float | None  # by its own estimate; 0: overdue; None: it made none


class ResourceBusy(Exception):
    """Others hold what was requested. ``holder`` is the one that is expected to finish first.

    It is None if only processes outside slicer, or earlier requests, are in the way.
    """

    def __init__(self, busy: Busy) -> None:
        now_s = proc.now_s()
        lease = first_to_finish(busy.holders, now_s)
        self.holder: Holder | None = None
        text = f"{busy.slot or busy.kind} is busy"
        if lease is not None:
            left_s = expected_remaining(lease, now_s)
            self.holder = Holder(
                lease.job, lease.name or lease.command, lease.pid, lease.unit, lease.command,
                now_s - lease.since_s, left_s,
            )  # fmt: skip
            text += f": held by {self.holder.name} (pid {lease.pid})"
        super().__init__(text)

    def expected_remaining(self) -> float | None:
        """Seconds that the holder should still need; None if unknown."""
        return self.holder.expected_remaining if self.holder is not None else None


class GpuBusy(ResourceBusy):
    """No GPU is free, or none has enough free memory."""


class CpuBusy(ResourceBusy):
    """No CPU slot is free."""


class SlotBusy(ResourceBusy):
    """No slot with another name is free; ``slot`` is that name."""

    def __init__(self, busy: Busy) -> None:
        super().__init__(busy)
        self.slot = busy.slot


_BUSY: dict[model.Resource, type[ResourceBusy]] = {"gpu": GpuBusy, "cpu": CpuBusy, "slot": SlotBusy}


class Lease:
    """A lease; a context manager that gives it back, as :meth:`release` does (safe to repeat)."""

    def __init__(
        self, held: HeldLease, outer: tuple[model.Lease, ...], ledger: Ledger, waited_s: float
    ) -> None:
        self._held = held
        self.is_own = held.fd >= 0  # otherwise outer jobs hold it
        self._ledger = ledger
        self._outer = outer
        self._pid = os.getpid()
        self._is_given_back = False
        self.job = held.lease.job
        self.waited_s = waited_s
        self.gpus = tuple(dict.fromkeys((*(uuid for one in outer for uuid in one.gpus), *held.lease.gpus)))
        self.gpu_indices = held.lease.gpu_indices if self.gpus == held.lease.gpus else ()
        self.gpu_ids: model.GpuIds = "uuid"
        self.slots = dict(held.lease.slots)
        self.cpu_slots = self.slots.get(CPU, 0)
        self.forced = bool(held.lease.forced)  # it was not free, and max_wait was over

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for the user of the lease: this process, before CUDA starts, or a child.

        ``CUDA_VISIBLE_DEVICES`` holds the UUIDs of the GPUs, ``SLICER_GPU_INDICES`` CUDA's numbers of them.
        Children that call slicer know that they run under this lease.
        """
        jobs = [one.job for one in self._outer]
        if self.is_own:
            jobs.append(self.job)
        shown = {**scope.visible_gpus(self.gpus), LEASE_VARIABLE: ",".join(jobs)}
        return numbered(shown, self.gpu_ids, leasing.indices((*self._outer, self._held.lease)))

    def _jobs_held(self) -> tuple[str, ...]:
        """The ids of what this process holds by it: no thread, task or parent has given that back."""
        if self._is_given_back:
            return ()
        if not self.is_own:
            return tuple(one.job for one in self._outer) if os.getpid() == self._pid else ()
        fd = self._held.fd
        is_locked = "FLOCK" in proc.read_text(f"/proc/self/fdinfo/{fd}")
        is_there = self._held.is_record or os.fstat(fd).st_nlink > 0
        return (self.job,) if is_locked and is_there else ()

    def release(self) -> None:
        """Give everything back."""
        if self._is_given_back:
            return
        self._is_given_back = True
        if os.getpid() != self._pid:  # a forked child: the lease is its parent's
            self._held.close()
            self._ledger.close()
            return
        inside.set(tuple(one for one in inside.get() if one is not self))
        self._held.release()
        self._ledger.close()
        lease = self._held.lease
        if self.is_own and not self._held.is_outlived:
            _tell("released", lease, words.released(lease, proc.now_s()))
        atexit.unregister(self.release)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(
    name: str = "",
    *,
    gpus: int = 1,
    vram: str | None = None,
    gpu: Sequence[int | str] | int | str | None = None,
    margin: str | None = None,
    cpu_slots: int = 0,
    slots: Mapping[str, int] | None = None,
    priority: int = 0,
    expected_seconds: float | None = None,
    wait: bool = False,
    max_wait: float | None = None,
    then: Then | None = None,
) -> Lease:
    """Take GPUs and slots, all at once, for this process.

    ``gpus`` is the number of whole GPUs. With ``vram`` ("8G"), it takes that much of each, shared with
    others, and ``margin`` of each is kept free beyond that. ``gpu`` lists the acceptable GPUs, by index or
    UUID. ``slots`` maps the names of slots to numbers; ``cpu_slots=1`` is ``slots={"cpu": 1}``. Unless
    ``wait``, it raises :class:`GpuBusy`, :class:`CpuBusy` or :class:`SlotBusy` at once if something is not
    free. After waiting for ``max_wait`` seconds, ``then="fail"`` raises it, too, and ``then="run"`` (the
    default if only CPU slots are requested) returns a lease that is marked ``forced``. ``priority`` is from
    -100 to 100, highest first.

    Raises ValueError for invalid arguments, slicer.SlicerError for all other failures: a request that this
    machine could never grant, no GPU driver, a broken configuration.
    """
    arguments = Arguments(
        name, gpus, vram, gpu, margin, cpu_slots, slots, priority, expected_seconds, wait, max_wait, then
    )  # fmt: skip
    made: list[Lease] = []
    try:
        with BlockedInterrupts() as blocked:  # they act during the wait, and once there is a lease to release
            made.append(entered(obtain(arguments, inside.get(), CancelToken(), blocked.mask)))
    except BaseException:
        for lease in made:
            lease.release()
        raise
    return made[0]


def obtain(
    arguments: Arguments, around: tuple[Lease, ...], cancel: CancelToken, mask: frozenset[int] | None = None
) -> Lease:
    """:func:`acquire`, in any thread. ``around``: the leases acquired in the caller's context.

    ``mask`` is the signal mask to sleep with; None: unchanged.
    """
    check(arguments)
    environ = dict(os.environ)
    ledger = Ledger(statedir.locate(environ, os.geteuid()), _warn)
    ledger.mask = mask
    try:
        config = profiles.load(environ, profiles.host())
        known = [job for one in around for job in one._jobs_held()]
        outer = plan.outer_jobs(environ, ledger, in_scopes=has_systemd(), known=known)
        needs = needs_of(arguments, config, outer, environ)
        who = leasing.of_process(arguments.name, tuple(sys.orig_argv), outer)
        ledger.broker_now = lambda: broker_socket(environ)
        broker = ledger.broker_now()
        wanted = granting.prepare(broker, who, needs, GpuObserver(config.policy))
        try:
            held, waited_s = take(wanted, outer, ledger, Hooks(_nothing, None, cancel), broker)
        except BusyError as error:
            raise _BUSY[error.busy.kind](error.busy) from None
        return Lease(held, outer.leases, ledger, waited_s)
    except BaseException:
        ledger.close()
        raise


def take(
    wanted: PreparedRequest, outer: OuterJobs, ledger: Ledger, hooks: Hooks, broker: str
) -> tuple[HeldLease, float]:
    """The lease that was prepared, and the seconds of the wait. Tells the journal.

    Raises as :func:`slicer.job.granting.obtain`.
    """
    ledger.patience_s = leasing.patience_s(wanted.needs)
    try:
        return _take(wanted, outer, ledger, hooks, broker)
    finally:
        wanted.observer.close()


def _take(
    wanted: PreparedRequest, outer: OuterJobs, ledger: Ledger, hooks: Hooks, broker: str
) -> tuple[HeldLease, float]:
    if wanted.needs.is_nothing:
        nested = HeldLease(ledger, leasing.nested_lease(wanted.draft, outer))
        if broker and ledger.joined:  # it holds them there, too
            nested.gives_back = granting.obtain(broker, wanted, ledger, hooks, "process").release
        return nested, 0.0
    told, tell = hooks.waits, _tell_wait(wanted)

    def waits(busy: Busy) -> None:
        told(busy)
        tell(busy)
        if told_of := granting.told_of_ancestors(busy, wanted.draft.pid):
            _warn(told_of)

    held = granting.obtain(broker, wanted, ledger, replace(hooks, waits=waits), "process")
    ledger.patience_s = None  # giving back must succeed, however long it takes
    held.do_postponed()
    held.do_postponed_slow()
    waited_s = max(0.0, proc.now_s() - wanted.ticket.arrived_s)
    _tell("acquired", held.lease, words.acquired(held.lease, waited_s), waited_s=round(waited_s, 3))
    return held, waited_s


def entered(lease: Lease) -> Lease:
    """Register the lease in the context in which it was acquired."""
    inside.set((*inside.get(), lease))
    atexit.register(lease.release)
    return lease


def _nothing(busy: Busy) -> None:
    pass


def _tell_wait(wanted: PreparedRequest) -> Callable[[Busy], None]:
    """A callback that tells the journal that the request waits, and for whom."""

    def tell(busy: Busy) -> None:
        text = f"waiting for {words.describe_busy(busy, proc.now_s(), in_public=True)}"
        holder = ", ".join(lease.unit or lease.job for lease in busy.holders)
        _tell("waiting", wanted.draft, text, holder=holder, ahead=busy.ahead)

    return tell


def _tell(kind: journal.Kind, lease: model.Lease, text: str, **fields: str | float) -> None:
    # Use the script's name without its arguments: more people than its owner may read this.
    name = scope.label(lease.name, tuple(sys.argv) or ("python",))
    journal.event(
        kind, job=lease.job, name=name, manager=lease.manager, message=f"{visible(name)}: {text}",
        fields={**journal.about(lease), **fields},
    )  # fmt: skip


def _warn(text: str) -> None:
    import warnings

    warnings.warn(text, RuntimeWarning, stacklevel=2)
