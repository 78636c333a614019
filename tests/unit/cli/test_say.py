"""The lines that ``slicer run`` prints: each one line, whatever the names in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.cli import say
from slicer.errors import SlicerError
from slicer.job import launch
from slicer.kernel.proc import now_s
from slicer.kernel.signals import signal_name
from slicer.model import Busy, Usage
from slicer.record import replace
from tests.unit.cli.made_up_status import BACKUP, TRAIN
from tests.unit.cli.test_history import QUICK
from tests.unit.outcome.test_outcome_file import OUTCOME

LINES = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (replace(QUICK, exit_code=0), "done: exit 0 · 7ms"),
        (QUICK, "ended: exit 3 · 7ms"),
        (
            OUTCOME,
            "train: exit 137 (out of memory) · 2m3s · CPU 1m2s · memory 24.0G · "
            "GPU memory 9.1G and 512.0M of 8.0G declared · 2 leftover processes ended"
            " · got past its cap",
        ),
        (
            replace(QUICK, reason="timeout", exit_code=124, signal=15),
            "ended: exit 124 (over its time limit) · 7ms",
        ),
        (replace(QUICK, reason="stopped", exit_code=143, signal=15), "ended: exit 143 (stopped) · 7ms"),
        (
            replace(QUICK, reason="signal", exit_code=139, signal=11),
            "ended: exit 139 (killed by SIGSEGV) · 7ms",
        ),
        (
            replace(QUICK, reason="signal", exit_code=178, signal=50),
            "ended: exit 178 (killed by signal 50) · 7ms",
        ),
        (
            replace(QUICK, leftovers=1, usage=Usage(cpu_s=0.5)),
            "ended: exit 3 · 7ms · CPU 500ms · 1 leftover process ended",
        ),
    ],
)
def test_how_a_job_ended(capfd: LINES, outcome: object, text: str) -> None:  # A9
    say.Messages(0).finished(outcome)  # type: ignore[arg-type]
    assert capfd.readouterr().err == f"slicer: {text}\n"


def test_what_was_not_enforced_is_said_to_those_who_ask(capfd: LINES) -> None:
    say.Messages(1).finished(QUICK)
    assert capfd.readouterr().err.endswith("\nslicer: not enforced here: MemoryMax, IOWeight\n")


def test_who_holds_what_the_job_waits_for(capfd: LINES) -> None:  # A9, B2
    first = replace(TRAIN, uid=os.geteuid(), since_s=now_s() - 60.1, expect_s=360.0)
    second = replace(BACKUP, since_s=now_s() - 60.1, expect_s=None)
    messages = say.Messages(0)
    messages.waiting(Busy("gpu", (second, first), 0, (), ""))
    messages.waiting(Busy("cpu", (second,), 2, (), "", slot="cpu"))
    messages.waiting(Busy("cpu", (replace(first, expect_s=1.0, unit=""),), 0, (), "", slot="cpu"))
    messages.waiting(Busy("cpu", (), 1, (), "", slot="cpu"))
    assert capfd.readouterr().err.splitlines() == [
        "slicer: waiting for a GPU, held by train (about 5m left, pid 4211, "
        "slicer-3f2a9c01b7de.scope, for 1m) and 1 other",
        "slicer: waiting for a CPU slot, held by tar cJf backup.txz /srv (54321's, "
        "pid 88123, slicer-9b1c22d0aa31.scope, for 1m), 2 ahead of you",
        "slicer: waiting for a CPU slot, held by train (overdue, pid 4211, for 1m)",
        "slicer: waiting for a CPU slot, 1 ahead of you",
    ]


def test_the_lease_is_said_after_a_wait_or_when_asked(capfd: LINES) -> None:  # A9
    say.Messages(0).acquired(TRAIN, 0.01)
    assert capfd.readouterr().err == ""
    waiter = say.Messages(0)
    waiter.waiting(Busy("gpu", (), 1, (), ""))
    waiter.acquired(TRAIN, 0.041)
    say.Messages(1).acquired(replace(BACKUP, unit=""), 0.0)
    assert capfd.readouterr().err.splitlines() == [
        "slicer: waiting for a GPU, 1 ahead of you",
        "slicer: acquired 2 GPUs and 1 CPU slot after 41ms · slicer-3f2a9c01b7de.scope",
        "slicer: acquired 2 CPU slots · 9b1c22d0aa31",
    ]


def test_quiet_says_nothing(capfd: LINES) -> None:
    quiet = say.Messages(-1)
    quiet.notice("x")
    quiet.waiting(Busy("gpu", (TRAIN,), 0, (), ""))
    quiet.acquired(TRAIN, 4.1)
    quiet.finished(QUICK)
    assert capfd.readouterr().err == ""


def test_nobodys_name_adds_a_line_or_talks_to_the_terminal(capfd: LINES) -> None:
    evil = "a\nslicer: done\x1b[2J\udcff\u202e"
    say.Messages(0).finished(replace(QUICK, name=evil))
    say.Messages(0).waiting(Busy("gpu", (replace(TRAIN, name=evil),), 0, (), ""))
    say.error(SlicerError(evil))
    for line in capfd.readouterr().err.splitlines():
        assert line.startswith("slicer: ")
        assert "a slicer: done\\x1b[2J\\xff\\u202e" in line


@pytest.mark.parametrize(("verbosity", "said"), [(-1, ""), (0, "slicer: pid 1 has held the lock\n")])
def test_with_q_nobody_hears_that_the_lock_is_held_for_long(
    verbosity: int, said: str, tmp_path: Path, capfd: LINES
) -> None:  # D19
    ledger = launch.open_ledger({"SLICER_STATE_DIR": str(tmp_path)}, say.Messages(verbosity), "plain")
    ledger.tell("pid 1 has held the lock")
    ledger.close()
    assert capfd.readouterr().err == said


def test_every_signal_has_its_name() -> None:
    import signal

    for number in signal.valid_signals():
        if isinstance(number, signal.Signals):
            expected = number.name
            assert signal_name(number) in (
                expected,
                "SIGIOT" if expected == "SIGABRT" else "SIGCLD",
                "SIGPOLL",
            )
