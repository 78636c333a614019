"""Job control: Ctrl-Z, ``fg`` and other signals reach the command once, and the shell notices its stop.

The shell watches the supervisor, but the user stops and continues the command. A command may ignore Ctrl-Z,
or stop by itself (vim, less). So the supervisor never stops on its own: the keeper stops and continues it
together with the command.
"""

from __future__ import annotations

import os

from slicer.kernel import proc
from slicer.kernel.signals import CONTINUED, SI_KERNEL, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# The terminal sends these to its whole foreground process group, including the command.
_FROM_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH})

# Each undoes the other. A process that has both blocked has only the later one pending.
_UNDONE_BY: dict[int, int] = {signal.SIGCONT: signal.SIGTSTP, signal.SIGTSTP: signal.SIGCONT}


def passed_on(signo: int, code: int, sender: int, keeper: int, pending: Collection[int]) -> int:
    """The signal that the supervisor sends to the keeper at one that it took; 0: none.

    ``code`` and ``sender`` are the signal's si_code and si_pid; ``pending`` has the later signals. A late
    Ctrl-Z would stop a command that ``fg`` has continued; a late ``fg`` would continue a stopped one.
    """
    if sender == keeper:
        return 0
    if code == SI_KERNEL and signo in _FROM_TERMINAL:
        # It may have undone the group's SIGCONT before that was taken. So the keeper looks.
        return signal.SIGCHLD if signo == signal.SIGTSTP else 0
    if _UNDONE_BY.get(signo) in pending:
        return 0
    return CONTINUED if signo == signal.SIGCONT else signo


class Stops:
    """Decides who stops and continues with whom. Pure, and without a clock.

    ====================  =============================  =================================================
    event                 state                          then
    ====================  =============================  =================================================
    command changed       it stopped, or was continued   the supervisor follows it
    …                     continued by another than us   … and its own copy of the signal is expected
    supervisor continued  the command runs               nothing: SIGCONT could undo a Ctrl-Z on its way
    …                     stopped, a copy was expected   it is stopped again: Ctrl-Z came after ``fg``
    …                     stopped, none was expected     the command is continued
    supervisor: Ctrl-Z    stopped, a copy is expected    it is stopped: Ctrl-Z may have undone the copy
    ====================  =============================  =================================================

    The command is the witness. The kernel signals a group's processes one by one, the newest first, and may
    be interrupted in between. So ``fg`` has continued the command before the supervisor gets its copy. If
    another signal swallows the copy, or somebody continued the command alone, the next SIGCONT counts as it.
    """

    def __init__(self) -> None:
        self.is_stopped = False  # the command
        self.is_copy_expected = False
        self._is_ours = False  # the command's next continuation

    def command_changed(self, is_stopped: bool, has_shell: bool) -> None:
        """The command has stopped or continued. Only the last of several changes may have been seen."""
        if self.is_stopped or not is_stopped:  # it was continued, even if it has stopped again
            self.is_copy_expected, self._is_ours = has_shell and not self._is_ours, False
        self.is_stopped = is_stopped

    def supervisor_continued(self, is_outdated: bool) -> bool:
        """Whether the command is to be continued, too. ``is_outdated``: the supervisor stops again by now."""
        was_expected, self.is_copy_expected = self.is_copy_expected, False
        self._is_ours = self.is_stopped and not was_expected and not is_outdated
        return self._is_ours


class JobControl:
    """The keeper's part. ``supervisor`` is the supervisor's pid."""

    def __init__(self, supervisor: int) -> None:
        self._supervisor = supervisor
        self._stops = Stops()
        self._is_due = False  # a look at whether the supervisor has followed

    def command_changed(self, change: int) -> None:
        """The command has stopped or continued (waitid's CLD_ codes)."""
        self._stops.command_changed(change == os.CLD_STOPPED, _has_terminal())
        self._is_due = True

    def is_to_continue(self, was_continued: bool, still_runs: Callable[[], bool]) -> bool:
        """Whether to continue the command. If not, the supervisor follows it.

        ``was_continued``: the supervisor was, and not by us. ``still_runs`` looks at the command once more.
        """
        stops = self._stops
        self._is_due |= stops.is_stopped and (was_continued or stops.is_copy_expected)
        if was_continued and stops.supervisor_continued(proc.stops(self._supervisor)):
            return True
        if self._is_due:
            # At the supervisor first, because ``fg`` continues the command first. Stopped for a stop from
            # before ``fg``, the supervisor would leave the terminal to the shell.
            has_stopped = proc.stops(self._supervisor)
            if still_runs() and _has_terminal() and has_stopped != stops.is_stopped:
                # A SIGCONT too many could swallow the group's.
                self.tell_supervisor(signal.SIGSTOP if stops.is_stopped else signal.SIGCONT)
            self._is_due = False
        return False

    def tell_supervisor(self, signo: int) -> None:
        if os.getppid() == self._supervisor:
            proc.send(self._supervisor, signo)


def _has_terminal() -> bool:
    """Whether this session has a controlling terminal, and therefore a shell that watches for stops."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
