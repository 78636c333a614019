"""The terminal's settings, to be restored when a command has changed them and was killed."""

from __future__ import annotations

import os
import termios

from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Settings:
    """The settings of the terminal behind ``fd``, as they are now."""

    def __init__(self, fd: int) -> None:
        """Raises termios.error where it is none."""
        self._fd = fd
        self._kept: list[Any] = termios.tcgetattr(fd)

    def restore(self) -> None:
        """Put them in force again, unless somebody else has the terminal by now."""
        # A shell makes a process group of its own the foreground. When it is dead, its group still is.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if _is_ours(os.tcgetpgrp(self._fd)):
                os.tcsetpgrp(self._fd, os.getpgrp())
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._kept)
        except (OSError, termios.error):
            pass  # it has gone away
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def remembered() -> Settings | None:
    """The settings of our terminal; None where there is none, or others are in its foreground."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(fd) == os.getpgrp():
            return Settings(fd)
    except (OSError, termios.error):
        pass  # it is going away
    os.close(fd)
    return None


def _is_ours(group: int) -> bool:
    """Whether a foreground process group is our own, or what a job has left."""
    if group == os.getpgrp():
        return True
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
