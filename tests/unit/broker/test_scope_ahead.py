"""The scope of a request that still waits: who may have one, and what its turn changes in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.broker.protocol import wire
from slicer.broker.protocol.messages import Detach, Granted, Release, Start, StartedScope, Waiting
from slicer.broker.server import leases, limits_asked
from slicer.broker.server.scopes import Scopes
from slicer.gpu import fence
from slicer.kernel import cgroup, proc
from tests.unit.broker.within import Caller, Within, acquire, within

OPENED = ("/dev/char/195:0", "rwm")  # the first GPU's node


class Systemd:
    """Scopes that start at once, or not yet; and where processes are by that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: dict[int, str] = {}
        self.started: list[str] = []
        self.rules: dict[str, Any] = {}  # of devices, in the last scope
        self.is_slow = False
        monkeypatch.setattr(Scopes, "start", lambda *arguments: self._start(*arguments))
        monkeypatch.setattr(Scopes, "set_properties", lambda *arguments: self._set(*arguments))
        monkeypatch.setattr(cgroup, "of", lambda pid: self.places.get(pid, "/user.slice"))
        monkeypatch.setattr(leases, "watch_cgroup", lambda *_: _Populated())
        monkeypatch.setattr(limits_asked, "has_nvidia", lambda: True)
        monkeypatch.setattr(fence, "minors_of", lambda uuids, _: tuple(range(len(uuids))))

    def _start(self, scopes: Any, spec: Any, _: int, pidfd: int, done: Any) -> None:
        self.started.append(spec.unit)
        if self.is_slow:
            return
        there = self.places[proc.pid_of(pidfd) or 0] = scopes.cgroup_for(spec)
        self._note(spec.properties)
        scopes._loop.after(0.0, lambda: done(there))

    def _set(self, scopes: Any, _: str, properties: Any, done: Any) -> None:
        if self.is_slow:
            return
        self._note(properties)
        scopes._loop.after(0.0, lambda: done(None))

    def _note(self, properties: Any) -> None:
        self.rules |= {each.name: each.value for each in properties if each.name.startswith("Device")}


class _Populated:
    def close(self) -> None:
        pass


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Systemd:
    return Systemd(monkeypatch)


