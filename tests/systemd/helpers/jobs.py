"""``slicer run`` as a test's user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slicer.ledger.ledger import Ledger
from slicer.model import Lease, Outcome, Ticket
from slicer.outcome import history
from slicer.state import statefile
from slicer.state.statedir import locate
from tests.patience import DEADLINE_S, LONGEST_S, until
from tests.systemd.helpers import processes, systemctl

SYSTEM_LEDGER = "/run/slicer"
SYSTEM_HISTORY = "/var/lib/slicer/history.db"


def configured(directory: Path, text: str) -> dict[str, str]:
    """What makes slicer read a configuration."""
    path = directory / "config.toml"
    path.write_text(text)
    return {"SLICER_CONFIG": str(path)}


@dataclass(frozen=True)
class Done:
    """How a ``slicer run`` ended. ``code`` is minus the signal that ended slicer itself."""

    pid: int
    code: int
    stdout: str
    stderr: str

    @property
    def told(self) -> str:
        """``stderr`` without what slicer says once a boot: of the machine, and not of the job."""
        lines = self.stderr.splitlines(keepends=True)
        return "".join(line for line in lines if "shown once per boot)" not in line)


class Gate:
    """What a job waits at until the test opens it: ``: < PATH`` in a shell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        os.chmod(path, 0o666)

    def __str__(self) -> str:
        return str(self.path)

    def someone_waits(self) -> bool:
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    def open(self) -> None:
        """Let through who waits here, as soon as somebody does."""
        until(self.someone_waits, f"somebody waits at {self.path}")


class Job:
    """A running ``slicer run``; its output goes to files, which no leftover process can hold up."""

    def __init__(self, popen: subprocess.Popen[bytes], base: Path, ledger: str) -> None:
        self.popen = popen
        self.pid = popen.pid
        self._base = base
        self._ledger = ledger

    @property
    def stdout(self) -> str:
        return self._base.with_suffix(".out").read_text(errors="surrogateescape")

    @property
    def stderr(self) -> str:
        return self._base.with_suffix(".err").read_text(errors="surrogateescape")

    def lease(self) -> Lease:
        """This job's lease, once its scope is up."""
        return until(self._find_lease, f"a lease with a cgroup for pid {self.pid} ({self.stderr})")

    def _find_lease(self) -> Lease | None:
        found = (lease for lease in leases(self._ledger) if lease.pid == self.pid and lease.cgroup)
        return next(found, None)

    def ticket(self) -> Ticket:
        """This job's ticket, once it waits."""

        def find() -> Ticket | None:
            return next((ticket for ticket in tickets(self._ledger) if ticket.pid == self.pid), None)

        return until(find, f"a ticket for pid {self.pid} ({self.stderr})")

    def said(self, text: str) -> None:
        """Wait until the command or slicer has printed ``text``; a single word as a line of its own."""

        def is_there() -> bool:
            both = self.stdout + self.stderr
            return text in (both.split("\n") if text.isalpha() else both)

        try:
            until(is_there, f"{text!r} in the output")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said {self.stdout!r} and {self.stderr!r}") from None

    def command_pid(self) -> int:
        """The command: the keeper's first child. (It adopts what the command leaves.)"""
        keeper = self.lease().keeper

        def find() -> int | None:
            inside = processes.in_cgroup(self.lease().cgroup)
            return min((pid for pid in inside if processes.parent(pid) == keeper), default=None)

        return until(find, "a command under the keeper")

    def kill(self, signo: int = signal.SIGKILL) -> None:
        os.kill(self.pid, signo)

    def end(self, deadline_s: float = LONGEST_S) -> Done:
        """Wait for slicer's end."""
        try:
            code = self.popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"slicer still runs after {deadline_s:g} s: {processes.read(self.pid, 'wchan')!r} "
                f"stdout {self.stdout!r} stderr {self.stderr!r}"
            ) from None
        return Done(self.pid, code, self.stdout, self.stderr)


def _entries(ledger: str, folder: str) -> list[bytes]:
    found = []
    for path in sorted(Path(ledger, folder).glob("*")):
        try:
            found.append(path.read_bytes())
        except FileNotFoundError:
            continue
    return found


def _whole(kind: type, data: bytes) -> list:  # type: ignore[type-arg]
    try:
        return [statefile.decode(kind, data)]
    except statefile.TornFile:  # seen while it is being written
        return []


def leases(ledger: str = SYSTEM_LEDGER) -> list[Lease]:
    """The lease files, those of dead owners included: reading changes nothing."""
    return [lease for data in _entries(ledger, "leases") for lease in _whole(Lease, data)]


def tickets(ledger: str = SYSTEM_LEDGER) -> list[Ticket]:
    return [ticket for data in _entries(ledger, "tickets") for ticket in _whole(Ticket, data)]


def sweep(ledger: str) -> None:
    """Remove the files of dead owners, as the user whose ledger it is: anybody else is refused."""
    owner = os.stat(ledger).st_uid
    if owner:
        identity = ("setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups")
        systemctl.output(*identity, "env", f"SLICER_STATE_DIR={ledger}", "slicer", "status")
        return
    opened = Ledger(locate({"SLICER_STATE_DIR": ledger}, 0), print)
    try:
        opened.snapshot()
    finally:
        opened.close()


