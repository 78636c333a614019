"""The rule of endings: who is asked, when, and by which signal (U15)."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.config import profiles
from slicer.config.profiles import Overrides
from slicer.job.stop_rule import StopRule, asked_for, due, rule_of
from slicer.model import Host
from slicer.record import replace

TERM, KILL, USR1 = signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1
HOST = Host((0, 1), 8 << 30)
KEEPER, SHELL, TRAINER, WORKER, DAEMON = 10, 11, 12, 13, 14
FAMILY = {SHELL: KEEPER, TRAINER: SHELL, WORKER: TRAINER, DAEMON: KEEPER}
ORPHANS = {TRAINER: KEEPER, WORKER: TRAINER, DAEMON: KEEPER}  # the shell has ended


def rule(*assignments: str, grace: str = "") -> StopRule:
    config = profiles.load({"SLICER_SYSROOT": "/nowhere"}, HOST)
    profile = config.profile("light", Overrides(assignments=assignments))
    return rule_of(replace(profile, grace_s=float(grace) if grace else None))


@pytest.mark.parametrize(
    ("said", "grace", "found"),
    [
        ((), "", StopRule("", TERM, 5.0, 10.0)),
        (("TimeoutStopSec=2m",), "", StopRule("", TERM, 115.0, 120.0)),
        (("TimeoutStopSec=4s",), "", StopRule("", TERM, 2.0, 4.0)),
        ((), "120", StopRule("", TERM, 120.0, 125.0)),
        (("TimeoutStopSec=60",), "40", StopRule("", TERM, 40.0, 60.0)),
        (("TimeoutStopSec=60",), "90", StopRule("", TERM, 60.0, 60.0)),
        (("KillMode=mixed", "TimeoutStopSec=30"), "", StopRule("mixed", TERM, 30.0, 30.0)),
        (("KillMode=control-group",), "", StopRule("control-group", TERM, 0.0, 10.0)),
        (("KillSignal=USR1", "SendSIGHUP=yes"), "", StopRule("", USR1, 5.0, 10.0, True)),
    ],
)
def test_the_profile_says_how(said: tuple[str, ...], grace: str, found: StopRule) -> None:
    assert rule(*said, grace=grace) == found


PLAIN, MIXED, GROUP = rule(), rule("KillMode=mixed"), rule("KillMode=control-group", "KillSignal=USR1")
OWN = rule("KillSignal=USR1")


@pytest.mark.parametrize(
    ("how", "since_s", "command", "parents", "signo", "whom"),
    [
        (PLAIN, 0.0, SHELL, FAMILY, TERM, {SHELL}),
        (PLAIN, 4.9, SHELL, FAMILY, TERM, {SHELL}),
        (PLAIN, 0.1, 0, ORPHANS, TERM, {TRAINER, DAEMON}),  # not the worker, whose parent may need it
        (OWN, 0.1, 0, ORPHANS, USR1, {TRAINER, DAEMON}),  # the signal was for what the shell ran
        (PLAIN, 5.0, SHELL, FAMILY, TERM, set(FAMILY)),
        (OWN, 5.0, 0, ORPHANS, TERM, set(ORPHANS)),
        (PLAIN, 10.0, SHELL, FAMILY, KILL, set(FAMILY)),
        (MIXED, 0.0, SHELL, FAMILY, TERM, {SHELL}),
        (MIXED, 9.9, SHELL, FAMILY, TERM, {SHELL}),
        (MIXED, 0.1, 0, ORPHANS, KILL, set(ORPHANS)),
        (MIXED, 10.0, SHELL, FAMILY, KILL, set(FAMILY)),
        (GROUP, 0.0, SHELL, FAMILY, USR1, set(FAMILY)),
        (GROUP, 10.0, SHELL, FAMILY, KILL, set(FAMILY)),
    ],
)
def test_who_is_asked_when(
    how: StopRule, since_s: float, command: int, parents: dict[int, int], signo: int, whom: set[int]
) -> None:
    assert due(how, since_s, command, parents) == (signo, whom)


def test_stop_may_ask_otherwise() -> None:
    assert asked_for(PLAIN, 0, None) == PLAIN
    assert asked_for(PLAIN, USR1, 600) == StopRule("", USR1, 600, 605.0)
    assert asked_for(MIXED, 0, 600) == StopRule("mixed", TERM, 600, 600.0)
    assert asked_for(GROUP, TERM, 60) == StopRule("", TERM, 60, 65.0)  # whoever gives a grace wants it to act


@given(
    st.dictionaries(st.integers(2, 40), st.integers(1, 40), min_size=1), st.sampled_from([PLAIN, OWN, MIXED])
)
def test_nobody_below_the_command_is_asked_in_its_grace_and_all_are_killed_in_the_end(
    parents: dict[int, int], how: StopRule
) -> None:
    for command in parents:
        assert due(how, how.grace_s / 2, command, parents)[1] == {command}
    assert due(how, how.total_s, 0, parents) == (KILL, set(parents))
