"""What lives on after a logout: the table of docs/background.md, on a real logind and its sessions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.backend import serve_units
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User, start_manager, user

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

_SESSION = "made-session.service"
_LOGIND = Path("/run/systemd/logind.conf.d/50-test.conf")
_COMMANDS = {
    "run": "slicer run --detach -- sh jobs.sh > said 2>&1",
    "queue": "slicer queue --detach --log-dir logs jobs.txt > said 2>&1",
    "foreground": "slicer run -- sh jobs.sh > said 2>&1 &",
    "hold": "slicer hold > said 2>&1 & echo $! > pid",
}
_PORT = 8126
_CONFIG = f"""\
[serve.model]
kind = "raw"
listen = ["127.0.0.1:{_PORT}"]
command = ["python3", "-m", "http.server", "${{PORT}}"]
profile = "light"
"""
# The server that it starts knows no POST: 501. slicer itself would answer with 503.
_ASK = f"""\
import http.client
asks = http.client.HTTPConnection('127.0.0.1', {_PORT})
asks.request('POST', '/')
print(asks.getresponse().status)
"""
_SERVE = f"""\
mkdir -p ~/.config/slicer; printf '%s' '{_CONFIG}' > ~/.config/slicer/config.toml
slicer install --user --serve model > said 2>&1; python3 -c "{_ASK}"
systemctl --user show --property=MainPID --value {serve_units.service_of("model")} > pid"""
# What ends early: by KillUserProcesses, where its user stands, and what was started.
_ENDS = {(False, "alone", "queue"), (True, "alone", "queue"), (True, "alone", "run")}


@pytest.fixture
def bob(public_slicer: Slicer) -> Iterator[User]:
    """Without a session, a manager or linger, before and afterwards."""
    made = user("bob")
    yield made
    _LOGIND.unlink(missing_ok=True)
    reread()
    systemctl.output("loginctl", "disable-linger", made.name)
    systemctl.output("loginctl", "terminate-user", made.name, check=False)
    until(lambda: not Path(f"/run/systemd/users/{made.uid}").exists(), "logind has forgotten him")


@pytest.mark.parametrize("what", ["run", "queue"])
@pytest.mark.parametrize("where", ["alone", "lingers", "broker"])
@pytest.mark.parametrize("kills", [False, True], ids=["spares", "kills"])
def test_what_lives_on_after_a_logout_is_what_the_table_says(
    public_slicer: Slicer, bob: User, request: pytest.FixtureRequest, what: str, where: str, kills: bool
) -> None:  # E7, U1
    said, pid = after_logout(public_slicer, bob, request, _COMMANDS[what], where, kills)
    ends = (kills, where, what) in _ENDS
    assert ("would end it" in said) is ends, "it is told so"
    if not ends:
        assert os.path.exists(f"/proc/{pid}"), said
        os.kill(pid, 9)
    until(lambda: not os.path.exists(f"/proc/{pid}"), "it has ended")


@pytest.mark.parametrize("what", ["foreground", "hold"])
@pytest.mark.parametrize("where", ["alone", "lingers", "broker"])
def test_what_is_not_detached_ends_with_a_session_that_is_killed(
    public_slicer: Slicer, bob: User, request: pytest.FixtureRequest, what: str, where: str
) -> None:  # E7
    _, pid = after_logout(public_slicer, bob, request, _COMMANDS[what], where, kills=True)
    until(lambda: not os.path.exists(f"/proc/{pid}"), "it has ended")


@pytest.mark.parametrize("removes", [False, True], ids=["keeps", "removes"])
@pytest.mark.parametrize("place", ["/run/lock", "/dev/shm"])
def test_a_ledger_outlives_the_logout_where_the_doctor_says_so(
    public_slicer: Slicer, bob: User, place: str, removes: bool
) -> None:  # K2, S12
    """A job of cron's goes on. In any case nobody else is given what it holds."""
    plain, gate = ("--backend=plain", "-p", "heavy"), public_slicer.gate()
    ledger = f"{place}/slicer-{bob.uid}"
    mode = os.stat("/run/lock").st_mode & 0o7777
    os.chmod("/run/lock", 0o755 if place == "/dev/shm" else mode)
    logind_has(f"RemoveIPC={'yes' if removes else 'no'}")
    try:
        job = public_slicer.start(*plain, "--", "sh", "-c", f"echo up; : <{gate}", via=bob.bare)
        job.said("up")
        login_and_out(public_slicer, bob, his_place(public_slicer, bob), ": > said; echo 1 > pid")
        emptied = removes and place == "/dev/shm"
        until(lambda: os.path.exists(ledger) is not emptied, "logind has looked")
        second = public_slicer.run(*plain, "--no-wait", "--", "true", via=bob.bare)
        assert second.code == 75, second
        assert ("deleted" in second.stderr) is emptied, second.stderr
        gate.open()
        assert job.end().code == 0
        assert public_slicer.run(*plain, "--", "true", via=bob.bare).code == 0
    finally:
        os.chmod("/run/lock", mode)
        shutil.rmtree(ledger, ignore_errors=True)


