"""What lives on after a logout: the table of docs/background.md, on a real logind and its sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User, user

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

_SESSION = "made-session.service"
_LOGIND = Path("/run/systemd/logind.conf.d/50-test.conf")
_COMMANDS = {
    "run": "slicer run --detach -- sh jobs.sh > said 2>&1",
    "queue": "slicer queue --detach --log-dir logs jobs.txt > said 2>&1",
    "foreground": "slicer run -- sh jobs.sh > said 2>&1 &",
}
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


@pytest.mark.parametrize("where", ["alone", "lingers", "broker"])
def test_what_is_not_detached_ends_with_a_session_that_is_killed(
    public_slicer: Slicer, bob: User, request: pytest.FixtureRequest, where: str
) -> None:  # E7
    _, pid = after_logout(public_slicer, bob, request, _COMMANDS["foreground"], where, kills=True)
    until(lambda: not os.path.exists(f"/proc/{pid}"), "it has ended")


def after_logout(
    slicer: Slicer, bob: User, request: pytest.FixtureRequest, command: str, where: str, kills: bool
) -> tuple[str, int]:
    """What the command said in a session that is over by now, and the pid of its job."""
    if where == "broker":
        request.getfixturevalue("broker")
    if where == "lingers":
        systemctl.output("loginctl", "enable-linger", bob.name)
    _LOGIND.parent.mkdir(parents=True, exist_ok=True)
    _LOGIND.write_text(f"[Login]\nKillUserProcesses={'yes' if kills else 'no'}\nUserStopDelaySec=0\n")
    reread()
    place = slicer.path("his")
    place.mkdir(mode=0o755)
    (place / "jobs.sh").write_text(f"echo $$ > {place}/pid; exec sleep 1000\n")
    (place / "jobs.txt").write_text("[profile=light] exec sh jobs.sh\n")
    os.chown(place, bob.uid, bob.uid)
    said = login_and_out(slicer, bob, place, command)
    return said, int((place / "pid").read_text())


def reread() -> None:
    """logind has its configuration."""
    systemctl.output("systemctl", "reset-failed", "systemd-logind")
    systemctl.output("systemctl", "restart", "systemd-logind")


def login_and_out(slicer: Slicer, someone: User, place: Path, command: str) -> str:
    """He logs in, starts that, and logs out once its job runs; what it said."""
    environ = [f"--setenv={name}={value}" for name, value in slicer.environ().items() if name != "HOME"]
    script = f"{command}\nuntil [ -s pid ]; do sleep 0.1; done"
    systemctl.output(
        "systemd-run", "--quiet", "--wait", f"--unit={_SESSION}", f"--property=User={someone.name}",
        "--property=PAMName=login", f"--working-directory={place}", *environ, "sh", "-c", script,
    )  # fmt: skip
    record = Path(f"/run/systemd/users/{someone.uid}")
    until(lambda: not record.exists() or "STATE=active" not in record.read_text(), "he has logged out")
    until(lambda: not systemctl.output("systemctl", "list-jobs", "--no-legend"), "nothing is to be stopped")
    return (place / "said").read_text()
