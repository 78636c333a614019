"""``slicer simjob``: a job that uses simulated GPUs the way a real one uses real GPUs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

import click

from slicer.cli import app
from slicer.cli.common import meant
from slicer.errors import SlicerError, UsageError
from slicer.gpu.sim.driver import simulated_gpus
from slicer.gpu.sim.job import LIBRARIES, MemoryPlan, Spike, demand_mib, next_step_s, oom_text, visible_gpus
from slicer.gpu.sim.usage import NoRoom, UsageFolder, Use
from slicer.kernel import proc
from slicer.kernel.signals import INTERRUPTS
from slicer.model import Gpu
from slicer.quantity import INFINITY, QuantityError, format_size, parse_duration, parse_mib, parse_size
from slicer.record import record, replace
from slicer.state import simulated, statedir

_T = TypeVar("_T")

_LONGEST_SLEEP_S = 3600.0  # time.sleep cannot take "infinity"
_SPIKE_S = 0.1
_FORCED_OOM_MIB = 2560  # what --oom claims to have requested
_CHUNK_BYTES = 1 << 16
_TEXT_LINE = b"simjob: the quick brown fox jumps over the lazy dog 0123456789\n"
_BINARY_LINE = b"simjob: \xff\xfe\x80\x00\xc3\x28 not UTF-8\n"


def _quantity(parse: Callable[[str], _T]) -> Callable[[click.Context, click.Parameter, str], _T]:
    """The callback of an option whose text ``parse`` converts; it may raise QuantityError."""
    return lambda _, param, text: meant(parse, text, param.opts[0])


def _finite_bytes(text: str) -> int:
    size = parse_size(text)
    if size == INFINITY:
        raise QuantityError("a finite size is required")
    return size


_mib = _quantity(lambda text: parse_mib(simulated.in_mib(text)))
_bytes = _quantity(_finite_bytes)
_seconds = _quantity(lambda text: parse_duration(text) / 1e6)


def _spike(ctx: click.Context, param: click.Parameter, text: str | None) -> Spike | None:
    if text is None:
        return None
    size, at, when = text.partition("@")
    start, plus, length = when.partition("+")
    if not at:
        expected = 'expected a size and a time such as "20G@2s" or "20G@2s+500ms"'
        raise click.BadParameter(f"{expected}, not {text!r}", ctx, param)
    length_s = _seconds(ctx, param, length) if plus else _SPIKE_S
    return Spike(_mib(ctx, param, size), _seconds(ctx, param, start), length_s)


@record
class SimOptions:
    vram: int  # MiB
    ramp: float  # seconds
    hold: float  # seconds
    spike: Spike | None
    exit_code: int
    oom: bool
    oom_once: str  # the path of the marker; "" for never
    oom_text: str
    host_memory: int  # MiB
    leak: bool
    leak_seconds: float
    ignore_sigterm: bool
    fork_away: bool
    utilisation: int  # percent
    print_every: float  # seconds; 0: never
    log_bytes: int
    binary: bool

    @property
    def plan(self) -> MemoryPlan:
        return MemoryPlan(self.vram, self.ramp, self.hold, self.spike)


@click.command(
    "simjob",
    epilog="""\
\b
Examples:
  export SLICER_SIM=2x24G
      Two simulated GPUs of 24 GiB each, for the following commands.
  slicer run --vram 8G -- slicer simjob --vram 6G --hold 30
      Uses 6 of the declared 8 GiB for half a minute.
  slicer run --gpus 1 -- slicer simjob --vram 20G --hold 9 --spike 30G@6
      Uses 20 GiB, and runs out of memory after 6 s.
  slicer run --vram 8G -- slicer simjob --vram 6G --leak
      Leaves a process behind, which slicer ends.

