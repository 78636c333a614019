"""This host as a machine for its own tests: pytest over several worker processes, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.machines.host import ENVIRON, REPO, need_tools
from tests.machines.machine import Command, Result, communicate
from tests.machines.recipe import Suite

END_DEADLINE_S = 5.0


class Workers:
    """Runs commands on this host. They end with it, or with this process, by whatever cause."""

    kind = "host"

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Workers:
        need_tools({"setpriv": "util-linux"})
        return self

    def __exit__(self, *exc: object) -> None:
        """As after Ctrl-C: the tests that run may clean up."""
        if self._child is not None and self._child.poll() is None:
            self._signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(END_DEADLINE_S)
            self._signal(signal.SIGKILL)

    def execute(
        self, command: Command, *, timeout_s: float, on_output: Callable[[bytes], None] | None = None
    ) -> Result:
        """See Machine.execute."""
        pipe = subprocess.PIPE
        child = self._child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command.argv],
            cwd=REPO,
            env={**ENVIRON, **command.env},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        timed_out = threading.Event()

        def time_out() -> None:
            timed_out.set()
            self._signal(signal.SIGKILL)

        timer = threading.Timer(timeout_s, time_out)
        timer.start()
        try:
            stdout, stderr = communicate(child, command.input, on_output)
        finally:
            timer.cancel()
        return Result(command.argv, child.returncode, stdout, stderr, timed_out.is_set())

    def _signal(self, number: int) -> None:
        """Send it to pytest and its workers; what their tests started is the tests' to end."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def shell(self) -> int:
        raise NotImplementedError("this host has a shell already")

    def diagnosis(self) -> str:
        """See Machine.diagnosis."""
        return ""
