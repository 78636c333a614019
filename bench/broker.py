"""The broker: launches by three users at once, hand-offs between them, a thousand who wait, a cold start.

Runs inside the machine, as root. Standard library only. Installs the broker, and takes it away again.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import broker_user, chain
from bench.tools import QUIET, SCOPE, SLICER, ProcessEach, flock

USERS = ("alice", "bob", "carol")
CONFIG = Path("/etc/slicer/config.toml")
SETTINGS = "[slots]\ncpu = 4096\nbench = 1\n"
ROUNDS, WARM_UP = 40, 3
PAUSE_S = 0.1
PEER = "flock L systemd-run --scope (root)"
LAUNCH = "slicer run --profile heavy"
LAUNCHES = {
    PEER: ("root", ["flock", "/tmp/bench.lock.USER", *SCOPE, "true"]),
    "flock L systemd-run --user --scope": (
        "user", ["flock", "/tmp/bench.lock.USER", "systemd-run", "--user", *SCOPE[1:], "true"],
    ),
    LAUNCH: ("user", [*SLICER, "--", "true"]),
    f"{LAUNCH} --exec": ("user", [*SLICER, "--exec", "--", "true"]),
    "slicer run": ("user", ["slicer", "run", "-q", "--", "true"]),
    f"{LAUNCH}, without the broker": ("alone", [*SLICER, "--", "true"]),
}  # fmt: skip
HANDOFFS = {"after jobs of 100 ms": 100, "after jobs of no length": 0}
HANDOFF_ROUNDS = 8
WAITERS = 10
MANY = 999  # and the one that holds the slot: 1,000 connections
SERVED = 100
ASKED = 100
HOLD_S = 0.03
COLD = 20
DEADLINE_S = 120.0


def measure() -> dict[str, Any]:
    """All samples: seconds, but hand-offs in ms and memory in KiB."""
    with _broker():
        return {
            "cold": _cold(), "launch": _launch(), "handoff": _handoff(), "many": _many(), "lone": _memory(),
        }  # fmt: skip


# -- the place ----------------------------------------------------------------------------------------------


@contextmanager
def _broker() -> Iterator[None]:
    """Three users with managers of their own, and the broker for all of them."""
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CONFIG.write_text(SETTINGS)
    for user in USERS:
        if subprocess.run(["id", user], check=False, **QUIET).returncode:  # type: ignore[call-overload]
            _do("useradd", "--create-home", user)
        _do("loginctl", "enable-linger", user)
        _do("systemctl", "start", f"user@{pwd.getpwnam(user).pw_uid}.service")
    _do("slicer", "install", "--broker")
    try:
        yield
    finally:
        _do("slicer", "install", "--broker", "--remove")
        CONFIG.unlink()


def _do(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{argv} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _environ(user: str) -> dict[str, str]:
    entry = pwd.getpwnam(user)
    known = {"HOME": entry.pw_dir, "USER": user, "XDG_RUNTIME_DIR": f"/run/user/{entry.pw_uid}"}
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **known}


def _identity(user: str) -> dict[str, Any]:
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class Driver:
    """A process of a user that does what it is told (``broker_user.py``)."""

    def __init__(self, user: str) -> None:
        self.user = user
        self._process = subprocess.Popen(
            [sys.executable, broker_user.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=_environ(user), cwd="/", **_identity(user),
        )  # fmt: skip

    def tell(self, *order: Any) -> None:
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), json.dumps(order).encode())

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.user}'s process ended: see above")
        return json.loads(line)

    def ask(self, *order: Any) -> Any:
        self.tell(*order)
        return self.hear()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@contextmanager
def _drivers(users: Sequence[str]) -> Iterator[list[Driver]]:
    with ExitStack() as stack:
        made = []
        for user in users:
            made.append(Driver(user))
            stack.callback(made[-1].end)
        yield made


# -- launches -----------------------------------------------------------------------------------------------


def _launch() -> dict[str, dict[str, list[float]]]:
    """One of each row in turn. Three at once: each user's own time."""
    with _drivers(["root"] * len(USERS)) as roots, _drivers(USERS) as users:
        found: dict[str, dict[str, list[float]]] = {}
        for where, number in {"three users at once": len(USERS), "one user": 1}.items():
            samples = found[where] = {name: [] for name in LAUNCHES}
            for turn in range(WARM_UP + ROUNDS):
                for name, (who, argv) in LAUNCHES.items():
                    time.sleep(PAUSE_S)
                    took = _at_once((roots if who == "root" else users)[:number], argv, who)
                    if turn >= WARM_UP:
                        samples[name] += took
    return found


