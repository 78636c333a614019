"""``slicer queue --detach``: a queue that is a service, and outlives the session that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Done, Slicer, leases, tickets
from tests.systemd.helpers.queues import Queues, cgroup_of, wide_open
from tests.systemd.helpers.terminal import Terminal
from tests.systemd.helpers.users import User, stop_manager, user

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

SIM = ("--sim", "2", "--poll", "0.1")
SIM_NAME = "sim-2x24G"
_SESSION = "made-session.service"


@dataclass(frozen=True)
class Manager:
    """Whose service it is."""

    systemctl: tuple[str, ...]
    journalctl: tuple[str, ...]  # up to the unit's name
    via: tuple[str, ...]
    ledger: str


JOURNALCTL = ("journalctl", "--no-pager", "--quiet", "--output=cat")
ROOT = Manager(("systemctl",), (*JOURNALCTL, "--unit"), (), SYSTEM_LEDGER)


def of(someone: User) -> Manager:
    # By herself: journalctl's --user-unit means the reader's own.
    reader = ("setpriv", f"--reuid={someone.name}", "--regid=systemd-journal", "--clear-groups")
    shown = (*reader, *JOURNALCTL, "--user-unit")
    return Manager(someone.systemctl, shown, someone.via, someone.ledger)


class Service:
    """A detached queue, as its user sees it from outside."""

    def __init__(self, done: Done, log_dir: Path, manager: Manager) -> None:
        self.told = json.loads(done.stdout)
        self.unit = str(self.told["unit"])
        self.manager = manager
        self.log = log_dir / "queue.log"

    def show(self, *names: str) -> dict[str, str]:
        return systemctl.show(self.unit, *names, prefix=self.manager.systemctl)

    @property
    def pid(self) -> int:
        return int(self.show("MainPID")["MainPID"])

    def events(self, kind: str) -> list[dict[str, Any]]:
        text = self.log.read_text() if self.log.exists() else ""
        told = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [each for each in told if each["event"] == kind]

    def has_told(self, kind: str, times: int = 1) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            found = self.events(kind)
            return found[times - 1] if len(found) >= times else None

        try:
            return until(find, f"{times} x {kind!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said {self.log.read_text()!r}") from None

    def send(self, signo: signal.Signals) -> None:
        """As the help has it."""
        command = ("kill", f"--signal={signo.name}", "--kill-who=main", self.unit)
        systemctl.output(*self.manager.systemctl, *command)

    def is_gone(self) -> bool:
        return self.show("LoadState")["LoadState"] == "not-found"

    def end(self) -> None:
        until(self.is_gone, f"{self.unit} is gone")

    def messages(self) -> str:
        """What the journal has of the unit, from its manager."""
        systemctl.output("journalctl", "--sync")
        return systemctl.output(*self.manager.journalctl, self.unit)


class Detached(Queues):
    """Detaches queues of one jobs file."""

    def __init__(self, slicer: Slicer, manager: Manager, name: str) -> None:
        super().__init__(slicer, manager.via, name)
        self.manager = manager
        self.services: list[Service] = []

    def detach(self, *options: str, env: dict[str, str] | None = None) -> Service:
        done = self.run("--detach", *SIM, *options, env=env)
        assert done.code == 0, done
        self.services.append(Service(done, self.log_dir, self.manager))
        return self.services[-1]

    def close(self) -> None:
        for service in self.services:
            systemctl.output(*self.manager.systemctl, "kill", "--signal=KILL", service.unit, check=False)
            systemctl.output(*self.manager.systemctl, "stop", service.unit, check=False)
        for scope in systemctl.scopes(self.manager.systemctl):  # of a test that failed
            systemctl.output(*self.manager.systemctl, "kill", "--signal=KILL", scope, check=False)
        until(self._is_clean, "the ledgers are empty")

    def _is_clean(self) -> bool:
        ledgers = self.manager.ledger, f"{self.manager.ledger}/{SIM_NAME}"
        return not any(leases(ledger) or tickets(ledger) for ledger in ledgers)


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    return public_slicer


@pytest.fixture(params=["root", "alice"])
def queues(request: pytest.FixtureRequest, slicer: Slicer) -> Iterator[Detached]:
    """Of each of the two managers."""
    manager = ROOT if request.param == "root" else of(request.getfixturevalue("alice"))
    made = Detached(slicer, manager, request.param)
    yield made
    made.close()


@pytest.fixture
def roots(slicer: Slicer) -> Iterator[Detached]:
    made = Detached(slicer, ROOT, "roots")
    yield made
    made.close()


# -- the service ---------------------------------------------------------------------------------------------


@pytest.mark.core
def test_it_runs_as_a_service_and_its_jobs_in_scopes_of_their_own(slicer: Slicer, queues: Detached) -> None:
    # E7, E12
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}; exit 3", f"[profile=heavy] : < {gate}")
    service = queues.detach("--jobs", "2")
    service.has_told("started", times=2)
    shown = service.show("Description", "ActiveState", "KillMode", "Restart", "OOMPolicy", "TimeoutStopUSec")
    assert shown == {
        "Description": f"slicer queue {queues.file.name}", "ActiveState": "active", "KillMode": "process",
        "Restart": "on-abnormal", "OOMPolicy": "continue", "TimeoutStopUSec": "infinity",
    }  # fmt: skip
    inside = cgroup_of(service.unit, queues.manager.systemctl)
    assert service.pid in processes.in_cgroup(inside)
    for no, its_slice in ((1, "gpu.slice"), (2, "cpu.slice")):
        scope = queues.scope(no)
        its = cgroup_of(scope, queues.manager.systemctl)
        assert systemctl.show(scope, "Slice", prefix=queues.manager.systemctl) == {"Slice": its_slice}
        assert len(processes.in_cgroup(its)) >= 2
        assert not its.startswith(inside)
    with wide_open(gate):
        service.end()
    assert service.events("summary")
    assert queues.exit_codes() == {1: 3, 2: 0}
    assert "status=3/" in service.messages()
    assert (queues.log_dir / "status.txt").exists()


@pytest.mark.core
def test_it_is_listed_and_its_board_is_shown_at_a_terminal(slicer: Slicer, queues: Detached) -> None:  # U1
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}; exit 3")
    service = queues.detach()
    service.has_told("started")
    via, env = queues.manager.via, slicer.environ()
    listed = subprocess.run([*via, "slicer", "queue", "--json"], env=env, capture_output=True, check=True)
    (told,) = json.loads(listed.stdout)["queues"]
    assert (told["unit"], told["pid"], told["file"]) == (service.unit, service.pid, str(queues.file))
    command = (*via, "slicer", "queue", str(queues.file), "--log-dir", str(queues.log_dir))
    with Terminal(*command, env=env) as terminal:
        terminal.expect("1 running")
        terminal.type("q")
        terminal.expect(f"left the board: the queue continues (pid {service.pid})")
        assert terminal.end() == 0
    with Terminal(*command, env=env) as terminal:
        terminal.expect("1 running")
        with wide_open(gate):
            terminal.expect("1 failed")
            assert terminal.end() == 3
    service.end()


@pytest.mark.core
def test_it_has_its_callers_environment_and_directory(slicer: Slicer, queues: Detached) -> None:  # E7
    queues.write("[vram=1G] env -0; pwd")
    odd = {
        "ODD": "\x1b[1m $HOME %h", "CONDA_PREFIX": "/opt/conda", "CUDA_HOME": "/opt/cuda", "TERM": "xterm",
        "TMUX": "x", "SLICER_THERE": "yes",
    }  # fmt: skip
    queues.detach(env=odd).end()
    seen = dict(item.split("=", 1) for item in queues.log(1).split("\0")[:-1])
    wanted = {
        name: value for name, value in slicer.environ(**odd).items() if name not in ("TERM", "TMUX", "HOME")
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert seen["SLICER_SIM"] == "2x24G"
    assert not {"TERM", "TMUX", "INVOCATION_ID", "JOURNAL_STREAM"} & set(seen)
    assert queues.log(1).split("\0")[-1].strip() == str(slicer.directory)


@pytest.mark.core
def test_no_other_user_can_read_its_environment(slicer: Slicer, roots: Detached) -> None:
    gate = slicer.gate()
    roots.write(f"[vram=1G] : < {gate}")
    service = roots.detach(env={"WANDB_API_KEY": "not-for-bob"})
    service.has_told("started")
    bob = user("bob")
    shown = systemctl.output(*bob.identity, "systemctl", "show", service.unit)
    assert "not-for-bob" not in shown
    found = systemctl.output(
        "grep", "--recursive", "-l", "not-for-bob", "/run/systemd", "/run/slicer", check=False
    )
    assert found == ""
    with wide_open(gate):
        service.end()


def test_it_says_how_to_follow_stop_and_resume_it(slicer: Slicer, roots: Detached) -> None:  # E8
    roots.write("[vram=1G] true")
    command = ("slicer", "queue", str(roots.file), "--log-dir", str(roots.log_dir), *SIM, "--detach")
    said = systemctl.output(*command, env=slicer.environ()).splitlines()
    assert len(said) == 3, said
    assert "after a reboot" in said[2]
    unit = said[0].split()[2].rstrip(":")
    assert f"tail -f {roots.log_dir}/queue.log" in said[0]
    assert f"slicer queue stop {roots.file} --finish: " in said[1]
    until(lambda: systemctl.show(unit, "LoadState")["LoadState"] == "not-found", "it has ended")
    lines = (roots.log_dir / "queue.log").read_text().splitlines()
    assert any("job 1 ok" in line for line in lines), lines


# -- the session ---------------------------------------------------------------------------------------------


@pytest.fixture
def session(queues: Detached) -> Iterator[str]:
    """The name that the queue's user goes by in a login session."""
    yield "root" if queues.manager is ROOT else "alice"
    systemctl.output("systemctl", "stop", _SESSION, check=False)


