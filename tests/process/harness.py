"""A box for process tests: its own state directory, home and history; no process outlives it."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import slicer
from slicer.kernel import proc
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.model import Lease, Outcome, Ticket
from slicer.outcome import history
from slicer.state import statefile
from slicer.state.statedir import StateDir, locate
from tests.patience import LONGEST_S, until
from tests.shield import variables

SRC = str(Path(slicer.__file__).resolve().parents[1])
MARK = "SLICER_TEST_BOX"

# Not "-m slicer": runpy imports more than slicer does.
SLICER = (sys.executable, "-c", "from slicer.__main__ import main; main()")


_UNSHARE = ("unshare", "--mount", "--propagation", "private")


# A program that saves at a signal (its argument), if its worker still answers then.
TRAINER = """\
import signal, subprocess, sys, time
signo = getattr(signal, sys.argv[1])
feeds = "import sys; sys.stdin.read(); print('fed', flush=True)"
worker = subprocess.Popen([sys.executable, "-c", feeds], stdin=-1)
def save(*_):
    worker.stdin.close()
    print("saved" if worker.wait() == 0 else "its worker was gone", flush=True)
    sys.exit(0)
signal.signal(signo, save)
print("up", flush=True)
while True:
    time.sleep(1)
"""


def unprivileged(uid: int) -> tuple[str, ...]:
    """The words before a command that root runs as that user; none for a user, who has no rights to lose.

    The command may read everything: the checkout and its Python may lie below a directory closed to others.
    """
    if os.geteuid() != 0:
        return ()
    keep = "-all,+dac_read_search"
    ids = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    return ("setpriv", *ids, f"--inh-caps={keep}", f"--ambient-caps={keep}", "--")


def mounting(script: str, argument: str | Path = "sh") -> tuple[str, ...]:
    """The words before a command that runs in mounts of its own, once the shell's script is done."""
    if not _may_unshare():
        pytest.skip("no mount namespace can be made here: it takes root with CAP_SYS_ADMIN")
    return (*_UNSHARE, "sh", "-c", f'{script} && exec "$@"', str(argument))


@functools.cache
def _may_unshare() -> bool:
    return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


