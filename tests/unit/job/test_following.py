"""What a job and the process that started it say to each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from slicer.broker.client.connection import TooOld
from slicer.errors import BrokerError, InfeasibleError, KeeperEnded, RequestCancelled, SlicerError, StateError
from slicer.job.following import Followed, Teller, error_of


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Followed, Teller]]:
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Followed(ours), Teller(theirs)


# D2: a follower that does not listen stops no job, and hears whole lines later
def test_a_follower_that_does_not_listen_holds_nobody_up(both: tuple[Followed, Teller]) -> None:
    followed, teller = both
    for number in range(5000):
        teller.tell("warning", text="x" * 100, number=number)
    heard = [*followed.heard()]
    assert 0 < len(heard) < 5000
    teller.tell("runs")
    later = [*followed.heard()]
    assert later[-1] == {"event": "runs"}
    numbers = [said["number"] for said in (*heard, *later[:-1])]
    assert numbers == sorted(numbers)
    assert all(said["text"] == "x" * 100 for said in (*heard, *later[:-1]))


# E7: the end of file before the word withdraws the job
@pytest.mark.parametrize("has_word", [True, False])
def test_a_job_begins_by_the_word_alone(both: tuple[Followed, Teller], has_word: bool) -> None:
    followed, teller = both
    assert not teller.is_alone()
    if has_word:
        followed.go()
    followed.close()
    assert teller.may_go(-1) is has_word
    teller.tell("runs")  # to nobody


# E13
def test_a_job_that_stands_by_without_a_keeper_does_not_begin(both: tuple[Followed, Teller]) -> None:
    _, teller = both
    guard, end = os.pipe()
    os.close(end)
    with pytest.raises(KeeperEnded):
        teller.may_go(guard)
    os.close(guard)


@pytest.mark.parametrize(
    "error",
    [StateError("no room", where="/run", hint="make some"), InfeasibleError("too much"), RequestCancelled()],
)
def test_an_error_arrives_as_it_was(both: tuple[Followed, Teller], error: SlicerError) -> None:
    followed, teller = both
    teller.fail(error)
    (said,) = followed.heard()
    found = error_of(said)
    assert type(found) is type(error)
    assert (str(found), found.exit_code) == (str(error), error.exit_code)


# Q20: what another file makes of an error is still that error
def test_a_kind_of_an_error_arrives_as_that_error(both: tuple[Followed, Teller]) -> None:
    followed, teller = both
    teller.fail(TooOld("the broker is old"))
    (said,) = followed.heard()
    assert type(error_of(said)) is BrokerError
