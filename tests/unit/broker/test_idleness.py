"""The broker enforces the policy's idle_timeout, whatever users' processes do. No test waits for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from slicer.broker.server.broker import IDLE_S
from slicer.broker.server.cleanup import GRACE_S
from slicer.broker.server.idleness import LATER_S, LOOK_S
from slicer.errors import GpuError
from slicer.model import Lease
from tests.unit.broker.programs import Programs
from tests.unit.broker.within import Within, within


class Held(Programs):
    """A program that holds a GPU, under a broker with this policy."""

    look_s = LOOK_S

    def __init__(self, inside: Within, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(inside)
        self.is_busy = self.is_broken = False
        assert inside.broker is not None
        monkeypatch.setattr(inside.broker._decider.observer, "in_use", self._in_use)
        self.hold(gpus=1)

    def _in_use(self, leases: tuple[Lease, ...]) -> dict[str, bool]:
        if self.is_broken:
            raise GpuError("the driver is gone")
        return {lease.job: self.is_busy for lease in leases}


Hold = Callable[[str], AbstractContextManager[Held]]


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    @contextmanager
    def made(on_idle: str) -> Iterator[Held]:
        policy = f"on_idle = '{on_idle}'\n[users.{os.getuid()}]\nidle_timeout = '60s'\n"
        with within(tmp_path, monkeypatch, policy=policy) as inside:
            held = Held(inside, monkeypatch)
            try:
                yield held
            finally:
                held.close()

    return made


def test_a_program_with_an_idle_gpu_is_ended_after_a_warning_period(hold: Hold) -> None:  # U4, L1
    with hold("stop") as held:
        lease = held.lease()
        assert (lease.idle_warn_s, lease.idle_end_s, lease.idle_since_s) == (60.0, 120.0, None)
        held.pass_(55.0)
        assert held.lease().idle_since_s is None
        held.pass_(15.0)
        since_s = held.lease().idle_since_s
        assert since_s is not None
        held.pass_(45.0)
        assert not held.is_told
        held.pass_(LATER_S + 15.0)
        held.inside.run(lambda: held.is_told)
        held.inside.clocks.pass_(GRACE_S + 1.0)
        held.inside.turn()
        assert os.waitpid(held.pids[0], 0)[1] == signal.SIGKILL
    log = "".join(held.inside.log)
    assert log.index("does not use its GPU") < log.index("SIGTERM")


def test_one_that_uses_it_again_goes_on(hold: Hold) -> None:  # U4
    with hold("stop") as held:
        held.pass_(70.0)
        assert held.lease().idle_since_s is not None
        held.is_busy = True
        held.pass_(600.0)
        assert held.lease().idle_since_s is None
        assert not held.is_told


def test_a_warning_alone_ends_nothing(hold: Hold) -> None:  # U4
    with hold("warn") as held:
        held.pass_(600.0)
        assert held.lease().idle_end_s is None
        assert held.lease().idle_since_s is not None
        assert not held.is_told


def test_nobody_is_idle_while_the_driver_fails(hold: Hold) -> None:  # U4
    with hold("stop") as held:
        held.is_broken = True
        held.pass_(600.0)
        assert held.lease().idle_since_s is None
        assert sum("the driver is gone" in line for line in held.inside.log) == 1


def test_a_stopped_process_is_not_idle(hold: Hold) -> None:  # U4
    with hold("stop") as held:
        os.kill(held.pids[0], signal.SIGSTOP)
        os.waitpid(held.pids[0], os.WUNTRACED)
        held.pass_(600.0)
        assert held.lease().idle_since_s is None
        os.kill(held.pids[0], signal.SIGCONT)
        held.pass_(70.0)
        assert held.lease().idle_since_s is not None


def test_a_restarted_broker_warns_once_more_before_it_ends_anything(  # U4
    hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold("stop") as held:
        held.pass_(115.0)
        held.inside.stop()
        held.inside.clocks.pass_(1000.0)
        held.inside.start()
        assert held.inside.broker is not None
        monkeypatch.setattr(held.inside.broker._decider.observer, "in_use", held._in_use)
        held.pass_(50.0)
        assert held.lease().idle_since_s is not None
        assert not held.is_told
        held.pass_(15.0)
        held.inside.run(lambda: held.is_told)


def test_the_broker_stays_while_there_is_a_gpu_to_watch(hold: Hold) -> None:  # U4
    with hold("warn") as held:
        turns = 0

        def is_enough() -> bool:
            nonlocal turns
            turns += 1
            if turns == 2:
                held.inside.clocks.pass_(IDLE_S + 1.0)
            return turns >= 10

        assert held.inside.broker is not None
        held.inside.broker.run(is_enough)
        assert turns == 10
