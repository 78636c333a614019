"""No look can hang the doctor, or cost it what the others found."""

from __future__ import annotations

import os
import signal
import time

import pytest

from slicer.doctor import looks
from slicer.doctor.looks import LookResult
from slicer.errors import StateError
from tests.patience import until
from tests.unit.doctor.made_up import STATE

pytestmark = pytest.mark.both_pythons


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def hang() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(1000)


def test_a_look_that_hangs_costs_only_itself() -> None:  # X10
    before = children()
    found = looks.take({"hangs": hang, "state": lambda: STATE}, 1.0)
    assert found == {"hangs": LookResult(None), "state": LookResult(STATE)}
    until(lambda: _reaped(before), "no child is left")


def _reaped(before: list[int]) -> bool:
    for pid in set(children()) - set(before):
        os.waitpid(pid, os.WNOHANG)
    return children() == before


def test_a_look_that_fails_says_how() -> None:
    def deny() -> None:
        raise StateError("is not yours", where="/x")

    found = looks.take(
        {"denied": deny, "broken": lambda: 1 / 0, "dead": lambda: os.kill(os.getpid(), 9)}, 60.0
    )
    assert found["denied"] == LookResult(None, "/x: is not yours")
    assert found["broken"].failed == "ZeroDivisionError: division by zero"
    assert "without an answer" in found["dead"].failed


def test_a_look_prints_nothing(capfd: object) -> None:
    def talk() -> str:
        os.write(1, b"to stdout")
        os.write(2, b"to stderr")
        return "said"

    assert looks.take({"talks": talk}, 60.0)["talks"].facts == "said"
    assert capfd.readouterr() == ("", "")  # type: ignore[attr-defined]