class Slicer:
    """Starts jobs for one test, and afterwards answers for what they left behind."""

    ledger = SYSTEM_LEDGER

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self.jobs: list[Job] = []
        self.dirty = False  # owners were killed: their lease files may stay until somebody looks
        self._made = 0
        self._others = set(processes.pids())

    def path(self, name: str) -> Path:
        return self.directory / name

    def gate(self) -> Gate:
        self._made += 1
        return Gate(self.path(f"gate-{self._made}"))

    def offered(self, *typed: str) -> list[str]:
        """What completion offers bash for the last of the words after ``slicer``."""
        words = "".join(f"{word}\n" for word in ("slicer", *typed))
        done = subprocess.run(
            ["slicer"], capture_output=True, text=True, timeout=LONGEST_S, cwd=self.directory,
            env=self.environ(_SLICER_COMPLETE="bash_words", _SLICER_WORDS=words),
        )  # fmt: skip
        assert done.returncode == 0, done
        return [line.split("\t")[1] for line in done.stdout.splitlines()]

    def environ(self, **extra: str) -> dict[str, str]:
        """A clean environment with one CPU slot on any machine, and the test's mark."""
        base = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8", "CPU_RUN_SLOTS": "1"}
        return {**base, processes.MARK: self.mark, **extra}

    def start(
        self, *arguments: str | bytes, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL,
        via: tuple[str, ...] = (), program: str = "run",
    ) -> Job:  # fmt: skip
        """``slicer PROGRAM ARGUMENTS`` in a session of its own; ``via`` (``env -i``, …) goes before it."""
        self._made += 1
        base = self.path(f"run-{self._made}")
        with base.with_suffix(".out").open("wb") as out, base.with_suffix(".err").open("wb") as err:
            popen = subprocess.Popen(
                [*via, "slicer", program, *arguments],
                env=self.environ(**(env or {})), stdin=stdin, stdout=out, stderr=err,
                start_new_session=True, cwd=self.directory,
            )  # fmt: skip
        job = Job(popen, base, self.ledger)
        self.jobs.append(job)
        return job

    def run(
        self, *arguments: str | bytes, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL,
        via: tuple[str, ...] = (), deadline_s: float = LONGEST_S, program: str = "run",
    ) -> Done:  # fmt: skip
        """``slicer PROGRAM ARGUMENTS`` from start to end."""
        return self.start(*arguments, env=env, stdin=stdin, via=via, program=program).end(deadline_s)

    def command(self, *line: str, code: int = 0, via: tuple[str, ...] = (), **env: str) -> Done:
        """Any command of slicer's, with the exit code that it must have."""
        done = subprocess.run(
            [*via, "slicer", *line],
            env=self.environ(**env),
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        assert done.returncode == code, done
        return Done(0, code, done.stdout, done.stderr)

    def start_command(self, *line: str) -> subprocess.Popen[bytes]:
        """Any command of slicer's, in the background."""
        quiet = subprocess.DEVNULL
        return subprocess.Popen(["slicer", *line], env=self.environ(), stdout=quiet, stderr=quiet)

    def hold(self, gate: Gate, *options: str, code: int = 0, env: Mapping[str, str] | None = None) -> Job:
        """A job that says "up" and stays until the gate opens; returns when it is up."""
        script = f"echo up; : < {gate}; echo over; exit {code}"
        job = self.start(*options, "--", "sh", "-c", script, env=env)
        job.said("up")
        return job

    def is_busy(self, *options: str, env: Mapping[str, str] | None = None) -> bool:
        """Whether a job with these options would have to wait now (K2's probe)."""
        done = self.run("--no-wait", *options, "--", "true", env=env)
        assert done.code in (0, 75), done
        return done.code == 75

    def outcome(self, job: str, path: str = SYSTEM_HISTORY) -> Outcome:
        """What history has about the job, once it has it."""
        found = until(lambda: history.read(path, job=job), f"an outcome of {job}")
        assert len(found) == 1, found
        return found[0]

    def outcome_of(self, done: Done) -> Outcome:
        """The outcome of a job that has ended, found by slicer's pid in the journal."""
        (entry,) = systemctl.journal("-t", "slicer", "SLICER_EVENT=finished", f"_PID={done.pid}")
        return self.outcome(entry["SLICER_JOB"])

    def left(self) -> dict[str, object]:
        """What of this test's jobs is still there; empty when nothing is."""
        if self.dirty and os.path.isdir(f"{self.ledger}/leases"):
            sweep(self.ledger)
        found: dict[str, object] = {
            "scopes": systemctl.scopes(),
            "leases": leases(self.ledger),
            "tickets": tickets(self.ledger),
            "processes": processes.of_test(self.mark, self._others),
        }
        return {what: there for what, there in found.items() if there}

    def check_nothing_left(self) -> None:
        """No scope, lease, ticket or process: else fail, and end it.

        systemd drops a scope a moment after its last process.
        """
        last: dict[str, object] = {}

        def is_clean() -> bool:
            nonlocal last
            last = self.left()
            return not last

        try:
            until(is_clean, "nothing is left", DEADLINE_S / 4)
        except AssertionError:
            self._clean_up()
            raise AssertionError(f"left behind: {last}") from None
        self._reap()

    def _reap(self) -> None:
        for job in self.jobs:
            job.popen.wait()

    def _clean_up(self) -> None:
        """End whatever a failed test left, so that the next one starts clean."""
        for unit in systemctl.scopes():
            systemctl.output("systemctl", "kill", "--signal=KILL", unit, check=False)
            systemctl.output("systemctl", "stop", unit, check=False)
        for pid in processes.of_test(self.mark, self._others):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._reap()
        self.dirty = True
        until(lambda: not self.left(), "a clean machine")
