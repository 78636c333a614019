"""Restores the terminal's settings after a command that changed them was killed."""

from __future__ import annotations

import os
import termios

from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Settings:
    """The present settings of the terminal behind ``fd``."""

    def __init__(self, fd: int) -> None:
        """Raises termios.error if it is not a terminal."""
        self._fd = fd
        self._kept: list[Any] = termios.tcgetattr(fd)

    def restore(self) -> None:
        """Put them in force again, unless another process owns the terminal by now."""
        # A shell puts its own process group in the foreground. When the shell is dead, its group still is.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if _is_ours(os.tcgetpgrp(self._fd)):
                os.tcsetpgrp(self._fd, os.getpgrp())
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._kept)
        except (OSError, termios.error):
            pass  # the terminal no longer exists
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def remembered() -> Settings | None:
    """The settings of our terminal; None without a terminal, or if another group is in its foreground."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(fd) == os.getpgrp():
            return Settings(fd)
    except (OSError, termios.error):
        pass  # the terminal is being removed
    os.close(fd)
    return None


def _is_ours(group: int) -> bool:
    """Whether a foreground process group is our own, or a leftover of a job."""
    if group == os.getpgrp():
        return True
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
