"""A command's output that goes elsewhere than slicer's own."""

from __future__ import annotations

import os


class Redirection:
    """The descriptors that the command gets as its stdout and stderr. Only the command is to keep them."""

    pid = 0  # nobody passes the output on

    def __init__(self, stdout: int, stderr: int) -> None:
        self.stdout = stdout
        self.stderr = stderr

    def handed_over(self) -> None:
        """The command has them. Close ours, so that a reader sees the end of file."""
        for fd in {self.stdout, self.stderr} - {1, 2}:
            os.close(fd)

    def finish(self) -> None:
        """Wait for nothing: the command wrote by itself."""
