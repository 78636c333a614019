"""The kinds of errors. Each says what was wrong, where, and what to do, and has an exit code."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from slicer.model import Busy

    NoGpuReason = Literal[
        "no-pynvml", "no-library", "no-driver", "driver-mismatch", "no-devices", "permission", "fenced"
    ]

EX_OK = 0
EX_PROBLEM = 1  # of a command that checks: it has found one
EX_USAGE = 2
EX_TEMPFAIL = 75
EX_TIMEOUT = 124
EX_SLICER = 125
EX_NOT_EXECUTABLE = 126
EX_NOT_FOUND = 127


class SlicerError(Exception):
    """slicer itself could not do what was requested.

    ``message`` says what was wrong, ``where`` names the place (file:line:column, an option, a path), ``hint``
    says what the user can do. ``kind`` is the stable word for ``--json`` and the journal.
    """

    exit_code = EX_SLICER
    kind = "error"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{hint}"


class UsageError(SlicerError):
    """Something on the command line is invalid."""

    exit_code = EX_USAGE
    kind = "usage"


class ConfigError(SlicerError):
    """A configuration file cannot be read or is invalid."""

    kind = "config"


class UnknownProfile(UsageError):
    kind = "unknown-profile"


class InfeasibleError(UsageError):
    """Not even an empty machine could serve the request, so waiting would never end."""

    kind = "infeasible"


class NotAllowedError(InfeasibleError):
    """The administrator's policy forbids the request, however long it waits."""

    kind = "not-allowed"


class TooLargeError(InfeasibleError):
    """No destination of the route takes the job."""

    kind = "too-large"


class StateError(SlicerError):
    """The state directory cannot be used, or contains something that slicer must not trust."""

    kind = "state"


class LedgerGone(StateError):
    """The ledger was removed with all its contents while it was in use."""

    def __init__(self, path: str) -> None:
        super().__init__("was removed while it was in use", where=path, hint="try again")


class LedgerLost(StateError):
    """The ledger was deleted, and jobs that held leases in it still run (exit code 75)."""

    exit_code = EX_TEMPFAIL
    kind = "ledger-lost"

    def __init__(self, path: str, holders: Sequence[int]) -> None:
        shown = ", ".join(map(str, holders[:4])) + (", …" if len(holders) > 4 else "")
        hint = "let them end; `slicer doctor` knows what may delete a ledger"
        super().__init__(f"was deleted under jobs that still run (pid {shown})", where=path, hint=hint)


class LedgerBusy(StateError):
    """Another process keeps the ledger's lock (exit code 75). ``pid`` 0: it is unknown which one.

    ``is_in_turn``: many processes take turns with the lock, so none of them is to blame.
    """

    exit_code = EX_TEMPFAIL
    kind = "ledger-busy"

    def __init__(self, path: str, pid: int, waited_s: float, *, is_in_turn: bool = False) -> None:
        if is_in_turn:
            message = f"other processes have taken turns with the lock for {waited_s:.0f} s"
            super().__init__(message, where=path, hint="many jobs start at once: try again")
            return
        who = f"pid {pid}" if pid else "another process"
        hint = f"is it stopped? see ps -p {pid}" if pid else "see lslocks"
        super().__init__(f"{who} has held the lock for {waited_s:.0f} s", where=path, hint=hint)


class BrokerError(StateError):
    """The broker exists but does not work (exit code 75). No resource under its control may be taken."""

    exit_code = EX_TEMPFAIL
    kind = "broker"


class TooManyError(StateError):
    """The user has as many waiting requests, or connections, as the broker allows (exit code 75)."""

    exit_code = EX_TEMPFAIL
    kind = "too-many"


class ProbeError(SlicerError):
    """The input of a route's job could not be found or measured. ``input`` is "" if none was found."""

    kind = "probe"
    input = ""


class BackendError(SlicerError):
    """systemd (or the plain backend) refused or failed."""

    kind = "backend"


class RefusedError(BackendError):
    """systemd refused this particular job. Repeating the request would not help."""


class GoneError(BackendError):
    """The broker has no such job of ours, or no longer."""


class KeeperEnded(BackendError):
    """The job's keeper was ended before the command could start: by systemctl stop, or by the kernel."""


class BusyError(SlicerError):
    """Others hold what was requested, and the caller does not wait, or no longer. Exit code 75.

    ``waited_s`` is the length of the wait in seconds; None if there was none.
    """

    exit_code = EX_TEMPFAIL

    def __init__(self, busy: Busy, *, waited_s: float | None = None) -> None:
        hint = "run without --no-wait to queue up" if waited_s is None else "raise max_wait to wait longer"
        super().__init__(f"{busy.slot or busy.kind} is busy", hint=hint)
        self.busy = busy
        self.waited_s = waited_s
        self.kind = f"{busy.kind}-busy"


class RequestCancelled(SlicerError):
    """The request was taken out of the queue with ``slicer stop`` (exit code 143)."""

    exit_code = 128 + 15  # the same as of a running job that is ended
    kind = "cancelled"

    def __init__(self) -> None:
        super().__init__("taken out of the queue (slicer stop)")


class DeadlockError(SlicerError):
    """The request would wait for jobs that wait for what its outer jobs hold (exit code 75)."""

    exit_code = EX_TEMPFAIL
    kind = "deadlock"


class CannotExecute(SlicerError):
    """The command exists but cannot be executed (exit code 126)."""

    exit_code = EX_NOT_EXECUTABLE
    kind = "cannot-execute"


class CommandNotFound(SlicerError):
    """There is no such command (exit code 127)."""

    exit_code = EX_NOT_FOUND
    kind = "command-not-found"


class GpuError(SlicerError):
    """The driver failed to report about a GPU that exists."""

    kind = "gpu"


class NoGpu(GpuError):
    """No GPU can be used here. ``reason`` is a stable word."""

    kind = "no-gpu"

    def __init__(self, reason: NoGpuReason, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
