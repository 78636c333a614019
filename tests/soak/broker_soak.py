"""Three users of one machine, whose broker is killed again and again: nobody gets what another one has.

    python -m tests.soak.broker_soak --seconds 60 --seed 1

It boots a namespace machine for that. The jobs are those of :mod:`tests.soak.soak`, and so is what must be
true: their commands hold a witness of all they were given. A hundred jobs come at once, users log out, their
managers are restarted: of the last two no job may hear. A fourth user hangs up at bad moments, and a fifth
only wants a no-op done, whose worst time is told.
"""

from __future__ import annotations

import argparse
import os
import pwd
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tests.soak.bystanders import be, hang_up_for_ever, want_a_no_op
from tests.soak.logbook import Logbook
from tests.soak.plan import GPU_GIB, SLOTS, Abilities, Spec, spec

USERS = ("alice", "bob", "carol")
CPU_SLOTS = 3
SIM = "2x24G"
UUIDS = tuple(f"SIM-{index:08d}-0000-0000-0000-000000000000" for index in range(2))
WITNESS = Path(__file__).with_name("witness.py")
RUN = Path("/run/slicer-broker")
SERVICE = "slicer-broker.service"
BURST = 100  # jobs at once
STALL_S = 60.0
DRAIN_S = 180.0
ACTIONS = {
    "kill broker": 6, "restart broker": 1, "reload systemd": 1, "restart manager": 1, "log out": 1,
    "burst": 1, "kill waiter": 4, "kill outer": 4, "kill keeper": 3, "stop waiter": 3, "term": 2,
    "stop pattern": 1, "stop mine": 0.3,
}  # fmt: skip
OPTIONS = frozenset({"--cpu-slots", "--vram", "--slot", "--priority", "--max-wait"})


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class Job:
    """A job, whose it is, and what was done to it."""

    spec: Spec
    user: str
    process: subprocess.Popen[bytes]
    errors: Path
    done_to_it: list[str] = field(default_factory=list)


