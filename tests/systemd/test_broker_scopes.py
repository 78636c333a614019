"""Scopes of ordinary users in the system manager, asked for by a broker that waits for nobody."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.backend.manager_calls import UnitGone
from slicer.broker.rules import units
from slicer.broker.server.loop import Loop
from slicer.broker.server.scopes import Scopes
from slicer.errors import BackendError, RefusedError
from slicer.kernel import cgroup
from slicer.model import Property, ScopeSpec, unit_name
from slicer.state.directory import Directory
from tests.patience import until
from tests.systemd.helpers import forged, processes, systemctl
from tests.systemd.helpers.users import user

pytestmark = [pytest.mark.systemd, pytest.mark.core]

MIB = 2**20


class Desk:
    """A broker's scopes and its loop, with keepers of alice's."""

    def __init__(self, notes: Directory, wakes: str) -> None:
        self.alice = user("alice")
        self.loop = Loop()
        self.scopes = Scopes(self.loop, notes, wakes)
        self.keepers: list[subprocess.Popen[bytes]] = []
        self.units: list[str] = []

    def keeper(self, *command: str) -> subprocess.Popen[bytes]:
        made = subprocess.Popen([*self.alice.identity, *(command or ("sleep", "infinity"))])
        self.keepers.append(made)
        # She is who she will be, and not setpriv any more.
        until(lambda: Path(f"/proc/{made.pid}/comm").read_text().strip() != "setpriv", "the keeper runs")
        return made

    def stubborn(self) -> subprocess.Popen[bytes]:
        """A keeper that ends by SIGKILL alone."""
        made = self.keeper("sh", "-c", "trap '' TERM; while sleep 0.1; do :; done")
        until(lambda: processes.children(made.pid), "it ignores SIGTERM")
        return made

    def spec(self, kind: Any = "gpu", *properties: Property) -> ScopeSpec:
        unit = unit_name(os.urandom(6).hex())
        self.units.append(unit)
        return ScopeSpec(unit, units.slice_of(kind, self.alice.uid), "train (1 GPU)", properties, "system")

    def told(self, act: Callable[..., None], *arguments: Any) -> Any:
        """What ``done`` is told."""
        found: list[Any] = []
        act(*arguments, found.append)
        assert not found, "not before it has returned"
        until(lambda: found or self.loop.turn(0.1), f"an answer to {act.__name__}")
        return found[0]

    def start(self, spec: ScopeSpec, keeper: subprocess.Popen[bytes]) -> Any:
        pidfd = os.pidfd_open(keeper.pid)
        try:
            return self.told(self.scopes.start, spec, self.alice.uid, pidfd)
        finally:
            os.close(pidfd)

    def started(self, kind: Any = "gpu", *properties: Property) -> tuple[ScopeSpec, subprocess.Popen[bytes]]:
        spec, keeper = self.spec(kind, *properties), self.keeper()
        assert self.start(spec, keeper) == self.scopes.cgroup_for(spec) == cgroup.of(keeper.pid)
        return spec, keeper

    def leave(self) -> None:
        for unit in self.units:
            subprocess.run(["systemctl", "kill", "--signal=KILL", unit], capture_output=True, check=False)
        for keeper in self.keepers:
            keeper.kill()
            keeper.wait()
        self.scopes.close()
        self.loop.close()


@pytest.fixture
def notes(tmp_path: Path) -> Directory:
    return Directory(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), str(tmp_path))


@pytest.fixture
def desk(notes: Directory) -> Iterator[Desk]:
    made = Desk(notes, wakes="")
    yield made
    made.leave()


def number(name: str, value: int) -> Property:
    return Property(name, name, "t", value, str(value))


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_a_users_process_comes_into_a_scope_of_its_slice_under_limits(desk: Desk, kind: str) -> None:  # L1
    limits = (number("MemoryMax", 200 * MIB), Property("AllowedCPUs", "AllowedCPUs", "ay", b"\x01", "0"))
    spec, keeper = desk.started(kind, *limits)
    assert systemctl.show(spec.unit, "MemoryMax", "AllowedCPUs", "Slice", "Description") == {
        "MemoryMax": str(200 * MIB), "AllowedCPUs": "0", "Slice": spec.slice, "Description": "train (1 GPU)",
    }  # fmt: skip
    directory = cgroup.path_of(desk.scopes.cgroup_for(spec))
    assert desk.told(desk.scopes.freeze, spec.unit) is None
    assert cgroup.is_frozen(directory)
    assert desk.told(desk.scopes.thaw, spec.unit, directory) is None
    assert not cgroup.is_frozen(directory)
    assert desk.told(desk.scopes.set_properties, spec.unit, (number("MemoryMax", 99 * MIB),)) is None
    assert systemctl.show(spec.unit, "MemoryMax") == {"MemoryMax": str(99 * MIB)}
    unknown = (number("MemoryMax", 88 * MIB), number("Nonsense", 1))
    assert isinstance(desk.told(desk.scopes.set_properties, spec.unit, unknown), RefusedError)
    assert systemctl.show(spec.unit, "MemoryMax") == {"MemoryMax": str(99 * MIB)}  # all or none
    assert desk.told(desk.scopes.freeze, spec.unit) is None
    assert desk.told(desk.scopes.stop, spec.unit) is None  # as it is, frozen
    assert keeper.wait() == -signal.SIGTERM
    until(lambda: not systemctl.show(spec.unit, "Job", "ActiveState").get("Job"), "it is gone")
    assert desk.told(desk.scopes.stop, spec.unit) is None
    assert isinstance(desk.told(desk.scopes.freeze, spec.unit), UnitGone)


def test_what_limits_her_sessions_limits_her_jobs(desk: Desk, notes: Directory) -> None:  # L1
    login, jobs = units.login_slice_of(desk.alice.uid), units.slice_of("gpu", desk.alice.uid)

    def set_limit(unit: str, size: str) -> None:
        systemctl.output("systemctl", "set-property", "--runtime", unit, f"MemoryMax={size}")

    def limit_after_a_start() -> str:
        desk.scopes._limits._looked_s.clear()  # as if time had passed
        desk.started()
        return systemctl.show(jobs, "MemoryMax")["MemoryMax"]

    try:
        set_limit(login, f"{700 * MIB}")
        assert limit_after_a_start() == str(700 * MIB)
        assert systemctl.show(jobs, "TasksMax") == systemctl.show(login, "TasksMax")  # systemd's own default
        set_limit(login, f"{600 * MIB}")
        again = Desk(notes, wakes="")  # a broker that was started anew
        again.started()
        again.leave()
        assert systemctl.show(jobs, "MemoryMax") == {"MemoryMax": str(600 * MIB)}
        set_limit(jobs, f"{900 * MIB}")  # the administrator's word for jobs
        assert limit_after_a_start() == str(900 * MIB)
    finally:
        for unit in (login, jobs):
            set_limit(unit, "infinity")
            systemctl.output("systemctl", "revert", unit)


def test_a_process_that_is_gone_leaves_no_scope_behind(desk: Desk) -> None:  # L1
    keeper, spec = desk.keeper(), desk.spec()
    pidfd = os.pidfd_open(keeper.pid)
    keeper.kill()
    keeper.wait()
    assert isinstance(desk.told(desk.scopes.start, spec, desk.alice.uid, pidfd), BackendError)
    os.close(pidfd)
    until(lambda: spec.unit not in systemctl.scopes() or desk.loop.turn(0.05), "the scope is gone")


def test_a_scope_with_somebody_else_in_it_is_no_success(desk: Desk) -> None:  # L1
    spec, _ = desk.started()
    other = desk.keeper()
    assert "but the process is in" in str(desk.start(spec, other))
    assert desk.keepers[0].wait() == -signal.SIGTERM  # nobody holds on to what was refused
    assert cgroup.of(other.pid) != desk.scopes.cgroup_for(spec)


def test_a_start_that_is_asked_for_again_is_seen_to_have_succeeded(desk: Desk) -> None:  # L1
    spec, keeper = desk.started()
    assert desk.start(spec, keeper) == desk.scopes.cgroup_for(spec)


@pytest.mark.parametrize("how", ["daemon-reload", "daemon-reexec", "the connection breaks"])
def test_nothing_is_lost_while_systemd_is_away(desk: Desk, how: str) -> None:  # L1
    desk.started()
    slow = desk.stubborn()
    spec, waits = desk.spec("gpu", number("TimeoutStopUSec", 2_000_000)), desk.keeper()
    assert isinstance(desk.start(spec, slow), str)
    ended: list[Any] = []
    desk.scopes.stop(spec.unit, ended.append)  # takes two seconds
    found: list[Any] = []
    begun = desk.spec()
    pidfd = os.pidfd_open(waits.pid)
    if how == "the connection breaks":
        desk.scopes.start(begun, desk.alice.uid, pidfd, found.append)
        bus = desk.scopes._manager._bus
        assert bus is not None
        with socket.socket(fileno=os.dup(bus.fd)) as shut:
            shut.shutdown(socket.SHUT_RDWR)
    else:
        reloading = subprocess.Popen(["systemctl", how])
        desk.scopes.start(begun, desk.alice.uid, pidfd, found.append)
        reloading.wait()
    until(lambda: (found and ended) or desk.loop.turn(0.1), "both are answered")
    os.close(pidfd)
    assert (found, ended) == ([desk.scopes.cgroup_for(begun)], [None])
    assert cgroup.of(waits.pid) == found[0]
    assert slow.wait() == -signal.SIGKILL


def test_each_of_many_stops_at_once_is_answered(desk: Desk) -> None:  # U23
    slow, spec = desk.stubborn(), desk.spec("gpu", number("TimeoutStopUSec", 2_000_000))
    assert isinstance(desk.start(spec, slow), str)
    ended: list[Any] = []
    for _ in range(8):  # systemd calls all of them one job
        desk.scopes.stop(spec.unit, ended.append)
    until(lambda: desk.scopes._manager._jobs or desk.loop.turn(0.1), "systemd has begun")
    desk.scopes.stop(spec.unit, ended.append)
    until(lambda: len(ended) == 9 or desk.loop.turn(0.1), "all are answered")
    assert ended == [None] * 9
    assert slow.wait() == -signal.SIGKILL


def test_no_user_can_tell_it_what_systemd_has_done(desk: Desk) -> None:  # L1
    slow, spec = desk.stubborn(), desk.spec()
    assert isinstance(desk.start(spec, slow), str)
    ended: list[Any] = []
    desk.scopes.stop(spec.unit, ended.append)
    manager = desk.scopes._manager
    job = until(lambda: list(manager._jobs) or desk.loop.turn(0.1), "systemd has begun")[0]
    listed = systemctl.output("busctl", "list", "--no-legend", "--no-pager").splitlines()
    names = [line.split()[0] for line in listed if line.startswith(":") and f" {os.getpid()} " in line]
    assert names
    for name in names:
        forged.job_removed(desk.alice, name, job, spec.unit)
    for _ in range(5):
        desk.loop.turn(0.1)
    assert not ended
    slow.kill()
    until(lambda: ended or desk.loop.turn(0.1), "it has ended")


def test_the_end_of_a_scope_wakes_whoever_keeps_the_books_and_unloads_it(
    notes: Directory, tmp_path: Path
) -> None:  # L1, L5
    service, target = Path("/run/systemd/system/woken.service"), Path("/run/systemd/system/ended@.target")
    woken = tmp_path / "woken"
    woken.touch()
    told = f"Type=oneshot\nExecStart=sh -c 'echo >>{woken}'\n"
    service.write_text(f"[Unit]\nStartLimitIntervalSec=0\n[Service]\n{told}")
    target.write_text("[Unit]\nDefaultDependencies=no\nWants=woken.service\nStopWhenUnneeded=yes\n")
    systemctl.output("systemctl", "daemon-reload")
    desk = Desk(notes, wakes=target.name)

    try:
        others = [desk.started()[0].unit for _ in range(4)]  # which still run
        for end in ("by itself", "killed", "stopped", "out of time"):
            before = woken.stat().st_size
            limit = (number("RuntimeMaxUSec", 200_000),) if end == "out of time" else ()
            spec, keeper = desk.started("gpu", *limit)
            if end == "killed":
                keeper.kill()
            elif end == "stopped":
                assert desk.told(desk.scopes.stop, spec.unit) is None
            elif end == "by itself":
                keeper.terminate()
            keeper.wait()
            until(lambda before=before: woken.stat().st_size > before, f"woken by one that ended {end}")
        until(lambda: {*systemctl.scopes()} == {*others}, "systemd has forgotten those that ended")
    finally:
        desk.leave()
        service.unlink()
        target.unlink()
        systemctl.output("systemctl", "daemon-reload")
