"""A scope on its way: what is done when a part of it fails, in whatever order the answers come."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.backend.manager_calls import BusError, path_of
from slicer.broker.protocol import messages
from slicer.broker.server import scopes as module
from slicer.broker.server.loop import Loop
from slicer.broker.server.manager import Manager
from slicer.broker.server.scopes import Scopes
from slicer.broker.server.scoping import scope_of
from slicer.errors import BackendError, RefusedError
from slicer.kernel import cgroup, proc
from slicer.model import ScopeSpec
from slicer.quantity import INFINITY
from slicer.state.directory import Directory

UID = os.getuid()
SPEC = ScopeSpec("slicer-x.scope", "gpu-1.slice", "train", (), "system")
CGROUP = "/gpu.slice/gpu-1.slice/slicer-x.scope"
ERROR = "org.freedesktop.DBus.Error."
FAILED = BusError(f"{ERROR}Failed", "it broke")
OLD = BusError(f"{ERROR}PropertyReadOnly", "Cannot set property PIDFDs, or unknown property.")
USERS_OWN = "/user.slice/user-1.slice/user@1.service/slicer-x.scope"
OTHERS = ["", USERS_OWN, "/gpu.slice/slicer-x.scope", f"{CGROUP}/in"]


class Systemd(Manager):
    """systemd, as a test has it answer. Calls wait in ``asked``, by method and unit."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.asked: dict[tuple[str, str], Callable[[Any], None]] = {}
        self.told: dict[str, dict[str, Any]] = {}

    def ask(self, call: Any, done: Any, deadline_s: float) -> None:
        method, values = call.name.rpartition(".")[2], [value for _, value in call.arguments]
        self.asked[method, call.path if method == "GetAll" else values[0]] = done
        if method in ("StartTransientUnit", "SetUnitProperties"):
            self.told = {name: value for name, (_, value) in values[2]}

    def answer(self, method: str, unit: str, answer: Any) -> None:
        self.asked.pop((method, unit))(answer)