def _at_once(drivers: Sequence[Driver], argv: Sequence[str], who: str) -> list[float]:
    for place, driver in enumerate(drivers):
        environ = _environ(driver.user)
        if who == "alone":
            environ["SLICER_BROKER"] = "off"
        driver.tell("run", [word.replace("USER", f"{who}{place}") for word in argv], environ)
    return [driver.hear() for driver in drivers]


# -- hand-offs ----------------------------------------------------------------------------------------------


class ThreeUsers(ProcessEach):
    """The jobs of a chain are the users' by turns."""

    def begin(self, directory: Path) -> None:
        super().begin(directory)
        directory.chmod(0o755)
        for name in ("log", "gate"):
            (directory / name).chmod(0o666)

    def add(self, jobs: Sequence[list[str]]) -> None:
        for job in jobs:
            user = USERS[len(self._processes) % len(USERS)]
            words, how = [*self._words, *job], {**_identity(user), **QUIET, "start_new_session": True}
            self._processes.append(subprocess.Popen(words, env=_environ(user), cwd="/", **how))


def _handoff() -> dict[str, dict[str, list[float]]]:
    """Chains of each tool in turn: ms from a job's end to the next one's first instruction."""
    chain.build_mark()
    words = [*SLICER, "--slot", "bench", "--"]
    rows = [flock(), ThreeUsers(f"{LAUNCH}, three users", words)]
    rows.append(ThreeUsers(f"{LAUNCH} --exec, three users", [*words[:-1], "--exec", "--"]))
    found: dict[str, dict[str, list[float]]] = {
        length: {row.name: [] for row in rows} for length in HANDOFFS
    }
    for turn in range(1 + HANDOFF_ROUNDS):
        for length, hold_ms in HANDOFFS.items():
            for row in rows:
                samples = chain.handoffs_ms(row, WAITERS, hold_ms)
                if turn:
                    found[length][row.name] += samples
    return found


# -- many ---------------------------------------------------------------------------------------------------


def _many() -> dict[str, Any]:
    """A thousand connections of three users wait for one slot."""
    chain.SCRATCH.mkdir(exist_ok=True)
    log = chain.SCRATCH / "broker.log"
    log.unlink(missing_ok=True)
    log.touch()
    log.chmod(0o666)
    holder = broker_user.Caller()
    holder.acquire(wait=False)
    granted = holder.receive()
    if "error" in granted:
        raise RuntimeError(granted)
    holder.close()  # a connection that says nothing is left; the lease counts by this process
    with _drivers(USERS) as users:
        for driver in users:
            driver.tell("wait", MANY // len(USERS))
        for driver in users:
            driver.hear()
        memory = _memory()
        refused = users[0].ask("ask", ASKED)
        for driver in users:
            driver.tell("serve", HOLD_S, str(log))
        time.sleep(1.0)
        caller = broker_user.Caller()
        released_ns = time.monotonic_ns()
        caller.send("Release", {"job": holder.job})
        caller.receive()
        caller.close()
        end_s = time.monotonic() + DEADLINE_S
        while log.read_text().count("granted") < SERVED:
            if time.monotonic() > end_s:
                raise RuntimeError(f"of {SERVED} that wait, {log.read_text().count('granted')} were served")
            time.sleep(0.1)
        for driver in users:
            driver.ask("leave")
    return {"memory": memory, "refused": refused, "served": _gaps(released_ns, log.read_text())}


def _gaps(released_ns: int, text: str) -> list[float]:
    """Seconds from each release to the next grant."""
    instants = sorted((int(ns), word) for word, ns in map(str.split, text.splitlines()))
    found = []
    for ns, word in instants:
        if word == "released":
            released_ns = ns
        else:
            found.append((ns - released_ns) / 1e9)
    return found[:SERVED]


def _memory() -> dict[str, int]:
    """KiB of the broker's process."""
    broker_user.status_s()  # it runs
    pid = _do("systemctl", "show", "-P", "MainPID", "slicer-broker.service").strip()
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
    private = fields["Private_Clean"] + fields["Private_Dirty"]
    return {"rss": fields["Rss"], "pss": fields["Pss"], "private": private}


# -- cold ---------------------------------------------------------------------------------------------------


def _cold() -> dict[str, list[float]]:
    """From connect to the answer: the broker has left; it runs."""
    found: dict[str, list[float]] = {"it has left": [], "it runs": []}
    for _ in range(COLD):
        _do("systemctl", "stop", "slicer-broker.service")
        time.sleep(PAUSE_S)
        found["it has left"].append(broker_user.status_s())
        time.sleep(PAUSE_S)
        found["it runs"].append(broker_user.status_s())
    return found