\b
Exit codes:
  The value of --exit-code, or 128+N from signal N, or
    1  out of memory, as with CUDA; the text is on stderr
    2  SLICER_SIM is not set, or the command line is wrong""",
)
@click.option("--vram", callback=_mib, default="0", metavar="SIZE", help="Peak on each GPU (8G, 500M).")
@click.option("--ramp", callback=_seconds, default="0.5", metavar="DURATION", help="Time to the peak. [0.5]")
@click.option("--hold", callback=_seconds, default="1", metavar="DURATION", help="Time at the peak. [1]")
@click.option("--spike", callback=_spike, metavar="SIZE@TIME[+DURATION]", help="Use more, for 100ms.")
@click.option("--utilisation", type=click.IntRange(0, 100), default=90, metavar="PERCENT", help="[90]")
@click.option("--exit-code", type=click.IntRange(0, 255), default=0, metavar="N", help="Exit with N. [0]")
@click.option("--oom", is_flag=True, help="Run out of GPU memory at once.")
@click.option("--oom-once", default="", metavar="MARKER", help="The same, unless the file exists; create it.")
@click.option(
    "--oom-text", type=click.Choice(LIBRARIES), default=LIBRARIES[0], help="Print its message. [pytorch]"
)
@click.option("--host-memory", callback=_mib, default="0", metavar="SIZE", help="Use this much main memory.")
@click.option("--leak", is_flag=True, help="Leave a process behind that keeps the GPU memory.")
@click.option("--leak-seconds", callback=_seconds, default="10", metavar="DURATION", help="How long. [10]")
@click.option("--ignore-sigterm", is_flag=True, help="Ignore SIGTERM.")
@click.option("--fork-away", is_flag=True, help="Work in a daemon (two forks and setsid), and exit 0.")
@click.option(
    "--print-every", callback=_seconds, default="0", metavar="DURATION", help="Print a line this often."
)
@click.option("--log-bytes", callback=_bytes, default="0", metavar="SIZE", help="Print this much first.")
@click.option("--binary", is_flag=True, help="Print bytes that are not UTF-8.")
def command(**options: object) -> int:
    """Use simulated GPU memory as a GPU job would, for a given time.

    SLICER_SIM describes the GPUs (4, 4x24G, 2x24G,1x80G). The job uses those in CUDA_VISIBLE_DEVICES, or
    without it the first. If one has no room, the job fails as CUDA does. A SIZE without a unit is in MiB
    (for --log-bytes in bytes), a DURATION without one in seconds.
    """
    job = SimOptions(**options)  # type: ignore[arg-type]
    text = os.environ.get(simulated.VARIABLE)
    if not text:
        raise UsageError(
            "there are no simulated GPUs",
            where="simjob",
            hint=f"set {simulated.VARIABLE}=2, or call it from a queue with --sim",
        )
    if job.spike is not None and job.spike.at_s >= job.plan.end_s:
        raise UsageError("the job ends before that", where="--spike", hint="give it a longer --hold")
    gpus = simulated_gpus(simulated.parse_spec(text))
    shown = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), gpus)
    if not shown and (job.vram or job.spike):
        raise SlicerError("no GPU is visible", where="CUDA_VISIBLE_DEVICES", hint="slicer run --vram SIZE")
    usage = UsageFolder(statedir.locate(os.environ, os.geteuid()).base, gpus)
    if not job.fork_away:
        return _run_job(job, Meter(usage, shown, job.utilisation))
    if os.fork():
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    os._exit(app.guarded(lambda: _run_job(job, Meter(usage, shown, job.utilisation))))


class Meter:
    """Records this process's use of the simulated GPUs."""

    def __init__(self, usage: UsageFolder, gpus: tuple[Gpu, ...], utilisation: int) -> None:
        self._usage = usage
        uuids = tuple(gpu.uuid for gpu in gpus)
        pid = os.getpid()
        self.use = Use(pid, proc.start_time(pid) or 0, utilisation, uuids, ())

    def now_uses(self, mib: int) -> NoRoom | None:
        """Use this much on each GPU, if there is room. Raises StateError."""
        mib_each = (mib,) * len(self.use.gpus)
        if not mib_each or mib_each == self.use.mib:
            return None
        wanted = replace(self.use, mib=mib_each)
        lacking = self._usage.allocate(wanted)
        if lacking is None:
            self.use = wanted
        return lacking

    def inherit(self) -> None:
        """In a forked child: take over the parent's use. Raises StateError."""
        before, pid = self.use, os.getpid()
        # An idle context: a leaked process computes nothing.
        self.use = replace(before, pid=pid, started=proc.start_time(pid) or 0, utilisation=0)
        if before.mib:
            self._usage.take_over(self.use, before)

    def close(self) -> None:
        """Free everything. Safe to repeat. Raises StateError."""
        self._usage.free(self.use)