class BrokerSoak:
    """One run of it."""

    def __init__(self, base: Path, seconds: float, jobs: int, seed: int) -> None:
        self._base, self._seconds, self._jobs, self._seed = base, seconds, jobs, seed
        self._dice = random.Random(f"{seed}:broker")
        self._can = Abilities(CPU_SLOTS, OPTIONS, True)
        base.chmod(0o755)
        names = {"cpu": CPU_SLOTS, **dict.fromkeys(UUIDS, GPU_GIB)}
        names |= {f"slot-{name}": limit for name, limit in SLOTS.items()}
        for name, units in names.items():
            for unit in range(units):
                _for_all(base / name / str(unit))
        _for_all(base / "log")
        self._log = Logbook(base / "log")
        self._alive: list[Job] = []
        self._over: list[Job] = []
        self._stopped: list[tuple[float, int]] = []
        self._stops: list[tuple[str, str, subprocess.Popen[str]]] = []  # a user's, by pattern
        self._withdrawn: set[str] = set()
        self._done: Counter[str] = Counter()
        self._number = 0
        self._last_start = time.monotonic()
        self._worst = base / "worst"
        _for_all(self._worst)
        self._bystanders = [
            be("dave", lambda: hang_up_for_ever(seed)), be("erin", lambda: want_a_no_op(self._worst)),
        ]  # fmt: skip

    def run(self) -> str:
        """Raises Broken; returns a summary."""
        end = time.monotonic() + self._seconds
        due = 0.0
        while time.monotonic() < end:
            self._look()
            if len(self._alive) < self._jobs:
                self._start()
            if time.monotonic() >= due:
                self._act(self._dice.choices(list(ACTIONS), list(ACTIONS.values()))[0])
                due = time.monotonic() + self._dice.expovariate(2.0)
            time.sleep(0.01)
        self._end_bystanders()
        self._drain()
        self._judge()
        done = ", ".join(f"{kind} {times}" for kind, times in sorted(self._done.items()))
        served = sum(bool(self._log.run(job.spec.name).ends) for job in self._over)
        done += f", taken out {len(self._withdrawn)}"
        done += f"; worst no-op {self._worst.read_text() or 0} s, with the broker killed meanwhile"
        return f"seed {self._seed}: {len(self._over)} jobs of {len(USERS)} users, {served} served; {done}"

    def _start(self) -> None:
        job = spec(self._seed, self._number, self._can)
        user = USERS[self._number % len(USERS)]
        self._number += 1
        words = [str(self._base / "log"), job.name, str(job.hold_ms), str(job.code), str(job.child_ms)]
        words += [str(self._base), str(job.cpu), str(job.gpus), str(job.gib)]
        words += [f"{name}={count}" for name, count in job.slots.items()]
        errors = self._base / job.name
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                (
                    *_identity(user), "slicer", "run", "-q", "--name", job.name, *job.options,
                    "--", sys.executable, "-I", "-S", str(WITNESS), *words,
                ),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream, cwd="/",
            )  # fmt: skip
        met = [whose for whose, pattern, _ in self._stops if whose == user and fnmatch(job.name, pattern)]
        self._alive.append(Job(job, user, process, errors, ["withdraw"] * len(met)))

    def _look(self) -> None:
        now = time.monotonic()
        self._over += [job for job in self._alive if job.process.poll() is not None]
        self._alive = [job for job in self._alive if job.process.returncode is None]
        for due, pid in [each for each in self._stopped if each[0] <= now]:
            self._stopped.remove((due, pid))
            _kill(pid, signal.SIGCONT)
        for stop in [each for each in self._stops if each[2].poll() is not None]:
            self._stops.remove(stop)
            said, errors = stop[2].communicate()
            self._withdrawn.update(re.findall(r"^no longer waits: .*  (soak-\d+)$", said, re.MULTILINE))
            if "Traceback" in errors:
                raise Broken(f"an error nobody caught: {stop}, {errors}")
        if self._log.read() or not self._alive:
            self._last_start = now
        if self._log.violations:
            raise Broken(f"given away twice: {self._log.violations}")
        if now - self._last_start > STALL_S:
            raise Broken(f"nobody was served for {STALL_S:.0f} s\n{self._dump()}")

    def _act(self, kind: str) -> None:
        self._done[kind] += 1
        if kind == "reload systemd":
            subprocess.run(("systemctl", "daemon-reload"), check=True)
        elif kind == "burst":
            for _ in range(BURST):
                self._start()
        elif kind == "restart manager":
            uid = pwd.getpwnam(self._dice.choice(USERS)).pw_uid
            subprocess.run(("systemctl", "restart", f"user@{uid}.service"), check=True)
        elif kind == "log out":
            user = self._dice.choice(USERS)
            _log_in(user)
            subprocess.run(("loginctl", "terminate-user", user), check=True)
        elif kind.startswith("stop ") and kind != "stop waiter":
            pattern = "soak-*" if kind == "stop mine" else f"soak-*{self._dice.randrange(10)}"
            self._withdraw(self._dice.choice(USERS), pattern)
        elif kind == "restart broker":
            subprocess.run(("systemctl", "restart", SERVICE), check=True)
        elif kind == "kill broker":
            command = ("systemctl", "kill", "--signal=KILL", SERVICE)
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        else:
            self._act_on_job(kind)

    def _withdraw(self, user: str, pattern: str) -> None:
        """Have a user stop all of its jobs with such a name, and do not wait for their end."""
        for job in [*self._alive, *(job for job in self._over if self._runs(job))]:
            if job.user == user and fnmatch(job.spec.name, pattern):
                job.done_to_it.append("withdraw")
        process = subprocess.Popen(
            [*_identity(user), "slicer", "stop", "--mine" if pattern == "soak-*" else pattern], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
        )  # fmt: skip
        self._stops.append((user, pattern, process))

    def _act_on_job(self, kind: str) -> None:
        wants_waiter = kind.endswith("waiter")
        fitting = [job for job in self._alive if self._runs(job) is not wants_waiter or kind == "term"]
        if not fitting:
            return
        job = self._dice.choice(fitting)
        job.done_to_it.append(kind)
        outer = job.process.pid
        if kind == "stop waiter":
            _kill(outer, signal.SIGSTOP)
            self._stopped.append((time.monotonic() + self._dice.uniform(0.05, 2.0), outer))
        elif kind == "kill keeper":
            _kill(self._log.run(job.spec.name).keeper, signal.SIGKILL)
        else:
            _kill(outer, signal.SIGTERM if kind == "term" else signal.SIGKILL)

    def _runs(self, job: Job) -> bool:
        run = self._log.run(job.spec.name)
        return bool(run.starts) and not run.ends

    def _drain(self) -> None:
        """Let all come to their end. Nothing is left then, neither of scopes nor of files."""
        end = time.monotonic() + DRAIN_S
        while self._alive or self._stopped or self._stops or _scopes() or self._files():
            self._look()
            if time.monotonic() > end:
                raise Broken(f"something is left: {_scopes()}\n{self._dump()}")
            time.sleep(0.05)

    def _files(self) -> list[str]:
        found = [path for name in ("leases", "tickets", "commands") for path in (RUN / name).glob("*")]
        return sorted(map(str, found))

    def _judge(self) -> None:
        self._log.read()
        wrong = [text for job in self._over if (text := self._wrong_with(job))]
        begun = sorted(name for name in self._withdrawn if self._log.run(name).starts)
        wrong += [f"begun though they had been withdrawn: {begun}"] if begun else []
        told = ("journalctl", "-u", SERVICE, "--no-pager", "-o", "cat")
        journal = subprocess.run(told, capture_output=True, text=True, check=True).stdout
        for user in USERS:  # whoever looks next sweeps what killed jobs left in the user's own ledger
            for command in (("run", "-q", "--", "true"), ("status",)):
                said = subprocess.run((*_identity(user), "slicer", *command), capture_output=True, cwd="/")
                wrong += [f"slicer {command[0]} of {user}: {said}"] if said.returncode else []
        own = sorted(map(str, Path("/run/lock").glob("slicer-*/leases/*")))
        wrong += [f"left in users' own ledgers: {own}"] if own else []
        if "Traceback" in journal:
            wrong.append(f"the broker had an error that nobody caught: {journal[-4000:]}")
        if wrong:
            raise Broken("\n".join([f"{len(wrong)} promises were broken:", *wrong[:10]]))

    def _wrong_with(self, job: Job) -> str:
        run, code = self._log.run(job.spec.name), job.process.returncode
        harmed = [kind for kind in job.done_to_it if kind != "stop waiter"]
        said = job.errors.read_text(errors="replace")
        told = f"{job.user} {job.spec}; {job.done_to_it}; ended with {code}; {run}; {said[-1500:]!r}"
        if len(run.starts) > 1:
            return f"served more than once: {told}"
        if "Traceback" in said:
            return f"an error nobody caught: {told}"
        if harmed or (job.spec.may_give_up and code == 75 and not run.starts):
            return ""
        return "" if code == job.spec.code and run.ends else f"not served as it should have been: {told}"

    def _dump(self) -> str:
        waiting = [f"{job.user} {job.spec.name} {job.spec.options} {job.done_to_it}" for job in self._alive]
        status = subprocess.run(("slicer", "status"), capture_output=True, text=True, check=False)
        lines = [*self._files(), *waiting, status.stdout, status.stderr]
        log = ("journalctl", "-u", SERVICE, "-n", "40", "--no-pager")
        return "\n".join([*lines, subprocess.run(log, capture_output=True, text=True, check=True).stdout])

    def _end_bystanders(self) -> None:
        for pid in self._bystanders:
            _kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._bystanders.clear()

    def end_all(self) -> None:
        """End what is still there."""
        self._end_bystanders()
        for job in self._alive:
            _kill(job.process.pid, signal.SIGCONT)
            _kill(job.process.pid, signal.SIGKILL)
            job.process.wait()
        self._log.close()


