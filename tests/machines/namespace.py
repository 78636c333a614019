"""The namespace machine: systemd in namespaces of the host's kernel, at native speed. Root only."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict

from tests.machines import checkout, image
from tests.machines.guard import Plan
from tests.machines.host import (
    ENVIRON,
    NAMESPACE_TOOLS,
    REPO,
    MachineError,
    Unavailable,
    as_root,
    need_tools,
    tail,
)
from tests.machines.machine import PATH, Command, Result, communicate
from tests.machines.recipe import Suite
from tests.machines.tether import end_tethered

BOOT_DEADLINE_S = 60.0
END_DEADLINE_S = 20.0
_SPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd=/")


class NamespaceMachine:
    """A booted namespace machine with this checkout at /src (read-only) and, unless `bare`, slicer installed.

    Entering it raises Unavailable where this host cannot have one, MachineError when it does not boot.
    Leaving it, or this process's death by whatever cause, ends it and leaves nothing behind.
    """

    kind = "namespace"

    def __init__(self, suite: Suite, *, bare: bool = False) -> None:
        self.suite = suite
        self._bare = bare
        self._stack = ExitStack()
        self.init = 0

    def __enter__(self) -> NamespaceMachine:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        need_tools(NAMESPACE_TOOLS)
        as_root([])
        source = self._stack.enter_context(image.use(self.suite))
        self._words = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (the stack is one)
        wheel = source.no_wheel if self._bare else checkout.wheel()
        plan = Plan(str(source.tree), source.key, str(REPO), str(wheel), str(image.mount_point()))
        self._guard = self._start_guard(plan)
        self._stack.callback(self._end)
        self.init = self._first_message(self._guard)
        self._wait_for_boot()
        if not self._bare:
            self._execute_checked(checkout.INSTALL)

    def _start_guard(self, plan: Plan) -> subprocess.Popen[bytes]:
        guard = [sys.executable, "-m", "tests.machines.guard", json.dumps(asdict(plan))]
        return subprocess.Popen(
            as_root(["unshare", "--mount", "--propagation=private", "--", *guard]),
            cwd=REPO,
            env=ENVIRON,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            start_new_session=True,
        )

    def _first_message(self, guard: subprocess.Popen[bytes]) -> int:
        assert guard.stdout is not None
        ready, _, _ = select.select([guard.stdout], [], [], BOOT_DEADLINE_S)
        line = guard.stdout.readline() if ready else b""
        message = json.loads(line) if line else {"unavailable": f"nothing was started: {self.diagnosis()}"}
        if "unavailable" in message:
            raise Unavailable(message["unavailable"])
        return int(message["init"])

    def _wait_for_boot(self) -> None:
        """Until systemd has started all of multi-user.target; its socket appears a moment after exec."""
        deadline = time.monotonic() + BOOT_DEADLINE_S
        state = ""
        while time.monotonic() < deadline and self._guard.poll() is None:
            asked = subprocess.run(
                self._enter(["systemctl", "is-system-running", "--wait"]),
                env=ENVIRON,
                capture_output=True,
                text=True,
            )
            state = asked.stdout.strip() or asked.stderr.strip()
            if state in ("running", "degraded"):
                return
            time.sleep(0.02)
        raise MachineError(
            f"the {self.suite.name} namespace machine did not boot ({state})\n{self.diagnosis()}"
        )

    def _enter(self, argv: list[str]) -> list[str]:
        words = ["nsenter", f"--target={self.init}", *_SPACES, "--", "env", "-i", f"PATH={PATH}", *argv]
        return as_root(words)

    def _execute_checked(self, argv: list[str]) -> None:
        self.execute(Command(argv, cwd="/"), timeout_s=120).checked()

    def popen(self, command: Command, **options: object) -> subprocess.Popen[bytes]:
        """Start a command; options are Popen's. Its signals and exit status come through."""
        words = self._enter(command.words(self.kind, self.suite))
        return subprocess.Popen(words, env=ENVIRON, **options)  # type: ignore[call-overload, no-any-return]

    def execute(
        self, command: Command, *, timeout_s: float, on_output: Callable[[bytes], None] | None = None
    ) -> Result:
        """See Machine.execute."""
        pipe = subprocess.PIPE
        child = self.popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        timed_out = threading.Event()
        timer = threading.Timer(timeout_s, self._time_out, (command, child, timed_out))
        timer.start()
        try:
            stdout, stderr = communicate(child, command.input, on_output)
        except BaseException:
            self._kill(command, child)
            raise
        finally:
            timer.cancel()
        if self._guard.poll() is not None:
            raise MachineError(f"the namespace machine died\n{self.diagnosis()}")
        return Result(command.argv, child.returncode, stdout, stderr, timed_out.is_set())

    def _time_out(self, command: Command, child: subprocess.Popen[bytes], flag: threading.Event) -> None:
        flag.set()
        self._kill(command, child)

    def _kill(self, command: Command, child: subprocess.Popen[bytes]) -> None:
        words = self._enter(command.kill_words())
        subprocess.run(words, env=ENVIRON, capture_output=True, timeout=END_DEADLINE_S)
        child.kill()

    def shell(self) -> int:
        """See Machine.shell."""
        # script(1) gives the shell a terminal of the machine's own, which tmux and job control ask for.
        argv = ["script", "--quiet", "--return", "--command", "bash --login", "/dev/null"]
        return self.popen(Command(argv)).wait()

    def diagnosis(self) -> str:
        """See Machine.diagnosis."""
        self._words.seek(0)
        words = tail(self._words.read().decode(errors="replace"))
        if not self.init or self._guard.poll() is not None:
            return words
        journal = subprocess.run(
            self._enter(["journalctl", "--no-pager", "-n", "40"]),
            env=ENVIRON,
            capture_output=True,
            text=True,
            timeout=30,
        )
        return f"{words}\n{journal.stdout}"

    def _end(self) -> None:
        end_tethered(self._guard, END_DEADLINE_S)
