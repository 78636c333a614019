"""Which processes that left a job's scope are still the job's, and who is moved into one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from slicer.backend.scopes import is_of_another, leaving
from slicer.errors import GoneError, RefusedError
from slicer.kernel import cgroup, proc

OWN = "slicer-aaaaaaaaaaaa.scope"
USERS = "/user.slice/user-1000.slice/user@1000.service"
MINE, SYSTEMS = f"{USERS}/gpu.slice/{OWN}", f"/gpu.slice/{OWN}"


# K2, U5
@pytest.mark.parametrize(
    ("there", "is_mine", "is_systems"),
    [
        (f"{USERS}/app.slice/run-r1.scope", True, True),
        (f"{USERS}/gpu.slice/slicer-bbbbbbbbbbbb.scope", False, True),
        ("/gpu.slice/slicer-bbbbbbbbbbbb.scope", False, False),
        (f"{USERS}/user.slice/podman-pause-1a2b3c4d.scope", False, True),
        (f"{USERS}/user.slice/rootless-netns-1a2b3c4d.scope", False, True),
        (f"{USERS}/user.slice/podman-4242.scope", True, True),
        ("", True, True),
    ],
)
def test_who_left_the_scope_is_still_of_the_job(there: str, is_mine: bool, is_systems: bool) -> None:
    assert is_of_another(there, MINE) is not is_mine
    assert is_of_another(there, SYSTEMS) is not is_systems


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A shell, and what it has started."""
    shell = subprocess.Popen(["sh", "-c", "sleep 1h & echo $!; wait"], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    with shell.stdout as said:
        child = int(said.readline())
    yield shell.pid, child
    os.kill(child, signal.SIGKILL)
    shell.wait()


def test_who_is_moved_with_a_process(family: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:  # U10
    """Those below it that are where it was, and its user's: neither its jobs nor its containers."""
    shell, child = family
    places = dict.fromkeys(family, "/user.slice/session-1.scope")
    monkeypatch.setattr(cgroup, "of", places.get)
    start = proc.start_time(shell) or 0
    left = leaving((shell, start), os.geteuid(), OWN)
    assert left() == [shell, child]
    places[shell] = "/gpu.slice/new.scope"
    assert left() == [child]
    places[child] = SYSTEMS
    assert left() == []
    places[child] = "/user.slice/session-1.scope"
    with pytest.raises(RefusedError, match="another user's"):
        leaving((child, proc.start_time(child) or 0), os.geteuid() + 1, OWN)()
    with pytest.raises(GoneError):  # the pid is another process's by now
        leaving((shell, start + 1), os.geteuid(), OWN)()
    places[shell] = SYSTEMS
    with pytest.raises(RefusedError, match="is in a job"):
        leaving((shell, start), os.geteuid(), OWN)()


def test_who_gets_a_pid_between_the_look_and_the_move_is_put_back(
    family: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:  # U10, S8
    """Otherwise it would end with the job of somebody else."""
    shell, child = family
    places: dict[int, str] = dict.fromkeys(family, "/user.slice/session-1.scope")
    moved: list[tuple[int, str]] = []
    monkeypatch.setattr(cgroup, "of", lambda pid: places.get(pid, "/bobs.scope"))
    monkeypatch.setattr(cgroup, "move", lambda *what: moved.append(what))
    start_time, uid_of = proc.start_time, proc.uid_of
    left = leaving((shell, start_time(shell) or 0), os.geteuid(), OWN)
    assert left() == [shell, child]
    places |= dict.fromkeys(family, f"/gpu.slice/{OWN}")
    assert left() == []
    assert moved == []
    monkeypatch.setattr(proc, "start_time", lambda pid: 1 if pid == child else start_time(pid))
    monkeypatch.setattr(proc, "uid_of", lambda pid: 4711 if pid == child else uid_of(pid))
    monkeypatch.setattr(proc, "parent", lambda pid: 4712)
    assert left() == []
    assert moved == [(child, "/bobs.scope")]
