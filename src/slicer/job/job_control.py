"""Job control: Ctrl-Z, ``fg`` and other signals reach the command once, and the shell notices its stop.

The shell watches the supervisor, but the user stops and continues the command. A command may ignore Ctrl-Z,
or stop by itself (vim, less). So the supervisor never stops on its own: the keeper stops and continues it
together with the command.
"""

from __future__ import annotations

import os
import time

from slicer.kernel import proc
from slicer.kernel.signals import SI_KERNEL, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

# The terminal sends these to its whole foreground process group, including the command.
_FROM_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH})

# Each undoes the other. A process that has both blocked has only the later one pending.
_UNDONE_BY: dict[int, int] = {signal.SIGCONT: signal.SIGTSTP, signal.SIGTSTP: signal.SIGCONT}


def is_for_keeper(signo: int, code: int, sender: int, keeper: int, pending: Collection[int]) -> bool:
    """Whether the supervisor passes a signal on to the keeper.

    ``code`` and ``sender`` are the signal's si_code and si_pid; ``pending`` has the later signals. A late
    Ctrl-Z would stop a command that ``fg`` has continued; a late ``fg`` would continue a stopped one.
    """
    if sender == keeper or (code == SI_KERNEL and signo in _FROM_TERMINAL):
        return False
    return _UNDONE_BY.get(signo) not in pending


class JobControl:
    """The keeper's part. ``supervisor`` is the supervisor's pid, -1 if none follows the command."""

    def __init__(self, supervisor: int) -> None:
        self._supervisor = supervisor
        self._is_stopped = False  # the command
        self.stopped_at = 0.0  # monotonic: when that was last seen

    def command_changed(self, change: int) -> None:
        """The command has stopped or continued (waitid's CLD_ codes). The supervisor follows it."""
        self._is_stopped = change == os.CLD_STOPPED
        if self._is_stopped:
            self.stopped_at = time.monotonic()
        if _has_terminal():
            self.tell_supervisor(signal.SIGSTOP if self._is_stopped else signal.SIGCONT)

    def is_to_continue(self) -> bool:
        """Whether to continue the command, too, now that the supervisor was continued.

        A running command is left alone, because SIGCONT would undo a Ctrl-Z on its way. The message from a
        supervisor that has been stopped again is out of date.
        """
        return self._is_stopped and not proc.stops(self._supervisor)

    def stop_again(self) -> None:
        """Stop the supervisor, which was continued with its whole group, if the command is stopped.

        The kernel signals a group's processes one by one, and may be interrupted in between. Then Ctrl-Z can
        stop the command before the supervisor, the last of the group, gets the SIGCONT from ``fg``.
        """
        if self.is_to_continue():
            self.tell_supervisor(signal.SIGSTOP)

    def tell_supervisor(self, signo: int) -> None:
        if os.getppid() == self._supervisor:
            try:
                os.kill(self._supervisor, signo)
            except (ProcessLookupError, PermissionError):
                pass


def _has_terminal() -> bool:
    """Whether this session has a controlling terminal, and therefore a shell that watches for stops."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
