"""A terminal with somebody at it: what is typed, what appears, its size."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping

from tests.patience import DEADLINE_S, Deadline
from tests.systemd.helpers.processes import pids, read

CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x04", "\x1a", "\x1c"
PROMPT = "ready> "
# Without the line editor, which would scroll long lines and mix escape sequences into the output.
BASH = ("bash", "--norc", "--noprofile", "--noediting", "-i")


class Terminal:
    """A command as the leader of a session on a new terminal. Use it as a context manager."""

    def __init__(self, *command: str, env: Mapping[str, str], cwd: str | os.PathLike[str] = "/") -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                os.execvpe(command[0], command, {"TERM": "xterm", **env, "PS1": PROMPT})
            finally:
                os._exit(127)
        self.resize(24, 80)
        self._code: int | None = None
        self._unread = ""
        self._hung_up = False
        self.seen = ""  # everything that has appeared so far

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def close(self) -> None:
        """Take the terminal away, as a closed window does."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def line(self, text: str) -> None:
        self.type(f"{text}\n")

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, text: str, deadline_s: float = DEADLINE_S) -> str:
        """What appeared up to and with ``text``, since the last call."""
        deadline = Deadline(deadline_s)
        while text not in self._unread:
            if not self._read(0.1) and (self._hung_up or deadline.has_passed()):
                seen = self._unread[-500:]
                raise AssertionError(
                    f"{text!r} did not appear; since the last expected: {seen!r}; {self._processes()}"
                )
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def _processes(self) -> list[str]:
        """The beginning of /proc/PID/stat, up to the terminal's group, of each process in its session."""
        stats = (read(pid, "stat").decode(errors="replace") for pid in pids())
        return [" ".join(stat.split()[:8]) for stat in stats if f" {self.pid} " in stat]

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], max(0.0, timeout_s))
        try:
            data = os.read(self.fd, 65536) if ready else b""
        except OSError:  # EIO: nobody has the other side open any more
            self._hung_up = True
            return False
        text = data.decode(errors="replace").replace("\r\n", "\n")
        self.seen += text
        self._unread += text
        return bool(data)

    def end(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the command's end and show the rest; its exit code, or minus its signal."""
        deadline = Deadline(deadline_s)
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                while self.fd >= 0 and self._read(0):
                    pass
                return self._code
            if deadline.has_passed():
                raise AssertionError(f"it did not end; seen: {self.seen[-500:]!r}")
            if self.fd < 0 or not self._read(0.05):
                time.sleep(0.01)
