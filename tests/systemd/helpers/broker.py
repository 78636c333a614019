"""The broker of the machine, as tests drive it: installed as an administrator does, killed, started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.broker_box import CLIENT, Caller
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Gate, Job, Slicer
from tests.systemd.helpers.users import User

RUN = Path("/run/slicer-broker")
SOCKET = str(RUN / "socket")
SERVICE = "slicer-broker.service"
SCOPE = "tail -n1 /proc/self/cgroup"  # for a shell: which it is
SOCKET_UNIT = "slicer-broker.socket"
ETC = Path("/etc/slicer")
_DROP_IN = Path(f"/run/systemd/system/{SERVICE}.d/test.conf")
_FAULTS = "/run/broker-test"  # no such directory: only files beside it


class Broker:
    """The machine's broker. Each test has it anew; its units may stay from one to the next."""

    def __init__(self, **gpus: str) -> None:
        """``gpus``: the variables by which it sees some. Without them it has simulated ones."""
        self.callers: list[Caller] = []
        _forget_accounts()  # other tests' brokers
        if systemctl.output("systemctl", "is-enabled", SOCKET_UNIT, check=False) == "enabled":
            systemctl.output("systemctl", "start", SOCKET_UNIT)
        else:
            systemctl.output("slicer", "install", "--broker")
        self.configure("[slots]\ncpu = 1\n")
        self.environment(**gpus or {"SLICER_SIM": "2x24G", "SLICER_STATE_DIR": _FAULTS})

    def configure(self, text: str, policy: str = "") -> None:
        """Write the administrator's files."""
        (ETC / "config.toml").write_text(text)
        (ETC / "policy.toml").write_text(policy)

    @staticmethod
    def environment(**variables: str) -> None:
        """Give the service variables from its next start on."""
        lines = [f'Environment="{name}={value}"' for name, value in variables.items()]
        text = "[Service]\n" + "\n".join(lines) + "\n"
        if not _DROP_IN.exists() or _DROP_IN.read_text() != text:
            _DROP_IN.parent.mkdir(parents=True, exist_ok=True)
            _DROP_IN.write_text(text)
            systemctl.output("systemctl", "daemon-reload")
        # Whoever asks at that moment has its socket start it again, which cancels the stop.
        stop = ["systemctl", "--quiet", "stop", SERVICE]
        until(lambda: subprocess.run(stop, check=False).returncode == 0, f"{SERVICE} is stopped")

    def stop_at(self, *points: str, **gpus: str) -> None:
        """From now on it stops at the first of these points that it comes to. ``gpus``: which it sees."""
        Path(f"{_FAULTS}.go").unlink(missing_ok=True)
        faults = f"{_FAULTS}:{','.join(points)}"
        gpus = gpus or {"SLICER_SIM": "2x24G"}
        self.environment(**gpus, SLICER_STATE_DIR=_FAULTS, SLICER_FAULTS=faults)

    def go_on(self) -> None:
        """Stop at no point any more."""
        Path(f"{_FAULTS}.go").touch()

    @property
    def pid(self) -> int:
        return int(systemctl.show(SERVICE, "MainPID")["MainPID"])

    def is_stopped(self) -> bool:
        pid = self.pid
        try:
            return bool(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
        except FileNotFoundError:
            return False

    def kill(self) -> None:
        """``kill -9``, as by a machine that is short of memory."""
        pid = self.pid
        if pid:
            os.kill(pid, signal.SIGKILL)
            until(lambda: self.pid != pid, "systemd has noticed")

    def call(self, who: User, **wish: Any) -> Caller:
        """A process of that user that asks for this."""
        source = str(Path(__file__).parents[3] / "src")
        python = ("env", f"PYTHONPATH={source}", sys.executable)
        argv = [*who.identity, *python, CLIENT, SOCKET, json.dumps(wish)]
        self.callers.append(Caller(argv))
        return self.callers[-1]

    def leases(self) -> list[str]:
        return _names("leases")

    def tickets(self) -> list[str]:
        return _names("tickets")

    def lease(self, job: str) -> dict[str, str]:
        """What everybody may read of it."""
        text = (RUN / "leases" / job).read_text()
        return dict(line.split("=", 1) for line in text.splitlines())

    def close(self) -> None:
        """End it, and leave nothing of it but its units."""
        self.go_on()
        for caller in self.callers:
            caller.close()
        for unit in systemctl.scopes():
            subprocess.run(("systemctl", "kill", "--signal=KILL", unit), check=False, capture_output=True)
        systemctl.output("systemctl", "stop", SOCKET_UNIT, SERVICE, check=False)
        systemctl.output("systemctl", "reset-failed", SOCKET_UNIT, SERVICE, check=False)
        _unconfigure()
        _forget()

    @staticmethod
    def taken_away() -> None:
        """Leave nothing of a broker, whoever installed it."""
        _DROP_IN.unlink(missing_ok=True)
        _unconfigure()
        systemctl.output("slicer", "install", "--broker", "--remove")
        _forget()


def _unconfigure() -> None:
    for name in ("config.toml", "policy.toml"):
        (ETC / name).unlink(missing_ok=True)


def _forget() -> None:
    """Remove what a broker and its users' jobs wrote down."""
    _forget_accounts()
    killed = map(str, Path("/run/lock").glob("slicer-*/leases/*"))  # in their users' own books
    subprocess.run(("rm", "-rf", str(RUN), f"{_FAULTS}.go", *killed), check=True)


def _forget_accounts() -> None:
    """What was used orders users, and what is reserved keeps them waiting."""
    for name in ("usage.db*", "reservations.json"):
        for path in Path("/var/lib/slicer").glob(name):
            path.unlink()


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(RUN / folder))
    except FileNotFoundError:
        return []


def holds(slicer: Slicer, who: User, *options: str, **env: str) -> tuple[Job, Gate]:
    """A job of that user that runs until its gate opens."""
    gate = slicer.gate()
    job = slicer.start(*options, "--", "sh", "-c", f"echo up; : < {gate}", via=who.via, env=env)
    job.said("up")
    return job, gate


def queues(
    slicer: Slicer, who: User, *options: str, script: str = SCOPE, **env: str
) -> Job:
    """A job of that user that has to wait."""
    job = slicer.start(*options, "--", "sh", "-c", script, via=who.via, env=env)
    job.said("waiting for")
    return job


def leaving_nothing(slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    """slicer for a test after which the broker has nothing left; for a fixture."""
    yield slicer
    until(lambda: not broker.leases() and not broker.tickets(), "the broker has nothing left")