def sessions(name: str) -> list[str]:
    """The user's, but for that of the manager."""
    listed = systemctl.output("loginctl", "list-sessions", "--no-legend").splitlines()
    ids = [line.split()[0] for line in listed if line.split()[2] == name]
    show = ("loginctl", "show-session", "--property=Class")
    classes = {each: systemctl.output(*show, each, check=False) for each in ids}  # one may be gone by now
    return [each for each, its_class in classes.items() if its_class and "manager" not in its_class]


@pytest.mark.core
def test_it_survives_the_end_of_the_session_that_started_it(
    slicer: Slicer, queues: Detached, session: str
) -> None:  # E7
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}", "[vram=20G gpus=2] exit 4")
    said = slicer.path("said")
    said.touch()
    said.chmod(0o666)
    command = (
        f"slicer queue {queues.file} --log-dir {queues.log_dir} --json --detach {' '.join(SIM)} > {said}"
    )
    environ = [f"--setenv={name}={value}" for name, value in slicer.environ().items() if name != "HOME"]
    before = sessions(session)
    systemctl.output(
        "systemd-run", "--quiet", f"--unit={_SESSION}", f"--property=User={session}",
        "--property=PAMName=login", *environ, "sh", "-c", f"{command}; exec sleep 1000",
    )  # fmt: skip
    until(lambda: said.read_text().endswith("\n"), "it is detached")
    service = Service(Done(0, 0, said.read_text(), ""), queues.log_dir, queues.manager)
    queues.services.append(service)
    service.has_told("started")
    (its,) = set(sessions(session)) - set(before)
    systemctl.output("loginctl", "terminate-session", its)
    until(lambda: its not in sessions(session), "the session is gone")
    assert service.show("ActiveState")["ActiveState"] == "active"
    with wide_open(gate):
        service.end()
    assert queues.exit_codes() == {1: 0, 2: 4}


