"""A slicer command that the live view starts, as if it had been typed."""

from __future__ import annotations

import os
import signal

from slicer.detach.starting import program
from slicer.errors import EX_SLICER
from slicer.text import one_line

_MOST = 4096  # bytes of what it says


class Child:
    """The running command. ``fd`` is readable when it says something, and when it has ended."""

    def __init__(self, *words: str, shows: bool = False) -> None:
        """Start ``slicer WORDS``. ``shows``: its output goes to the terminal, and only errors are kept."""
        self._what = f"slicer {words[0]}"
        self._said = b""
        self._pid = 0  # 0: it has ended
        self.fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        actions: list[tuple[object, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, write_fd, fd) for fd in ((2,) if shows else (1, 2))]
        command = (*program(), *words)
        try:
            self._pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
        except OSError as error:
            self._said = f"{self._what} cannot be started: {error.strerror}".encode()
        finally:
            os.close(write_fd)

    def end(self) -> tuple[int, str] | None:
        """None while it runs. Then its exit code, and the last line that it said."""
        try:
            while said := os.read(self.fd, _MOST):
                self._said = (self._said + said)[-_MOST:]
        except BlockingIOError:
            return None
        code = self._reap()
        lines = self._said.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return code, one_line(last) or (f"{self._what} failed (exit code {code})" if code else "")

    def kill(self) -> None:
        """End it at once, if it runs. Only for a command that changes nothing."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> int:
        os.close(self.fd)
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else EX_SLICER