class Start:
    """One start of a scope with a process of ours, which seems to be in ``place``."""

    def __init__(self, directory: Path) -> None:
        self.loop = Loop()
        notes = Directory(os.open(directory, os.O_RDONLY | os.O_DIRECTORY), str(directory))
        self.scopes = Scopes(self.loop, notes, "")
        self.systemd: Any = self.scopes._manager
        self.found: list[str | BackendError] = []
        self.keeper = os.fork()
        if not self.keeper:
            signal.pause()
        self.pidfd = os.pidfd_open(self.keeper)
        self.scopes.start(SPEC, 1, self.pidfd, self.found.append)
        os.close(self.pidfd)  # the caller's own

    def end_keeper(self) -> None:
        if self.keeper:
            os.kill(self.keeper, signal.SIGKILL)
            os.waitpid(self.keeper, 0)
            self.keeper = 0

    def start_answered(self, answer: Any) -> None:
        self.systemd.answer("StartTransientUnit", SPEC.unit, answer)

    def slices_are(self, login: dict[str, Any], jobs: dict[str, Any]) -> None:
        for slice_name, limits in (("user-1.slice", login), ("gpu-1.slice", jobs)):
            self.systemd.answer("GetAll", path_of(slice_name), ({"MemoryMax": INFINITY, **limits},))

    @property
    def is_stopped(self) -> bool:
        return ("StopUnit", SPEC.unit) in self.systemd.asked


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the process is, as the kernel says it."""
    found = [CGROUP]
    monkeypatch.setattr(module, "Manager", Systemd)
    monkeypatch.setattr(module, "_cgroup_of_systemd", lambda: "")
    monkeypatch.setattr(cgroup, "of", lambda _: found[0])
    return found


@pytest.fixture
def start(place: list[str], tmp_path: Path) -> Iterator[Start]:
    made = Start(tmp_path)
    yield made
    made.end_keeper()
    made.loop.close()


def test_it_is_done_when_the_process_is_in_it_and_the_slice_is_limited(start: Start) -> None:  # L1
    start.start_answered(("done",))
    start.slices_are({"MemoryMax": 5}, {})
    assert (start.found, start.systemd.told) == ([], {"MemoryMax": 5})
    start.systemd.answer("SetUnitProperties", "gpu-1.slice", ())
    assert start.found == [CGROUP]
    assert not start.is_stopped


def test_no_job_runs_in_a_slice_that_could_not_be_limited(start: Start) -> None:  # L1
    start.slices_are({"MemoryMax": 5}, {})
    start.systemd.answer("SetUnitProperties", "gpu-1.slice", FAILED)
    assert "user-1.slice could not be copied" in str(start.found)
    assert start.is_stopped
    start.systemd.answer("StopUnit", SPEC.unit, BusError(f"{ERROR}UnknownObject", "not yet"))
    start.start_answered(("done",))  # it came up after all
    assert start.is_stopped
    assert len(start.found) == 1


@pytest.mark.parametrize("other", OTHERS)
def test_no_other_cgroup_will_do_whatever_its_name(start: Start, place: list[str], other: str) -> None:  # L1
    start.slices_are({}, {})
    place[0] = other
    start.start_answered(("done",))
    assert "but the process is in" in str(start.found)
    assert start.is_stopped


def test_a_process_that_has_ended_starts_nothing(start: Start) -> None:  # L1
    start.slices_are({}, {})
    start.end_keeper()
    start.start_answered(("done",))
    assert "was killed on its way" in str(start.found)
    assert start.is_stopped


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (("failed",), BackendError, "ended as 'failed'"),
        (FAILED, BackendError, "it broke"),
        (BusError(f"{ERROR}InvalidArgs", "no such disk"), RefusedError, "no such disk"),
    ],
)
def test_what_systemd_says_reaches_the_caller(
    start: Start, answer: Any, kind: type[BackendError], said: str
) -> None:  # L1
    start.slices_are({}, {})
    start.start_answered(answer)
    assert [type(each) for each in start.found] == [kind]
    assert said in str(start.found)


def test_a_systemd_without_pidfds_gets_the_pid(start: Start) -> None:  # L1
    assert "PIDs" not in start.systemd.told
    start.start_answered(OLD)
    assert start.systemd.told["PIDs"] == [start.keeper]
    assert "PIDFDs" not in start.systemd.told


def test_a_systemd_without_pidfds_kills_nobody_whom_it_moved_by_mistake(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1
    start.start_answered(OLD)
    monkeypatch.setattr(cgroup, "processes", lambda _: iter([os.getpid()]))
    monkeypatch.setattr(proc, "uid_of", lambda _: 2)  # not the user with uid 1
    start.slices_are({}, {})
    start.end_keeper()  # and its pid went to somebody else
    start.start_answered(("done",))
    assert "was killed on its way" in str(start.found)
    assert not start.is_stopped


def test_a_scope_that_is_there_counts_once_its_process_is_in_it(start: Start, place: list[str]) -> None:  # L1
    start.slices_are({}, {})
    place[0] = "/elsewhere"
    start.start_answered(BusError("org.freedesktop.systemd1.UnitExists", "it is there"))
    start.loop.turn(0.0)
    assert start.found == []
    place[0] = CGROUP
    while not start.found:
        start.loop.turn(1.0)
    assert start.found == [CGROUP]


@pytest.mark.parametrize(("slice_name", "within"), [("gpu", "gpu-1-0123456789ab.slice"), ("cpu", "")])
def test_only_gpu_slice_has_slices_of_jobs_whatever_is_asked(slice_name: str, within: str) -> None:  # U5, L1
    asked = messages.Start("0123456789ab", slice_name, "", (), False, 5, 6, own_slice=True)
    assert scope_of(asked, 1, ()).within == within