def test_a_user_whose_manager_ends_with_the_last_session_is_told(slicer: Slicer) -> None:  # E7
    bob = user("bob")
    systemctl.output("systemctl", "start", f"user@{bob.uid}.service")
    bobs = Detached(slicer, of(bob), "bobs")
    try:
        bobs.write("[vram=1G] true")
        done = bobs.run("--detach", *SIM)
        assert done.code == 0, done
        assert "loginctl enable-linger bob" in done.stderr
        bobs.services.append(Service(done, bobs.log_dir, bobs.manager))
        bobs.services[0].end()
        bobs.close()
    finally:
        stop_manager(bob)


def test_who_lingers_is_told_nothing(queues: Detached) -> None:
    queues.write("[vram=1G] true")
    done = queues.run("--detach", *SIM)
    assert "enable-linger" not in done.stderr
    Service(done, queues.log_dir, queues.manager).end()


# -- its end -------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_stopped_it_starts_nothing_new_and_waits_for_what_runs(
    slicer: Slicer, queues: Detached
) -> None:  # E7
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}", "[vram=1G] echo second")
    service = queues.detach("--jobs", "1")
    service.has_told("started")
    systemctl.output(*queues.manager.systemctl, "stop", "--no-block", service.unit)
    service.has_told("stopping")
    assert service.show("ActiveState")["ActiveState"] == "deactivating"
    with wide_open(gate):
        service.end()
    assert queues.exit_codes() == {1: 0}
    assert not service.events("ending")
    queues.detach().end()
    assert queues.exit_codes() == {1: 0, 2: 0}