@pytest.mark.parametrize("where", ["alone", "lingers"])
def test_a_server_of_the_users_own_manager_ends_with_it(
    public_slicer: Slicer, bob: User, request: pytest.FixtureRequest, where: str
) -> None:  # E7, B6
    """Where he lingers, it answers after the logout as before."""
    config = bob.home / ".config/slicer/config.toml"
    try:
        _, pid = after_logout(public_slicer, bob, request, _SERVE, where, kills=False)
        if where == "lingers":
            assert os.path.exists(f"/proc/{pid}")
            assert systemctl.output("python3", "-c", _ASK) == "501"
        else:
            until(lambda: not os.path.exists(f"/proc/{pid}"), "it has ended")
    finally:
        start_manager(bob)
        systemctl.output(*bob.via, "slicer", "install", "--user", "--remove", "--serve", "model")
        shutil.rmtree(config.parent)


def after_logout(
    slicer: Slicer, bob: User, request: pytest.FixtureRequest, command: str, where: str, kills: bool
) -> tuple[str, int]:
    """What the command said in a session that is over by now, and the pid of its job."""
    if where == "broker":
        request.getfixturevalue("broker")
    if where == "lingers":
        systemctl.output("loginctl", "enable-linger", bob.name)
    logind_has(f"KillUserProcesses={'yes' if kills else 'no'}")
    place = his_place(slicer, bob)
    (place / "jobs.sh").write_text(f"echo $$ > {place}/pid; exec sleep 1000\n")
    (place / "jobs.txt").write_text("[profile=light] exec sh jobs.sh\n")
    said = login_and_out(slicer, bob, place, command)
    return said, int((place / "pid").read_text())


def his_place(slicer: Slicer, bob: User) -> Path:
    place = slicer.path("his")
    place.mkdir(mode=0o755)
    os.chown(place, bob.uid, bob.uid)
    return place


def logind_has(setting: str) -> None:
    _LOGIND.parent.mkdir(parents=True, exist_ok=True)
    _LOGIND.write_text(f"[Login]\n{setting}\nUserStopDelaySec=0\n")
    reread()


def reread() -> None:
    """logind has its configuration."""
    systemctl.output("systemctl", "reset-failed", "systemd-logind")
    systemctl.output("systemctl", "restart", "systemd-logind")


def login_and_out(slicer: Slicer, someone: User, place: Path, command: str) -> str:
    """He logs in, starts that, and logs out once its job runs; what it said."""
    environ = [f"--setenv={name}={value}" for name, value in slicer.environ().items() if name != "HOME"]
    script = f"{command}\nuntil [ -s pid ]; do sleep 0.1; done".replace("$", "$$")
    systemctl.output(
        "systemd-run", "--quiet", "--wait", f"--unit={_SESSION}", f"--property=User={someone.name}",
        "--property=PAMName=login", f"--working-directory={place}", *environ, "sh", "-c", script,
    )  # fmt: skip
    record = Path(f"/run/systemd/users/{someone.uid}")
    until(lambda: not record.exists() or "STATE=active" not in record.read_text(), "he has logged out")
    until(lambda: not systemctl.output("systemctl", "list-jobs", "--no-legend"), "nothing is to be stopped")
    return (place / "said").read_text()