def _identity(user: str) -> tuple[str, ...]:
    return "setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", f"HOME=/home/{user}"


def _log_in(user: str) -> None:
    """Open a session of the user, with a manager."""
    session = ("systemd-run", "--quiet", "--collect", "--service-type=exec", "--property=PAMName=login")
    subprocess.run((*session, f"--uid={user}", "sleep", "infinity"), check=True)


def _for_all(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    path.chmod(0o666)


def _kill(pid: int, signo: int) -> None:
    try:
        if pid:
            os.kill(pid, signo)
    except ProcessLookupError:
        pass


def _scopes() -> list[str]:
    listed = ("systemctl", "list-units", "--all", "--plain", "--no-legend", "slicer-*.scope")
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()


def _prepare() -> None:
    for name in ("carol", "dave", "erin"):
        subprocess.run(("useradd", "--create-home", name), check=True)
    for name in USERS:
        subprocess.run(("loginctl", "enable-linger", name), check=True)
    slots = "".join(f'"{name}" = {limit}\n' for name, limit in SLOTS.items())
    Path("/etc/slicer").mkdir(exist_ok=True)
    Path("/etc/slicer/config.toml").write_text(f"[slots]\ncpu = {CPU_SLOTS}\n{slots}")
    subprocess.run(("slicer", "install", "--broker"), check=True, stdout=subprocess.DEVNULL)
    drop_in = Path(f"/run/systemd/system/{SERVICE}.d/soak.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Service]\nEnvironment=SLICER_SIM={SIM} SLICER_STATE_DIR=/run/no-such-place\n")
    subprocess.run(("systemctl", "daemon-reload"), check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.broker_soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--jobs", type=int, default=40, help="at once (default 40)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    words = [f"--seconds={chosen.seconds}", f"--jobs={chosen.jobs}", f"--seed={chosen.seed}"]
    if "SLICER_TEST_MACHINE" not in os.environ:
        machine = (sys.executable, "-m", "tests.machines", "exec", f"--timeout={chosen.seconds + 600}", "--")
        inside = ("/opt/slicer/bin/python", "-m", "tests.soak.broker_soak", *words)
        return subprocess.run((*machine, *inside), check=False).returncode
    _prepare()
    base = Path("/var/tmp/broker-soak")
    base.mkdir()
    print(f"soaking the broker for {chosen.seconds:.0f} s: --seed {chosen.seed}", flush=True)
    soak = BrokerSoak(base, chosen.seconds, chosen.jobs, chosen.seed)
    try:
        print(soak.run())
    except Broken as broken:
        print(f"BROKEN (--seed {chosen.seed}): {broken}")
        return 1
    finally:
        soak.end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