@pytest.fixture
def broker(systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Within]:
    with within(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def keeper() -> Iterator[int]:
    pid = os.fork()
    if not pid:
        signal.pause()
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def start(job: str, keeper: int, **wish: Any) -> Start:
    asked: dict[str, Any] = {"slice": "gpu", "description": "", "limits": (), "share_cap": False, **wish}
    return Start(job, keeper=keeper, keeper_start=proc.start_time(keeper) or 0, fence="", devices=(), **asked)


def held(broker: Within, **wish: Any) -> str:
    """A job that has both GPUs."""
    asked = acquire(gpus=2, **wish)
    assert isinstance(broker.dial().ask(asked), Granted)
    return asked.job


def waits(broker: Within, **wish: Any) -> tuple[Caller, str]:
    asked, caller = acquire(**{"gpus": 1, "binding": "scope", **wish}), broker.dial()
    assert isinstance(caller.ask(asked, more=True), Waiting)
    return caller, asked.job


def hear_grant(waiting: Caller) -> None:
    while isinstance(answer := waiting.hear(), Waiting):  # news of its place
        pass
    assert isinstance(answer, Granted)


def test_its_turn_opens_its_gpus_in_the_scope_that_it_has(
    broker: Within, systemd: Systemd, keeper: int
) -> None:  # X1
    holder = held(broker)
    waiting, job = waits(broker)
    assert isinstance(broker.dial().ask(start(job, keeper)), StartedScope)
    assert systemd.rules["DevicePolicy"] == "strict"
    assert not [node for node, _ in systemd.rules["DeviceAllow"] if node.startswith("/dev/char/195")]
    broker.dial().ask(Release(holder))
    hear_grant(waiting)
    assert isinstance(broker.dial().ask(start(job, keeper)), StartedScope)
    assert OPENED in systemd.rules["DeviceAllow"]
    assert systemd.started == [f"slicer-{job}.scope"]


def test_a_profile_without_a_fence_has_one_until_its_turn(
    broker: Within, systemd: Systemd, keeper: int
) -> None:  # X1
    Path(broker.places.configuration, "config.toml").write_text('[profiles.open]\nfence = "off"\n')
    holder = held(broker, slots={"x": 1}, slot_limits={"x": 1})
    waiting, job = waits(broker, gpus=0, slots={"x": 1}, slot_limits={"x": 1}, profile="open")
    assert isinstance(broker.dial().ask(start(job, keeper)), StartedScope)
    assert systemd.rules["DevicePolicy"] == "strict"
    broker.dial().ask(Release(holder))
    hear_grant(waiting)
    assert isinstance(broker.dial().ask(start(job, keeper)), StartedScope)
    assert systemd.rules == {"DevicePolicy": "auto", "DeviceAllow": ()}


def test_a_broker_that_was_killed_before_it_opened_them_does_so_when_it_is_asked_again(
    broker: Within, systemd: Systemd, keeper: int
) -> None:  # X1
    holder = held(broker)
    waiting, job = waits(broker)
    broker.dial().ask(start(job, keeper))
    broker.dial().ask(Release(holder))
    hear_grant(waiting)
    systemd.is_slow = True
    broker.dial().sock.sendall(wire.encode_call(start(job, keeper)))
    broker.turn()
    broker.stop()
    broker.start()
    systemd.is_slow = False
    assert isinstance(broker.dial().ask(start(job, keeper)), StartedScope)
    assert OPENED in systemd.rules["DeviceAllow"]


@pytest.mark.parametrize(
    ("wish", "how"),
    [
        ({"binding": "process"}, {}),
        ({}, {"share_cap": True}),
        ({}, {"limits": (("RuntimeMaxSec", "9"),)}),
    ],
)
def test_a_scope_that_has_to_follow_its_lease_does(
    broker: Within, systemd: Systemd, keeper: int, wish: dict[str, Any], how: dict[str, Any]
) -> None:  # L1
    held(broker)
    _, job = waits(broker, **wish)
    assert broker.dial().ask(start(job, keeper, **how)) == "NoSuchJob"
    assert not systemd.started


def test_nobody_gets_round_a_time_limit_by_coming_early(
    broker: Within, systemd: Systemd, keeper: int
) -> None:  # L2
    """systemd counts it from the scope's start, and the policy may have got it since."""
    holder = held(broker)
    waiting, job = waits(broker)
    assert isinstance(broker.dial().ask(start(job, keeper)), StartedScope)
    policy = '[default]\nmax_hold = "1h"\n[users.root]\nmax_hold = "1h"\n'
    Path(broker.places.configuration, "policy.toml").write_text(policy)
    _, later = waits(broker)
    assert broker.dial().ask(start(later, os.getpid())) == "NoSuchJob"
    broker.dial().ask(Release(holder))
    hear_grant(waiting)
    assert broker.dial().ask(start(job, keeper)) == "BadProcess"


def test_what_comes_out_of_a_job_or_is_on_its_way_is_in_no_scope_early(
    broker: Within, systemd: Systemd, keeper: int
) -> None:  # X1, K2
    """It may have that job's GPUs open, for which only a lease accounts."""
    outer = held(broker, binding="scope")
    assert isinstance(broker.dial().ask(start(outer, keeper)), StartedScope)
    _, job = waits(broker)
    assert broker.dial().ask(start(job, keeper)) == "NoSuchJob"
    systemd.is_slow = True
    broker.dial().sock.sendall(wire.encode_call(start(job, os.getpid())))
    broker.turn()
    _, other = waits(broker)
    assert broker.dial().ask(start(other, os.getpid())) == "BadProcess"
    detached = Detach(os.urandom(6).hex(), "", os.getpid(), proc.start_time(os.getpid()) or 0)
    assert broker.dial().ask(detached) == "BadProcess"
