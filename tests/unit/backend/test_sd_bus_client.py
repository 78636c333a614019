"""systemd is not on a bus that was just started, or while it executes itself again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slicer.backend import sd_bus_client
from slicer.backend.manager_calls import DAEMON, BusBroken, BusError
from slicer.backend.sd_bus_client import SdBusClient


class Bus:
    """Answers each call with the next of these."""

    fd = -1
    answers: list[Any]

    def __init__(self, signal: object, *, is_user: bool) -> None:
        self.senders: set[str] = set()

    def call(self, *request: object) -> None:
        done = request[-1]
        assert callable(done)
        done(self.answers.pop(0))

    def process(self) -> bool:
        return False


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[Bus]]:
    def answer(*answers: Any) -> type[Bus]:
        Bus.answers = list(answers)
        return Bus

    monkeypatch.setattr(sd_bus_client, "SdBus", Bus)
    monkeypatch.setattr(sd_bus_client, "_APPEARS_S", 0.05)
    return answer


ABSENT = BusError(f"{DAEMON}.Error.NameHasNoOwner", "no such name")


def test_it_waits_until_systemd_is_on_the_bus(answering: Callable[..., type[Bus]]) -> None:  # U1
    bus = answering(ABSENT, ABSENT, (":1.2",))
    SdBusClient(is_user=True)
    assert bus.answers == []


@pytest.mark.parametrize("error", [ABSENT, BusError(f"{DAEMON}.Error.AccessDenied", "denied")])
def test_but_not_for_long_and_for_nothing_else(answering: Callable[..., type[Bus]], error: BusError) -> None:
    # U1
    answering(*[error] * (1000 if error is ABSENT else 1))
    with pytest.raises(BusBroken, match=error.message):
        SdBusClient(is_user=True)
