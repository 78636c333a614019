"""The keeper's reports to the supervisor, and the meaning of exit statuses."""

from __future__ import annotations

import errno
import os

from slicer.errors import EX_NOT_EXECUTABLE, EX_NOT_FOUND, EX_TIMEOUT
from slicer.model import Usage
from slicer.record import record
from slicer.state import statefile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import EndedBy, Reason


@record
class KeeperReport:
    """A report on the command. It is final once only the keeper is left in the scope."""

    is_final: int
    reason: Reason
    status: int = 0  # as waitpid(2) encodes it; meaningless unless final
    exec_errno: int = 0  # why the command could not be executed; 0 if it could
    wall_s: float = 0.0
    leftovers: int = 0
    ended_by: EndedBy = ""


@record
class Exit:
    """How a command ended."""

    code: int  # slicer's exit code
    signal: int | None


@record
class Interventions:
    """Changes to a job while it ran, and the limits that were added then."""

    paused_s: float | None
    ended_by: EndedBy
    changed: tuple[str, ...] = ()
    changed_outside: tuple[str, ...] = ()
    enforced: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()


def exit_of(report: KeeperReport) -> Exit:
    """The exit as a shell would show it (128 + the signal), except for a time limit's own code."""
    if report.exec_errno:
        return Exit(EX_NOT_FOUND if report.exec_errno == errno.ENOENT else EX_NOT_EXECUTABLE, None)
    signo = os.WTERMSIG(report.status) if os.WIFSIGNALED(report.status) else None
    code = os.WEXITSTATUS(report.status) if signo is None else 128 + signo
    return Exit(EX_TIMEOUT if report.reason == "timeout" else code, signo)


def final_reason(decided: Reason | None, status: int | None, oom_kills: int | None) -> Reason:
    """Why a job ended. ``decided``: the reason, unless the command ended. ``status`` None: it runs. Pure.

    A kill for memory makes systemd stop the scope, so it outranks "stopped". A job that ran into its time
    limit had survived such a kill.
    """
    if decided != "timeout" and oom_kills and status != 0:
        return "oom-kill"
    if decided is not None:
        return decided
    return "signal" if status is not None and os.WIFSIGNALED(status) else "exited"


def killed_reason(oom_kills: int | None, wall_s: float, timeout_s: float | None) -> Reason:
    """Why a job ended that was killed together with its keeper, without a request to end before. Pure.

    A frozen keeper gets no signals. systemd kills it if it does not end after its time limit.
    """
    if oom_kills:
        return "oom-kill"
    return "timeout" if timeout_s is not None and wall_s >= timeout_s else "signal"


def pack(report: KeeperReport, usage: Usage) -> bytes:
    """One message. It is smaller than PIPE_BUF, so a pipe passes it whole."""
    return statefile.encode(report) + b"\0" + statefile.encode(usage) + b"\0"


def unpack(data: bytes) -> tuple[KeeperReport, Usage] | None:
    """The last whole message in ``data``. None: there is none."""
    parts = data.split(b"\0")[:-1]  # the rest after the last NUL is incomplete
    whole = len(parts) // 2 * 2
    if not whole:
        return None
    report, usage = parts[whole - 2 : whole]
    return statefile.decode(KeeperReport, report), statefile.decode(Usage, usage)