def _run_job(job: SimOptions, meter: Meter) -> int:
    """Run the job from start to end. Returns its exit code. Raises SlicerError."""
    _on_signals(job, meter)
    if job.oom or (job.oom_once and _is_first(job.oom_once)):
        gpu = simulated_gpus((simulated.DEFAULT_MIB,))[0]
        _say_oom(job, NoRoom(gpu, min(_FORCED_OOM_MIB, gpu.memory_mib) // 2), _FORCED_OOM_MIB)
        return 1
    kept = b"\1" * (job.host_memory << 20)  # not zeros, for which the kernel would use no memory
    try:
        _print_log(job)
        if not _use_memory(job, meter):
            return 1
        if job.leak:
            _leak(job, meter)
    finally:
        meter.close()
    del kept
    return job.exit_code


def _on_signals(job: SimOptions, meter: Meter) -> None:
    """On a signal, free the memory and die of it."""

    def die(signo: int, frame: FrameType | None) -> None:
        meter.close()
        signal.signal(signo, signal.SIG_DFL)
        os.kill(os.getpid(), signo)

    for signo in INTERRUPTS:
        if signal.getsignal(signo) != signal.SIG_IGN:  # nohup, and a shell's background jobs
            signal.signal(signo, die)
    if job.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _use_memory(job: SimOptions, meter: Meter) -> bool:
    """Follow the plan; False if a GPU has no room."""
    began, at_s, printed_s = time.monotonic(), 0.0, 0.0
    plan = job.plan
    while True:
        before = meter.use.mib[0] if meter.use.mib else 0
        wanted = demand_mib(plan, at_s)
        lacking = meter.now_uses(wanted)
        if lacking is not None:
            _say_oom(job, lacking, wanted - before)
            return False
        if at_s >= plan.end_s:
            return True
        step_s = next_step_s(plan, at_s, time.monotonic() - began)
        while job.print_every and printed_s + job.print_every <= step_s:
            printed_s += job.print_every
            _sleep_until(began + printed_s)
            _print(f"simjob: {printed_s:.1f}s, {format_size(wanted << 20)}\n".encode())
        _sleep_until(began + step_s)
        at_s = step_s


def _sleep_until(moment: float) -> None:
    while (left_s := moment - time.monotonic()) > 0:
        time.sleep(min(left_s, _LONGEST_SLEEP_S))


def _leak(job: SimOptions, meter: Meter) -> None:
    """Fork a child that keeps the memory. Returns once the child has it."""
    reading, writing = os.pipe()

    def hold() -> None:
        meter.inherit()
        os.close(writing)
        try:
            _sleep_until(time.monotonic() + job.leak_seconds)
        finally:
            meter.close()

    if not os.fork():
        os._exit(app.guarded(hold))
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)


def _is_first(marker: str) -> bool:
    """Create the marker. Returns whether it was missing."""
    try:
        os.makedirs(os.path.dirname(marker) or ".", exist_ok=True)
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        return False
    except OSError as error:
        raise SlicerError(f"cannot be created: {error.strerror}", where=marker) from error
    return True


def _say_oom(job: SimOptions, lacking: NoRoom, wanted_mib: int) -> None:
    _print(f"{oom_text(job.oom_text, lacking, wanted_mib)}\n".encode(), fd=2)


def _print_log(job: SimOptions) -> None:
    line = _BINARY_LINE if job.binary else _TEXT_LINE
    if job.binary and not job.log_bytes:
        _print(line)
    chunk = line * (_CHUNK_BYTES // len(line))
    left = job.log_bytes
    while left:
        _print(chunk[:left])
        left -= len(chunk[:left])


def _print(data: bytes, fd: int = 1) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SlicerError(f"cannot be written: {error.strerror}", where="output") from error
