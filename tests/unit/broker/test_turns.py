"""Whose turn is near."""

from __future__ import annotations

import pytest

from slicer.broker.rules.turns import nearest
from slicer.model import Ticket
from slicer.record import replace

_TICKET = Ticket(
    job="0" * 12, name="", command="", pid=1, pid_start=1, boot_id="", uid=1, inside=(), priority=0,
    arrived_s=0.0, gpus=0, gpu_choice=(), vram_mib=None, margin_mib=0, slots={}, slot_limits={},
    expect_s=None, profile="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("", ""),
        ("aG bG cG", "aG bG"),
        ("aG bG cS dG eS fS", "aG bG cS eS"),
        ("aS bT cS dS eT", "aS bT cS eT"),
        ("aB bB cB dS eS fS", "aB bB dS eS"),  # both slots is a kind of its own
        ("aG! bG! cG! dG eG", "aG! bG! dG eG"),  # ! is over its user's cap
        ("aG! bG2! cG2! dG2! eG", "aG! bG2! cG2! eG"),
    ],
)
def test_the_first_of_each_kind_are_near_and_of_each_user_that_is_over_a_cap(
    queue: str, expected: str
) -> None:
    slots = {"S": {"s": 1}, "T": {"t": 1}, "B": {"s": 1, "t": 1}, "G": {}}
    tickets = [
        replace(_TICKET, name=word, gpus=int(word[1] == "G"), slots=slots[word[1]], uid=1 + ("2" in word))
        for word in queue.split()
    ]
    found = nearest(tickets, lambda ticket: ticket.name.endswith("!"))
    assert sorted(ticket.name for ticket in found) == sorted(expected.split())
