"""Calls Slurm's commands. The queue never waits for one: each has a descriptor, and an end after a while."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from slicer.backend import slurm_shims
from slicer.errors import BackendError, UsageError
from slicer.kernel.sleep import seconds_until, soonest
from slicer.record import record
from slicer.state.directory import write_all

PROGRAMS = ("sbatch", "squeue", "scancel", "sinfo")
_LONGEST_S = 30.0  # a controller that does not answer makes the commands give up after 10 s


@record
class CompletedCommand:
    """How a command ended."""

    code: int
    output: str
    error: str


class SlurmCommand:
    """A running command. ``fd`` becomes readable when it has ended."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], stdin: str = "") -> None:
        """Raises BackendError."""
        self._name = words[0]
        self._until = time.monotonic() + _LONGEST_S
        self._files = given, output, error = [os.memfd_create(self._name) for _ in range(3)]
        try:
            write_all(given, stdin.encode("utf-8", "surrogateescape"))
            # In a session of its own: Ctrl-C at the queue's terminal is for the queue.
            self._process = subprocess.Popen(
                words, env=dict(environ), stdin=given, stdout=output, stderr=error, start_new_session=True
            )
        except OSError as failure:
            self._close_files()
            raise BackendError(f"{self._name} cannot be started: {failure.strerror}") from failure
        self.fd = os.pidfd_open(self._process.pid)

    def left_s(self) -> float | None:
        """The seconds until it is ended."""
        return seconds_until(self._until)

    def take(self) -> CompletedCommand | None:
        """How it ended; None: it still runs."""
        if self._process.poll() is None:
            if time.monotonic() < self._until:
                return None
            self._process.kill()
            self._process.wait()
            os.write(self._files[2], f"\n{self._name} did not answer for {_LONGEST_S:.0f} s".encode())
        done = CompletedCommand(self._process.returncode, *map(_text, self._files[1:]))
        self.close()
        return done

    def close(self) -> None:
        """End it, if it still runs, and release everything."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self.fd)
        self._close_files()

    def _close_files(self) -> None:
        for fd in self._files:
            os.close(fd)


def _text(fd: int) -> str:
    return os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")


class Commands:
    """Those that run, at most one of each program."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._running: dict[str, SlurmCommand] = {}

    def start(self, words: Sequence[str], stdin: str = "") -> None:
        """Raises BackendError."""
        self._running[words[0]] = SlurmCommand(words, self._environ, stdin)

    def runs(self, program: str) -> bool:
        return program in self._running

    def take(self, program: str) -> CompletedCommand | None:
        """How it ended, once; None: it runs, or was not started."""
        done = self._running[program].take() if self.runs(program) else None
        if done is not None:
            del self._running[program]
        return done

    def call(self, words: Sequence[str]) -> CompletedCommand:
        """Run a command to its end. For the queue's beginning only. Raises BackendError."""
        self.start(words)
        while (done := self.take(words[0])) is None:
            time.sleep(0.01)
        return done

    def descriptors(self) -> list[int]:
        return [command.fd for command in self._running.values()]

    def left_s(self) -> float | None:
        """The seconds until one of them is ended; None: none runs."""
        return soonest(*(command.left_s() for command in self._running.values()))

    def close(self) -> None:
        for command in self._running.values():
            command.close()


def slurms(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, whose PATH leads to Slurm's own commands. Raises UsageError if there are none."""
    path = slurm_shims.without(environ.get("PATH", os.defpath))
    missing = next((name for name in PROGRAMS if not shutil.which(name, path=path)), None)
    if missing:
        hint = "run the queue where you would run sbatch, or leave the option out"
        raise UsageError(f"there is no {missing} here", where="--engine slurm", hint=hint)
    return {**environ, "PATH": path}
