"""How the broker estimates lengths: by a user's own runs, then by a few of everybody's."""

from __future__ import annotations

from slicer.broker.rules.run_lengths import RunLengths
from slicer.model import Ticket
from slicer.placement.suspects import RunEnd
from tests.unit import made_up


def ticket(uid: int, **fields: object) -> Ticket:
    return made_up.ticket(uid=uid, gpus=1, command="python train.py --lr 1", **fields)


# U7, L3
def test_a_command_is_known_by_its_users_own_runs() -> None:
    runs = RunLengths()
    runs.note(1000, "python train.py --lr 2", 300.0)
    made = runs.estimated(ticket(1000), None)
    assert (made.est_s, made.est_from) == (600.0, "runs")
    assert runs.estimated(ticket(1001), None).est_s is None  # a namesake of another user's
    assert runs.estimated(ticket(1001), 900.0).est_s == 900.0
    assert runs.estimated(ticket(1000, expect_s=1.0), None).est_s == 300.0  # a claim does not go below


# U7, L3: who runs a thousand short jobs does not decide what is usual here
def test_each_user_counts_equally_among_the_machines_runs() -> None:
    runs = RunLengths()
    assert runs.mean_s is None
    for number in range(16):
        runs.note(1000, f"long{number}", 3600.0)
    for number in range(1000):
        runs.note(1001, f"short{number}", 1.0)
    assert runs.mean_s == (3600.0 + 1.0) / 2
    assert runs.estimated(ticket(1002), None).est_s == 7200.0


# U8, L1: nobody's failures are compared with another user's successes
def test_a_gpu_is_placed_last_by_the_jobs_of_one_user() -> None:
    def noted(well: int) -> frozenset[str]:
        runs = RunLengths()
        runs.note_end(well, "python train.py", RunEnd(1.0, "well", ("GPU-1",), ""))
        for second in range(3):
            runs.note_end(1000, "python train.py", RunEnd(2.0 + second, "quick", ("GPU-0",), ""))
            runs.note_end(well, "python train.py", RunEnd(2.0 + second, "well", ("GPU-1",), ""))
        return runs.suspects(5.0)

    assert noted(1000) == {"GPU-0"}
    assert noted(1001) == set()