@pytest.mark.core
def test_a_second_signal_ends_what_runs_and_it_stays_ended(slicer: Slicer, queues: Detached) -> None:  # E7
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}")
    service = queues.detach()
    service.has_told("started")
    service.send(signal.SIGTERM)
    service.has_told("stopping")
    service.send(signal.SIGTERM)
    service.end()
    assert service.events("ending")
    assert len(service.events("opened")) == 1  # not restarted
    assert not systemctl.scopes(queues.manager.systemctl)


@pytest.mark.core
@pytest.mark.parametrize("options", [(), ("--backend", "plain")], ids=["scopes", "plain"])
def test_killed_it_comes_back_and_runs_nothing_twice(
    slicer: Slicer, queues: Detached, options: tuple[str, ...]
) -> None:  # E7
    gate = slicer.gate()
    ran = slicer.path("ran")
    queues.write(f"[vram=1G] echo first >> {ran}", f"[vram=1G] echo second >> {ran}; : < {gate}; exit 7")
    service = queues.detach("--fresh", *options)
    service.has_told("finished")
    until(lambda: ran.read_text().count("second"), "the second runs")
    service.send(signal.SIGKILL)
    service.has_told("adopted")
    with wide_open(gate):
        service.end()
    assert sorted(ran.read_text().split()) == ["first", "second"]
    assert queues.exit_codes() == {1: 0, 2: 7}


@pytest.mark.core
def test_without_scopes_the_jobs_go_on_though_they_sit_in_its_cgroup(
    slicer: Slicer, queues: Detached
) -> None:
    # E7
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}; exit 6")
    service = queues.detach("--backend", "plain")
    service.has_told("started")
    assert len(processes.in_cgroup(cgroup_of(service.unit, queues.manager.systemctl))) >= 3
    systemctl.output(*queues.manager.systemctl, "stop", "--no-block", service.unit)
    service.has_told("stopping")
    with wide_open(gate):
        service.end()
    assert queues.exit_codes() == {1: 6}


# -- what cannot be right is said on the terminal ------------------------------------------------------------


def units() -> str:
    return systemctl.output("systemctl", "list-units", "--all", "--plain", "--no-legend", "slicer-queue-*")


@pytest.mark.core
def test_a_second_queue_of_the_log_directory_is_refused_on_the_terminal(
    slicer: Slicer, roots: Detached
) -> None:
    # E7
    gate = slicer.gate()
    roots.write(f"[vram=1G] : < {gate}")
    service = roots.detach()
    service.has_told("started")
    done = roots.run("--detach", *SIM)
    assert done.code == 75, done
    assert json.loads(done.stderr)["error"] == "queue-busy"
    assert str(service.pid) in done.stderr
    with wide_open(gate):
        service.end()


@pytest.mark.parametrize(
    ("line", "options", "code", "says"),
    [
        ("[vram=lots] true", SIM, 2, "jobs.txt:1:"),
        ("[profile=nobody] true", SIM, 2, "unknown profile"),
        ("true", ("--sim", "none"), 2, "--sim"),
        ("true", ("--sim", "2", "--log-dir", "/proc/there"), 125, "/proc/there"),
    ],
)
def test_what_cannot_be_right_starts_no_service(
    slicer: Slicer, line: str, options: tuple[str, ...], code: int, says: str
) -> None:  # E1, E7
    queues = Queues(slicer)
    queues.write(line)
    done = queues.run("--detach", *options)
    assert (done.code, done.stdout) == (code, ""), done
    assert says in done.stderr
    assert units() == ""


def test_a_symbolic_link_in_place_of_its_log_is_refused(slicer: Slicer, roots: Detached) -> None:
    roots.write("[vram=1G] true")
    roots.log_dir.mkdir()
    (roots.log_dir / "queue.log").symlink_to("/etc/passwd")
    before = Path("/etc/passwd").read_bytes()
    done = roots.run("--detach", *SIM)
    assert done.code == 125, done
    assert "queue.log" in done.stderr
    assert Path("/etc/passwd").read_bytes() == before
    assert units() == ""


def test_without_a_user_manager_the_error_says_the_way_out(slicer: Slicer) -> None:  # E7
    bob = user("bob")
    assert not os.path.exists(bob.runtime), "bob has a manager"
    queues = Queues(slicer, (*bob.identity, "env", f"HOME={bob.home}"), "bobs")
    queues.write("[vram=1G] true")
    done = queues.run("--detach", *SIM)
    assert done.code == 125, done
    assert "enable-linger bob" in done.stderr
    assert not queues.log_dir.exists()
