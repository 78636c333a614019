"""The standard library's ``signal`` without its enums, whose import costs 2 to 3 ms."""

from __future__ import annotations

from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal  # as a name that this module exports
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any
else:
    import _signal as signal

# Tells a keeper to stop its job, as systemctl stop would. The supervisor or ``slicer stop`` sends it.
STOP = signal.SIGRTMIN + 3

# Tells a keeper that its supervisor was continued. A SIGCONT would be lost among the keeper's own.
CONTINUED = signal.SIGRTMIN + 4

# With this, systemd tells a keeper to end its job (KillSignal= of the scope). Others ignore it by default.
SYSTEMD_STOPS = signal.SIGURG

# These end a program that does not handle them. They are blocked where no step may be interrupted half-way.
INTERRUPTS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})

# Users send these to slicer, but mean the job. SIGTSTP (Ctrl-Z) is one, because a command may ignore it.
FORWARDED = INTERRUPTS | {
    signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTSTP, signal.SIGALRM,
    signal.SIGWINCH, STOP,
}  # fmt: skip

SI_KERNEL = 0x80  # the si_code of a signal that no process sent

_GRACE_SHIFT = 7  # in the value of STOP, above the signal's number
LONGEST_GRACE_S = (1 << 24) - 2
_SI_QUEUE = -1
_SIGINFO = 128  # bytes
_PIDFD_SEND_SIGNAL = 424  # on every architecture

_before: frozenset[int] | None = None  # the mask from before the first block_interrupts()


def block_interrupts() -> frozenset[int]:
    """Block the interrupts. Returns the signal mask from before the first call.

    An exception from a signal handler can get lost in an import or an extension, together with the signal. So
    ``slicer run`` blocks signals from the first instant. It takes them where it sleeps, and later for the
    job.
    """
    global _before
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS))
    if _before is None:
        _before = mask
    return _before


def unblock_interrupts() -> None:
    """Undo :func:`block_interrupts`. Interrupts that came in the meantime act now."""
    if _before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _before)


def block_only_interrupts() -> None:
    """Block the signals of :func:`block_interrupts`, and otherwise only those that were blocked before it."""
    if _before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _before | INTERRUPTS)


class BlockedInterrupts:
    """Blocks the interrupts in this thread until the end of a ``with``, for a program with its own handlers.

    An interrupt that came in the meantime acts at the end: the ``with`` raises what the handler raises.
    Interrupts also act wherever the caller puts :attr:`mask` in force.

    If one thread blocks a signal, the kernel gives it to another, and Python still runs the handler in the
    first. So the handlers are wrapped: while signals are blocked, the signal is sent only to the first
    thread.
    """

    def __enter__(self) -> BlockedInterrupts:
        self.mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS))
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        for signo in INTERRUPTS - self.mask:
            handler = signal.getsignal(signo)
            if callable(handler):
                try:
                    signal.signal(signo, self._handle)
                except ValueError:
                    break  # handlers run only in the first thread
                self._handlers[signo] = handler
        return self

    def _handle(self, signo: int, frame: FrameType | None) -> None:
        if signo in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            signal.pthread_kill(get_ident(), signo)
        else:
            self._handlers[signo](signo, frame)

    def __exit__(self, *_: object) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        finally:
            for signo, handler in self._handlers.items():
                signal.signal(signo, handler)


class AllBlocked:
    """Blocks all signals until the end of a ``with``, in this thread and in those that it starts meanwhile.

    For libraries that start their own threads. A signal that the first thread blocks goes to any thread that
    does not block it. There a signal for which slicer waits is lost, and others end the program.
    """

    def __enter__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def send_stop(pidfd: int, signo: int = 0, grace_s: int | None = None) -> None:
    """Send STOP to a keeper, with the signal for the job's command and its grace. Raises OSError.

    Without them the profile's are meant. They travel as the value of sigqueue(3).
    """
    import ctypes
    import os
    import struct

    value = signo | (0 if grace_s is None else grace_s + 1 << _GRACE_SHIFT)
    info = struct.pack("3i4xiIQ", STOP, 0, _SI_QUEUE, os.getpid(), os.getuid(), value).ljust(_SIGINFO, b"\0")
    if ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_SEND_SIGNAL, pidfd, STOP, info, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def asked_by(info: signal.struct_siginfo) -> tuple[int, int | None]:
    """The signal and the grace that came with STOP; (0, None): it came without."""
    # siginfo has the value where that of SIGCHLD has the status. Python shows only that.
    value = info.si_status & 0xFFFFFFFF
    grace = value >> _GRACE_SHIFT
    return value & 0x7F, grace - 1 if grace else None


def timed_wait(signals: frozenset[int], timeout_s: float) -> Any:
    """``signal.sigtimedwait``: the signal that came, or None at the end of the time.

    If the time runs out while the process is stopped (SIGSTOP), CPython returns a value from its stack. That
    counts as None.
    """
    info = signal.sigtimedwait(signals, timeout_s)
    return info if info is not None and info.si_signo in signals else None


def pending(signals: frozenset[int]) -> Iterator[signal.struct_siginfo]:
    """Takes the blocked signals that have come."""
    while (info := timed_wait(signals, 0.0)) is not None:
        yield info


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 40`` for a signal without a name."""
    names = (name for name in dir(signal) if name.startswith("SIG") and name[3].isalpha())
    return next((name for name in sorted(names) if getattr(signal, name) == number), f"signal {number}")