class Box:
    """Everything that ``slicer run`` touches, below one directory."""

    def __init__(self, root: Path, slots: int = 1) -> None:
        self.root = root
        self.state = root / "state"
        self.home = root / "home"
        self.log = root / "log"
        self.var_lib = root / "host" / "var" / "lib"
        for directory in (self.home, self.var_lib):
            directory.mkdir(parents=True)
        self.mark = uuid.uuid4().hex
        self.shield = variables(root)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": SRC,
            "SLICER_STATE_DIR": str(self.state),
            "XDG_STATE_HOME": str(self.var_lib),  # where root's history is, too
            "CPU_RUN_SLOTS": str(slots),
            "LOG": str(self.log),
            MARK: self.mark,
            **self.shield,
        }
        # For jobs that call slicer themselves: "inner -p heavy -- true".
        inner = root / "bin" / "inner"
        inner.parent.mkdir()
        inner.write_text(f'#!/bin/sh\nexec {shlex.join(SLICER)} run --backend plain -q "$@"\n')
        inner.chmod(0o755)
        self.env["PATH"] = f"{inner.parent}:{self.env['PATH']}"
        self.prefix: tuple[str, ...] = ()
        self._others = set(proc.pids())
        self._seen: dict[int, int | None] = {}  # when each started: its number may be given to others
        self._started: list[subprocess.Popen[bytes]] = []

    # -- running ----------------------------------------------------------------------------------------

    def command(self, *arguments: str | bytes, backend: str = "plain") -> list[str | bytes]:
        """The command line of ``slicer run --backend plain ARGUMENTS``."""
        chosen = ("--backend", backend) if backend else ()
        return [*self.prefix, *SLICER, "run", *chosen, *arguments]

    def start(
        self, *arguments: str | bytes, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start ``slicer run ARGUMENTS``; its stderr can be read from the process's ``stderr``."""
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        backend = options.pop("backend", "plain")
        made = subprocess.Popen(
            self.command(*arguments, backend=backend),
            env={**self.env, **(env or {})},
            cwd=options.pop("cwd", self.root),
            **options,
        )
        self._started.append(made)
        return made

    def adopt(self, process: subprocess.Popen[bytes]) -> None:
        """See to the end of a process that the test started by itself."""
        self._started.append(process)

    def run(self, *arguments: str | bytes, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run ``slicer run ARGUMENTS`` to its end; output is text with undecodable bytes as surrogates."""
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"slicer run {arguments} did not end; {self.describe()}")
        return subprocess.CompletedProcess(arguments, process.returncode, text(out), text(err))

    def hold(
        self, gate: Gate, *options: str, name: str = "holder", env: Mapping[str, str] | None = None
    ) -> Job:
        """A heavy job that runs until its gate opens; returned once its command runs."""
        logged = name or "nameless"
        script = f'echo "start {logged} $$" >>"$LOG"; read x <"{gate.path}"; echo "end {logged} $$" >>"$LOG"'
        process = self.start("-p", "heavy", "--name", name, *options, "--", "sh", "-c", script, env=env)
        until(lambda: self.started(logged) or process.poll() is not None, f"{logged} runs")
        if not self.started(logged):
            pytest.fail(f"{logged} did not start: {process.communicate()}")
        lease = next(lease for lease in self.leases() if lease.name == name)
        return Job(self, process, lease, int(self.started(logged)))

    def wait_in_line(
        self, name: str, *command: str, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A heavy job that has to wait; returned once it sleeps in the queue."""
        script = f'echo "start {name} $$" >>"$LOG"; echo "end {name} $$" >>"$LOG"'
        chosen = command or ("sh", "-c", script)
        process = self.start("-p", "heavy", "--name", name, *options, "--", *chosen, env=env)
        until(lambda: any(ticket.name == name for ticket in self.tickets()), f"{name} has a ticket")
        until(lambda: sleeps_in_poll(process.pid), f"{name} sleeps")
        return process

    # -- looking ----------------------------------------------------------------------------------------

    def leases(self) -> list[Lease]:
        """The lease files, live or not, without touching any."""
        return [statefile.decode(Lease, data) for data in self._files("leases")]

    def tickets(self) -> list[Ticket]:
        return [statefile.decode(Ticket, data) for data in self._files("tickets")]

    def _files(self, folder: str) -> list[bytes]:
        found = []
        for path in sorted((self.state / folder).glob("*")):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            if data.endswith(b"\nEND=\n"):  # else it is about to be written
                found.append(data)
        return found

    def snapshot(self) -> Snapshot:
        """The ledger as slicer sees it; cleans up after dead owners."""
        warnings: list[str] = []
        ledger = Ledger(state_dir(self.state), warnings.append)
        try:
            seen = ledger.snapshot()
        finally:
            ledger.close()
        assert not warnings, warnings
        return seen

    def state_files(self) -> list[str]:
        """All but what is known of earlier runs, which is to stay."""
        stays = ("lengths", "ends")
        found = (path for path in self.state.rglob("*") if not path.is_dir() and path.name not in stays)
        return sorted(str(path.relative_to(self.state)) for path in found)

    def outcomes(self) -> list[Outcome]:
        """The history, the newest first."""
        return history.read(self.history, limit=None)

    @property
    def history(self) -> str:
        """The path of the history."""
        return str(self.var_lib / "slicer" / history.FILE)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def started(self, name: str) -> str:
        """The pid that the job of that name logged, "" before it runs."""
        return next((line.split()[2] for line in self.lines() if line.startswith(f"start {name} ")), "")

    def processes(self) -> list[int]:
        """Every process that was started in this box, zombies apart."""
        pids = set(proc.pids())
        self._others &= pids  # the number of one that has ended may be given to one of ours
        # A process that dies loses its environment before its descriptors: remember it until it is gone.
        self._seen.update({p: proc.start_time(p) for p in pids - self._others if marked(p, self.mark)})
        self._seen = {p: start for p, start in self._seen.items() if start and proc.start_time(p) == start}
        return sorted(self._seen)

    def describe(self) -> str:
        shown = [f"{pid} {state_of(pid)} {command_of(pid)}" for pid in self.processes()]
        return f"processes: {shown}; state: {self.state_files() if self.state.exists() else []}"

    # -- the end ----------------------------------------------------------------------------------------

    def assert_clean(self) -> None:
        """No process, lease or ticket is left (files of killed owners go with the next look)."""
        until(lambda: not self.processes(), f"no process is left; {self.describe()}", 5.0)
        if self.state.exists():
            assert self.snapshot() == Snapshot((), ())
            # The arena of the turns stays: one a ledger. So do outcomes, until somebody looks at the history.
            stays = (history.KEPT, "share/arena-2", "logout-noticed")
            left = [name for name in self.state_files() if not name.endswith(stays)]
            assert left in ([], ["version"], ["lock", "version"])

    def close(self) -> None:
        """End whatever is still there."""
        for signo in (signal.SIGCONT, signal.SIGKILL):
            for pid in self.processes():
                kill(pid, signo)
        for process in self._started:
            for pipe in (process.stdout, process.stderr, process.stdin):
                if pipe is not None:
                    pipe.close()
            process.wait()
        until(lambda: not self.processes(), "all processes are gone")


class Gate:
    """A FIFO that holds jobs back (``read x <GATE``) until it opens.

    A job that reads it twice may get through both at one opening, which lasts a moment: use two gates.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def open(self) -> None:
        """Let through whoever is waiting now or comes within the deadline: at least one."""
        fd = until(self._try, f"somebody waits at {self.path}")
        os.write(fd, b"\n")
        os.close(fd)

    def open_if_awaited(self) -> None:
        """Let through whoever is waiting now, if anybody is. Each opening may let through several."""
        fd = self._try()
        if fd:
            with suppress(BrokenPipeError):  # they were let through, or ended, meanwhile
                os.write(fd, b"\n")
            os.close(fd)

    def _try(self) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return 0


class Job:
    """A running job: the supervisor, the keeper and the command, each by its pid."""

    def __init__(self, box: Box, process: subprocess.Popen[bytes], lease: Lease, command: int) -> None:
        self.box = box
        self.process = process
        self.lease = lease
        self.outer = process.pid
        self.keeper = until(
            lambda: next(x.keeper for x in box.leases() if x.job == lease.job), "the keeper is known"
        )
        self.command = command


def remove_tree(path: Path) -> None:
    """Remove a directory in which a process may still create and remove files. It is gone at once."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    path.rename(aside)

    def is_removed() -> bool:
        shutil.rmtree(aside, ignore_errors=True)
        return not aside.exists()

    until(is_removed, f"{aside} is removed")


def text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "surrogateescape")


def kill(pid: int, signo: int = signal.SIGKILL) -> None:
    assert pid > 1, "that would be a whole group, or everybody"
    try:
        os.kill(pid, signo)
    except ProcessLookupError:
        pass


def kill_9(*pids: int) -> None:
    """Kill them all, then wait until they and their open files are gone."""
    for pid in pids:
        kill(pid)
    for pid in pids:
        until(functools.partial(gone, pid), f"{pid} is dead")


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    return state_of(pid) in ("", "Z", "X")


def state_of(pid: int) -> str:
    """The letter in /proc/PID/stat, "" when the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat[stat.rindex(")") + 2]


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[-160:]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def marked(pid: int, mark: str) -> bool:
    return f"{MARK}={mark}".encode() in proc.environment(pid).split(b"\0")


# The numbers of poll, ppoll, flock and read, which differ between architectures.
_IS_X86 = os.uname().machine == "x86_64"
_POLL, _LOCKING = (("7", "271"), ("73", "230", "35")) if _IS_X86 else (("73",), ("32", "115", "101"))
_READ = "0" if _IS_X86 else "63"


def state_dir(path: Path | str) -> StateDir:
    """The state directory at that path, made when missing."""
    return locate({"SLICER_STATE_DIR": str(path)}, os.geteuid())


def sleeps_in(pid: int) -> str:
    """The number of the system call in which the process sleeps; "" when it does not sleep."""
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return ""
    return number if state_of(pid) == "S" else ""


def sleeps_in_poll(pid: int) -> bool:
    """Whether the process sleeps in poll(2), which nothing but a waiting slicer does."""
    return sleeps_in(pid) in _POLL


def stays_in_poll(pid: int) -> bool:
    """Whether the process sleeps in poll(2) for a while, and does not look all the time."""
    for _ in range(20):
        if not sleeps_in_poll(pid):
            return False
        time.sleep(0.002)
    return True


def sleeps_in_read(pid: int) -> bool:
    """Whether the process sleeps in read(2)."""
    return sleeps_in(pid) == _READ


def sleeps_in_flock(pid: int) -> bool:
    """Whether the process waits for a lock: in flock(2), or (the ledger's) until it tries again."""
    return sleeps_in(pid) in _LOCKING


def is_waited_for(path: Path) -> bool:
    """Whether somebody sleeps in flock(2) until the file is free."""
    waiting = f"{path.stat().st_ino} 0 EOF"
    return any("->" in line and waiting in line for line in Path("/proc/locks").read_text().splitlines())


def switches(pid: int) -> int:
    """How often the process has gone to sleep of its own will."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
