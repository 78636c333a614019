"""Many jobs at once, things done to them, and what must be true in spite of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tests.fake_nvml import FakeNvml
from tests.process.harness import SLICER, Box, children, marked, state_of
from tests.soak.logbook import Logbook, most_at_once
from tests.soak.plan import GPU_GIB, NVML, SLOTS, UUIDS, Abilities, Action, Actions, Spec, spec

WITNESS = Path(__file__).with_name("witness.py")
STALL_S = 30.0  # nobody starts for so long though somebody waits: it is stuck
DRAIN_S = 90.0
STARTS_A_LOOK = 3
LOOK_S = 0.01


class Broken(AssertionError):
    """A promise was broken; the text tells which, with all that helps to find out why."""


@dataclass
class Job:
    """A job of the soak: what was started, and what was done to it."""

    spec: Spec
    process: subprocess.Popen[bytes]
    errors: Path
    done_to_it: list[str] = field(default_factory=list)


@dataclass
class Stop:
    """A ``slicer stop`` of several jobs, which still goes on."""

    pattern: str  # "soak-*": with --mine
    process: subprocess.Popen[str]
    waiting: frozenset[str]  # who had a ticket when it began


@dataclass(frozen=True)
class Options:
    seconds: float
    jobs: int  # at once
    slots: int
    seed: int
    actions_per_s: float
    burst: int = 0  # jobs that are started at the same instant, before all others


def abilities(box: Box, slots: int, *, gpus: bool) -> Abilities:
    """What this slicer can be asked for, by its own help."""
    command = [*SLICER, "run", "--help"]
    text = subprocess.run(command, env=box.env, capture_output=True, text=True, check=True).stdout
    words = {word.strip(",") for word in text.split() if word.startswith("--")}
    return Abilities(slots, frozenset(words), gpus and "--gpus" in words)


class Soak:
    """One run of it, in a box. ``fake`` brings simulated GPUs."""

    def __init__(self, box: Box, options: Options, fake: FakeNvml | None) -> None:
        self._box = box
        self._options = options
        if fake is not None:
            fake.write(NVML)
            box.env.update(fake.env)
        self._can = abilities(box, options.slots, gpus=fake is not None)
        self._base = box.root / "witness"
        self._make_witness("cpu", options.slots)
        for uuid in UUIDS:
            self._make_witness(uuid, GPU_GIB)
        for name, limit in SLOTS.items():
            self._make_witness(f"slot-{name}", limit)
        config = box.root / "soak.toml"
        config.write_text("[slots]\n" + "".join(f'"{name}" = {limit}\n' for name, limit in SLOTS.items()))
        box.env["SLICER_CONFIG"] = str(config)
        self._errors = box.root / "errors"
        self._errors.mkdir()
        self._log = Logbook(box.log)
        self._alive: dict[int, Job] = {}
        self._over: list[Job] = []
        self._stopped: list[tuple[float, int]] = []  # when to continue it, and its pidfd
        self._stops: list[Stop] = []
        self._wrong_stops: list[str] = []
        # Who never began by the word of a stop, or waited when one began and at its end; what that stop said.
        self._no_more: dict[str, str] = {}
        self._done: Counter[str] = Counter()
        self._number = 0
        self._last_start = time.monotonic()

    def _make_witness(self, name: str, units: int) -> None:
        directory = self._base / name
        directory.mkdir(parents=True)
        for unit in range(units):
            (directory / str(unit)).touch()

    # -- running ------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Raises Broken; returns a summary."""
        try:
            self._work()
            self._drain()
            self._log.read()
            self._judge()
            return self._summary()
        finally:
            for _, pidfd in self._stopped:
                os.close(pidfd)
            self._log.close()

    def _work(self) -> None:
        actions = Actions(self._options.seed, self._options.actions_per_s)
        action = actions.next()
        now = time.monotonic()
        end, due = now + self._options.seconds, now + action.pause_s
        for _ in range(self._options.burst):
            self._start()
        while time.monotonic() < end:
            self._look()
            for _ in range(min(STARTS_A_LOOK, self._options.jobs - len(self._alive))):
                self._start()
            if time.monotonic() >= due:
                self._act(action)
                action = actions.next()
                due = time.monotonic() + action.pause_s
            time.sleep(LOOK_S)

    def _drain(self) -> None:
        """Let all that were started come to their end, undisturbed."""
        end = time.monotonic() + DRAIN_S + self._options.jobs + self._options.burst
        while self._alive or self._stopped or self._stops:
            self._look()
            if time.monotonic() > end:
                raise Broken(f"{len(self._alive)} jobs do not end\n{self._dump()}")
            time.sleep(LOOK_S)
        while self._box.processes():
            if time.monotonic() > end:
                raise Broken(f"processes are left\n{self._dump()}")
            time.sleep(LOOK_S)

    def _look(self) -> None:
        now = time.monotonic()
        for job in [job for job in self._alive.values() if job.process.poll() is not None]:
            del self._alive[job.spec.number]
            self._over.append(job)
        for due, pidfd in [each for each in self._stopped if each[0] <= now]:
            self._stopped.remove((due, pidfd))
            _send(pidfd, signal.SIGCONT)
            os.close(pidfd)
        for stop in [stop for stop in self._stops if stop.process.poll() is not None]:
            self._stops.remove(stop)
            self._judge_stop(stop)
        if self._log.read() or not self._alive:
            self._last_start = now
        if self._log.violations:
            raise Broken(f"given away twice: {self._log.violations}\n{self._dump()}")
        if now - self._last_start > STALL_S:
            raise Broken(f"nobody was served for {STALL_S:.0f} s\n{self._dump()}")

    def _start(self) -> None:
        job = spec(self._options.seed, self._number, self._can)
        self._number += 1
        errors = self._errors / job.name
        words = [str(self._box.log), job.name, str(job.hold_ms), str(job.code), str(job.child_ms)]
        words += [str(self._base), str(job.cpu), str(job.gpus), str(job.gib)]
        words += [f"{name}={count}" for name, count in job.slots.items()]
        command = [SLICER[0], "-I", "-S", str(WITNESS), *words]
        with errors.open("wb") as stream:
            process = self._box.start(
                "-q", "--name", job.name, *job.options, "--", *command,
                stdout=subprocess.DEVNULL, stderr=stream,
            )
        means_it = [stop for stop in self._stops if fnmatch(job.name, stop.pattern)]
        self._alive[job.number] = Job(job, process, errors, ["withdraw"] * len(means_it))

    # -- doing things to them -------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        if action.kind in ("shut down", "stop pattern", "stop all"):
            self._done[action.kind] += 1
            digit = int(action.part * 10) if action.kind == "stop pattern" else ""
            self._shut_down() if action.kind == "shut down" else self._withdraw(f"soak-*{digit}")
            return
        wants_waiter = action.kind == "kill waiter"
        fitting = [job for job in self._alive.values() if self._runs(job) is not wants_waiter]
        if action.kind in ("term", "interrupt", "stop"):
            fitting = list(self._alive.values())
        if action.kind == "kill halves":
            # Of the others next to nothing is left to hold on to anything.
            fitting = [job for job in fitting if job.spec.is_long] or fitting
        if not fitting:
            return
        job = fitting[int(action.pick * len(fitting))]
        victims = self._victims(action, job)
        signo = {"term": signal.SIGTERM, "term command": signal.SIGTERM, "interrupt": signal.SIGINT}.get(
            action.kind, signal.SIGKILL
        )
        if action.kind == "stop":
            victims, signo = [victims[int(action.part * len(victims))]], signal.SIGSTOP
        job.done_to_it.append(action.kind)
        self._done[action.kind] += 1
        for pid in victims:
            self._signal(pid, signo, action.stop_s)

    def _shut_down(self) -> None:
        """Ask every process to end at the same time, as systemd does at a shutdown and at a logout."""
        # A job whose supervisor was killed is over; its command may run still.
        for job in [*self._alive.values(), *(job for job in self._over if self._runs(job))]:
            job.done_to_it.append("shut down")
        for pid in self._box.processes():
            self._signal(pid, signal.SIGTERM, 0)

    def _withdraw(self, pattern: str) -> None:
        """Stop all jobs with such a name, and do not wait for their end."""
        waiting = frozenset(each.name for each in self._box.tickets() if fnmatch(each.name, pattern))
        for job in [*self._alive.values(), *(job for job in self._over if self._runs(job))]:
            if fnmatch(job.spec.name, pattern):
                job.done_to_it.append("withdraw")
        process = subprocess.Popen(
            [*SLICER, "stop", "--mine" if pattern == "soak-*" else pattern], env=self._box.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._stops.append(Stop(pattern, process, waiting))

    def _judge_stop(self, stop: Stop) -> None:
        """By the witness: of those it took out of the line none has begun, and none that waited begins."""
        out, err = stop.process.communicate()
        self._log.read()
        never = set(re.findall(r"^no longer waits:? .*  (soak-\d+)$", out, re.MULTILINE))
        self._done["taken out"] += len(never)
        told = f"{stop.pattern} with {stop.process.returncode}: {out[-2000:]!r}; stderr: {err[-2000:]!r}"
        if stop.process.returncode == -signal.SIGTERM:  # shut down: what it has not said is not promised
            self._no_more |= dict.fromkeys(never, told)
            return
        if stop.process.returncode not in (0, 2) or "Traceback" in err:
            self._wrong_stops.append(f"stopped {told}")
        never |= {name for name in stop.waiting if not self._log.run(name).starts}
        self._no_more |= dict.fromkeys(never, told)

    def _runs(self, job: Job) -> bool:
        run = self._log.run(job.spec.name)
        return bool(run.starts) and not run.ends

    def _victims(self, action: Action, job: Job) -> list[int]:
        run = self._log.run(job.spec.name)
        outer = job.process.pid
        keepers = [pid for pid in _children(outer) if _name(pid) == "slicer-keeper"] or [run.keeper]
        return {
            "kill keeper": keepers,
            "kill command": [run.command],
            "term command": [run.command],
            "kill halves": [outer, *keepers],
            "kill tree": [outer, *keepers, run.command, run.child],
            "stop": [pid for pid in (outer, *keepers, run.command) if pid],
        }.get(action.kind, [outer])

    def _signal(self, pid: int, signo: int, stop_s: float) -> None:
        """Signal a process of ours, and not who has its pid by now."""
        if not pid:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        if not marked(pid, self._box.mark):
            os.close(pidfd)
            return
        _send(pidfd, signo)
        if signo == signal.SIGSTOP:
            self._stopped.append((time.monotonic() + stop_s, pidfd))
        else:
            os.close(pidfd)

    # -- judging --------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        wrong = [text for job in self._over if (text := self._wrong_with(job))]
        wrong += self._wrong_in_log() + self._wrong_in_history() + self._wrong_in_state()
        wrong += self._wrong_stops
        if wrong:
            raise Broken("\n".join([f"{len(wrong)} promises were broken:", *wrong[:20]]))

    def _wrong_with(self, job: Job) -> str:
        """What is wrong with one job, "" for nothing."""
        run, code = self._log.run(job.spec.name), job.process.returncode
        harmed = [kind for kind in job.done_to_it if kind != "stop"]
        said = job.errors.read_text(errors="replace")
        told = f"{job.spec}; done to it: {job.done_to_it}; ended with {code}; {run}; stderr: {said[-2000:]!r}"
        if len(run.starts) > 1 or len(run.ends) > len(run.starts):
            return f"served more than once: {told}"
        if run.starts and job.spec.name in self._no_more:
            return f"begun though it had been withdrawn: {told}; by {self._no_more[job.spec.name]}"
        # An interrupted witness says so as every Python does; killed then, it says half of it.
        is_cut = "interrupt" in job.done_to_it and any(kind.startswith("kill") for kind in job.done_to_it)
        # Python that is interrupted before it can run anything calls that fatal.
        is_cut |= "interrupt" in job.done_to_it and said.startswith("Fatal Python error: init_")
        if "Traceback" in said and "KeyboardInterrupt" not in said and not is_cut:
            return f"an error nobody caught: {told}"
        if run.starts and not run.ends and not set(harmed) - {"kill outer", "kill waiter"}:
            return f"its command did not come to its end: {told}"
        if harmed:
            return ""
        if job.spec.may_give_up and code == 75 and not run.starts:
            return ""
        if code != job.spec.code or not run.ends:
            return f"not served as it should have been: {told}"
        return ""

    def _wrong_in_log(self) -> list[str]:
        """By the log alone: those that logged their start and their end did not hold too much together."""
        whole = [(job.spec, run) for job in self._over if (run := self._log.run(job.spec.name)).ends]
        slots = [(run.starts[0], run.ends[0], job.cpu) for job, run in whole]
        room = [(run.starts[0], run.ends[0], job.gpus * job.gib) for job, run in whole]
        found = {"slots": (most_at_once(slots), self._options.slots)}
        for name, limit in SLOTS.items():
            held = [(run.starts[0], run.ends[0], job.slots.get(name, 0)) for job, run in whole]
            found[f"{name} slots"] = (most_at_once(held), limit)
        found["GiB on GPUs"] = (most_at_once(room), GPU_GIB * len(UUIDS))
        return [
            f"{most} {what} were held at once of {all_}"
            for what, (most, all_) in found.items()
            if most > all_
        ]

    def _wrong_in_history(self) -> list[str]:
        """Each job is recorded once at most, and those that were left alone as they ended."""
        recorded = Counter(outcome.name for outcome in self._box.outcomes())
        twice = [name for name, times in recorded.items() if times > 1]
        wrong = [f"recorded more than once: {twice}"] if twice else []
        return wrong + [
            f"not recorded: {job.spec}"
            for job in self._over
            if self._log.run(job.spec.name).ends and not job.done_to_it and job.spec.name not in recorded
        ]

    def _wrong_in_state(self) -> list[str]:
        """Whoever comes next finds everything free, and leaves nothing behind."""
        every = [word for name, limit in SLOTS.items() for word in ("--slot", f"{name}={limit}")]
        last = self._box.run("-q", "-p", "heavy", *every, "--no-wait", "--", "true")
        wrong = [f"the slots are not free: {last}"] if last.returncode != 0 or last.stderr else []
        if self._can.gpus:
            last = self._box.run("-q", "--gpus", str(len(UUIDS)), "--no-wait", "--", "true")
            wrong += [f"the GPUs are not free: {last}"] if last.returncode != 0 else []
        left = sorted(set(self._box.state_files()) - {"lock", "version"})
        return wrong + ([f"left in the state directory: {left}"] if left else [])

    # -- telling --------------------------------------------------------------------------------------------

    def _summary(self) -> str:
        served = sum(1 for job in self._over if self._log.run(job.spec.name).ends)
        alone = sum(1 for job in self._over if not job.done_to_it)
        busy = sum(1 for job in self._over if job.process.returncode == 75)
        done = ", ".join(f"{kind} {times}" for kind, times in sorted(self._done.items()))
        words: Counter[str] = Counter()
        for job in self._over:
            words.update(line[:120] for line in job.errors.read_text(errors="replace").splitlines()[:1])
        said = "".join(f"\n  {times} times: {line}" for line, times in words.most_common(12))
        return (
            f"seed {self._options.seed}: {len(self._over)} jobs, {alone} left alone, {served} ran to their "
            f"end, {busy} busy; done to them: {done}; first lines on stderr:{said}"
        )

    def _dump(self) -> str:
        lines = [f"seed {self._options.seed}; state: {self._box.state_files()}"]
        by_pid = {job.process.pid: job for job in self._alive.values()}
        for pid in self._box.processes():
            job = by_pid.get(pid)
            what = f"{job.spec} done to it: {job.done_to_it}" if job else ""
            lines.append(
                f"{pid} {state_of(pid)} {_name(pid)} {_sleeps_in(pid)} children {_children(pid)} {what}"
            )
        for folder in ("leases", "tickets"):
            for path in sorted((self._box.state / folder).glob("*")):
                data = path.read_bytes() if path.exists() else b""
                lines.append(f"{folder}/{path.name}: {data!r}")
        running = [name for name, run in self._log.runs.items() if run.starts and not run.ends]
        return "\n".join([*lines, f"started and not ended: {running[-40:]}"])


def _send(pidfd: int, signo: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signo)
    except ProcessLookupError:
        pass


def _children(pid: int) -> list[int]:
    try:
        return children(pid)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _name(pid: int) -> str:
    return _read(f"/proc/{pid}/comm")


def _sleeps_in(pid: int) -> str:
    return f"{_read(f'/proc/{pid}/wchan')} {_read(f'/proc/{pid}/syscall')[:40]}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
