"""Whatever happens in one turn of the broker's loop, and in whatever order: whose a lease is stays true."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.broker.protocol import messages
from slicer.kernel import proc
from tests.unit.broker.hosts import Host, say
from tests.unit.broker.within import Within, acquire, within

CPU = {"slots": {"cpu": 1}}
HOSTS = 6
TURNS = 120


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Within]:
    with within(tmp_path, monkeypatch, config="[slots]\ncpu = 2\n") as made:
        yield made


@pytest.fixture
def host(inside: Within) -> Iterator[Callable[[], Host]]:
    made: list[Host] = []

    def one() -> Host:
        made.append(Host(inside.path))
        return made[-1]

    yield one
    for each in made:
        each.close()


def one_turn(inside: Within) -> None:
    """What has happened by now is one turn's."""
    assert inside.broker is not None
    ends = iter((False, True))
    inside.broker.run(lambda: next(ends))


def check(inside: Within, asked: dict[str, Host]) -> None:
    """Each request and each lease is that of the process which asked for it, and watched as that."""
    assert inside.broker is not None
    register = inside.broker._leases
    for waiter in register.waiters.values():
        whose = asked[waiter.ticket.job]
        assert waiter.ticket.pid == whose.pid
        assert waiter.process is not None
        assert proc.pid_of(waiter.process.pidfd) in (whose.pid, -1)
    for holding in register.holdings.values():
        whose = asked[holding.lease.job]
        assert holding.lease.pid == whose.pid
        assert holding.process is not None
        assert proc.pid_of(holding.process.pidfd) in (whose.pid, -1)


def test_who_hung_up_gets_nothing_of_who_came_in_its_place(
    inside: Within, host: Callable[[], Host]
) -> None:  # L1, S15
    """The numbers of its descriptors are another's in the same turn, in which its patience ends, too."""
    holder, mallory, bob = host(), host(), host()
    held, asked = acquire(slots={"cpu": 2}), acquire(**CPU, max_wait_s=10.0, runs_anyway=True)
    say(holder.dial(), held, more=True)
    inside.turn()
    say(hers := mallory.dial(), asked, more=True)
    inside.turn()
    inside.clocks.pass_(11.0)
    mallory.hang_up(hers)
    bob.dial()
    for _ in range(5):
        one_turn(inside)
        check(inside, {asked.job: mallory, held.job: holder})
    assert inside.broker is not None
    assert list(inside.broker._leases.holdings) == [held.job]


def test_who_hangs_up_when_its_patience_ends_harms_nobody(
    inside: Within, host: Callable[[], Host]
) -> None:  # L1, S14
    holder, mallory = host(), host()
    held = [acquire(**CPU) for _ in range(2)]
    for each in held:
        say(holder.dial(), each, more=True)
    inside.turn()
    asked = acquire(**CPU, max_wait_s=10.0, runs_anyway=True)
    hers = mallory.dial()
    say(hers, asked, more=True)
    inside.turn()
    assert inside.broker is not None
    assert asked.job in inside.broker._leases.waiters
    inside.clocks.pass_(11.0)
    mallory.hang_up(hers)
    for _ in range(5):
        one_turn(inside)
        check(inside, {asked.job: mallory, **dict.fromkeys((each.job for each in held), holder)})


class Storm:
    """Hosts that come, ask, hang up, end and come back, and clocks that go on, by dice."""

    def __init__(self, inside: Within, host: Callable[[], Host], seed: int) -> None:
        self.inside, self.host = inside, host
        self.dice = random.Random(seed)
        self.hosts = [host() for _ in range(HOSTS)]
        self.asked: dict[str, Host] = {}
        self.wishes: dict[str, messages.Acquire] = {}

    def act(self) -> None:
        kinds = {self.ask: 6, self.hang_up: 6, self.come: 3, self.wait: 2, self.give_back: 2, self.end: 1,
                 self.ask_again: 2, self.ask_and_hang_up: 3}  # fmt: skip
        self.dice.choices(list(kinds), list(kinds.values()))[0]()

    def ask(self) -> None:
        whose = self.dice.choice(self.hosts)
        sock = self.dice.choice(whose.sockets) if whose.sockets else whose.dial()
        patience_s = self.dice.choice((None, 0.001, 1.0))
        wish = acquire(
            slots={"cpu": self.dice.choice((1, 1, 2))}, max_wait_s=patience_s,
            runs_anyway=self.dice.random() < 0.5, wait=self.dice.random() < 0.9,
        )  # fmt: skip
        self.asked[wish.job], self.wishes[wish.job] = whose, wish
        say(sock, wish, more=self.dice.random() < 0.9)

    def ask_and_hang_up(self) -> None:
        whose = self.dice.choice(self.hosts)
        sock = whose.dial()
        if self.dice.random() < 0.5:
            one_turn(self.inside)
        self.asked[(wish := acquire(**CPU)).job] = whose
        say(sock, wish, more=True)
        whose.hang_up(sock)

    def ask_again(self) -> None:
        if self.wishes:
            job = self.dice.choice(list(self.wishes))
            if self.asked[job].is_alive:
                say(self.asked[job].dial(), self.wishes[job], more=True)

    def come(self) -> None:
        self.dice.choice(self.hosts).dial()

    def hang_up(self) -> None:
        whose = self.dice.choice(self.hosts)
        if whose.sockets:
            whose.hang_up(self.dice.choice(whose.sockets))

    def wait(self) -> None:
        self.inside.clocks.pass_(self.dice.choice((0.002, 1.1, 31.0)))

    def give_back(self) -> None:
        if self.asked:
            job = self.dice.choice(list(self.asked))
            if self.asked[job].is_alive:
                say(self.asked[job].dial(), self.dice.choice((messages.Release, messages.Stop))(job))

    def end(self) -> None:
        self.hosts.remove(whose := self.dice.choice(self.hosts))
        whose.end()
        if self.dice.random() < 0.5:
            whose.close()
        self.hosts.append(self.host())


@pytest.mark.parametrize("seed", range(4))
def test_in_whatever_order_things_come(
    inside: Within, host: Callable[[], Host], seed: int
) -> None:  # L1, S14, S15
    storm = Storm(inside, host, seed)
    for _ in range(TURNS):
        for _ in range(storm.dice.randint(1, 6)):
            storm.act()
        one_turn(inside)
        check(inside, storm.asked)
    for each in storm.hosts:
        each.end()
    inside.clocks.pass_(60.0)
    inside.turn()
    inside.clocks.pass_(60.0)
    inside.turn()
    assert inside.broker is not None
    assert not inside.broker._leases.holdings
    assert not inside.broker._leases.waiters
