"""What both kinds of machine promise, and how a command is dressed for running in one."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Protocol

from tests.machines.host import MachineError
from tests.machines.recipe import USERS, Suite

FIRST_UID = 1000
PIPE_GRACE_S = 2.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_numbers = itertools.count(1)


class CommandFailed(MachineError):
    """A command that was run with check=True ended with something else than 0."""


@dataclass(frozen=True)
class Result:
    """How a command in a machine ended. `returncode` is its exit code, or minus the signal that ended it."""

    args: Sequence[str]
    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False

    def checked(self) -> Result:
        if self.returncode != 0:
            why = "timed out" if self.timed_out else f"ended with {self.returncode}"
            raise CommandFailed(f"in the machine, {list(self.args)} {why}:\n{self.stdout}{self.stderr}")
        return self


@dataclass(frozen=True)
class Command:
    """A command for a machine: run as `user` (root, or one of recipe.USERS), in a scope of its own."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    cwd: str = "/src"
    input: bytes = b""
    unit: str = field(default_factory=lambda: f"machine-command-{next(_numbers)}.scope")

    def words(self, kind: str, suite: Suite) -> list[str]:
        """The argv that does it inside, by systemd-run, so that it lives in a cgroup of the machine."""
        scope = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={self.unit}", "--"]
        identity = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups", "--"]
        env = {**self._login_env(), "SLICER_TEST_MACHINE": kind, "SLICER_TEST_SUITE": suite.name, **self.env}
        clean = ["env", "-i", f"--chdir={self.cwd}", *(f"{name}={value}" for name, value in env.items())]
        return [*scope, *([] if self.user == "root" else identity), *clean, *self.argv]

    def kill_words(self) -> list[str]:
        """The argv that ends all of the command's processes at once."""
        return ["systemctl", "kill", "--signal=KILL", self.unit]

    def _login_env(self) -> dict[str, str]:
        env = {"PATH": PATH, "LANG": "C.UTF-8", "TERM": os.environ.get("TERM", "dumb"), "SHELL": "/bin/bash"}
        env |= {"USER": self.user, "LOGNAME": self.user}
        if self.user == "root":
            return env | {"HOME": "/root"}
        uid = FIRST_UID + USERS.index(self.user)
        return env | {"HOME": f"/home/{self.user}", "XDG_RUNTIME_DIR": f"/run/user/{uid}"}


class Machine(Protocol):
    """A booted machine; a context manager that ends it."""

    suite: Suite
    kind: str

    def __enter__(self) -> Machine: ...

    def __exit__(self, *exc: object) -> None: ...

    def execute(
        self,
        command: Command,
        *,
        timeout_s: float,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Result:
        """Run a command to its end, or kill all of it after `timeout_s`.

        With `on_output`, standard output goes there in pieces as it comes, and is empty in the result.
        """
        ...

    def shell(self) -> int:
        """An interactive root shell with a terminal of the machine's own; returns its exit code."""
        ...

    def diagnosis(self) -> str:
        """For a person who wonders why the machine died: its console or systemd's last words."""
        ...


def run(
    machine: Machine,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    user: str = "root",
    cwd: str = "/src",
    input: bytes = b"",
    timeout_s: float = 120.0,
    check: bool = False,
) -> Result:
    """Run argv in a machine; with `check`, raise CommandFailed unless it ends with 0."""
    command = Command(argv, env=env or {}, user=user, cwd=cwd, input=input)
    result = machine.execute(command, timeout_s=timeout_s)
    return result.checked() if check else result


def communicate(
    child: subprocess.Popen[bytes], data: bytes, on_output: Callable[[bytes], None] | None
) -> tuple[str, str]:
    """As Popen.communicate, but standard output may be handed on as it comes, and the child's end is enough.

    (A process that the command left behind may hold its pipes open for ever.)
    """
    stdout, stderr = bytearray(), bytearray()
    workers = [
        threading.Thread(target=_pump, args=(child.stdout, on_output or stdout.extend), daemon=True),
        threading.Thread(target=_pump, args=(child.stderr, stderr.extend), daemon=True),
        threading.Thread(target=_feed, args=(child.stdin, data), daemon=True),
    ]
    for worker in workers:
        worker.start()
    child.wait()
    for worker in workers:
        worker.join(PIPE_GRACE_S)
    return stdout.decode(errors="replace"), stderr.decode(errors="replace")


def _pump(stream: IO[bytes], sink: Callable[[bytes], object]) -> None:
    with stream:
        while chunk := os.read(stream.fileno(), 65536):
            sink(chunk)


def _feed(stream: IO[bytes], data: bytes) -> None:
    with suppress(BrokenPipeError), stream:
        stream.write(data)
