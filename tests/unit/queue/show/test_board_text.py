"""The status board as text."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slicer.columns import ASCII, Glyphs, cell_count, table, told_apart
from slicer.queue.model import Board, GpuRow
from slicer.queue.show import board_text
from tests.unit.queue.show.test_event_text import NASTY, UNSEEN, row

AT = 1_700_000_000.0
WAITS: dict[str, Any] = {"status": "pending", "wall_s": 0.0, **UNSEEN}
WIDE = "訓練" * 40 + "e\u0301" * 40


def board(**fields: Any) -> Board:
    """A queue in full swing: two run, 1,000 wait, five have ended."""
    ends: list[dict[str, Any]] = [
        {"status": "ok", "verdict": "over-declared", "peak_mib": (7000,)},
        {"status": "failed", "exit_code": 3, "reason": "exited"},
        {"status": "timeout", "exit_code": 124, "reason": "timeout"},
        {"status": "cancelled", "exit_code": 143},
        {"status": "failed", "exit_code": 139, "reason": "signal"},
    ]
    usual: dict[str, Any] = {
        "title": "jobs.txt", "at": AT, "began_at": AT - 4000,
        "gpus": (GpuRow(0, "NVIDIA H100 80GB HBM3", 80 << 10, 40 << 10, 96, (13, 14)),
                 GpuRow(1, "NVIDIA H100 80GB HBM3", 80 << 10, 0, None, ())),
        "running": (row(13, name="train-a"), row(14, note="cancelling")),
        "pending": tuple(
            row(no, **{**WAITS, "attempt": 2 if no == 16 else 1, "waits_for": "GPU 0 is held by train"})
            for no in range(20, 1020)
        ) if "pending" not in fields else (),
        "done": tuple(row(no, **end) for no, end in enumerate(ends, 1)),
        "counts": {"pending": 1000, "running": 2, "ok": 1, "failed": 2, "timeout": 1, "cancelled": 1},
        "eta_s": 4800.0, "state": "running", "warning": "", "pid": 946, "every_s": 5.0,
    }  # fmt: skip
    return Board(**{**usual, **fields})


def empty(**fields: Any) -> Board:
    nothing: dict[str, Any] = {
        "running": (),
        "pending": (),
        "done": (),
        "counts": {},
        "gpus": (),
        "eta_s": None,
    }
    return board(**{**nothing, **fields})


def test_the_board_shows_all_that_matters() -> None:  # E8
    text = board_text.render(board(), 80)
    clock = time.strftime("%H:%M:%S", time.localtime(AT))
    assert text.startswith(
        f"jobs.txt · {clock} · for 1h7m\n2 running, 1000 pending, 1 ok, 2 failed, 1 timed out, 1 cancelled\n"
    )
    assert "  5 of 1007 done (0%), about 1h20m left\n" in text
    assert "\nGPU 0  H100 80GB HBM3  [█████░░░░░]  40.0G of 80G  96%  jobs 13, 14\n" in text
    assert "\n▶   13  0    12m4s  16.6G  17.2G  18G   96%  train-a: python train.py" in text
    assert "\n▶   14  0    12m4s  16.6G  17.2G  18G   96%  (cancelling) py" in text
    assert "\n·   20    18G  python train.py --seed 20  GPU 0 is held by train\n" in text
    assert "\n✓    1  ok         12m4s   6.8G  18G  -62%   96%  python" in text
    assert "\n✗    2  exit 3 " in text
    assert "\n✗    3  timeout " in text
    assert "\n⊘    4  cancelled " in text
    assert "\n✗    5  SIGSEGV " in text
    assert text.endswith("\n")


# Q7: what was not measured is not "0", and not a GPU's absence either
def test_what_was_not_measured_is_not_given_as_measured() -> None:
    ended = row(3, status="ok", **{**UNSEEN, "gpu_indices": (0,)})
    without = row(4, status="ok", **{**UNSEEN, "declared_mib": None})
    text = board_text.render(board(done=(ended, without)), 80)
    assert re.search(r"\n✓ +3  ok +12m4s +n/a +18G +n/a  python", text), text
    assert re.search(r"\n✓ +4  ok +12m4s +- +- +-  python", text), text


def test_a_retry_has_a_mark_of_its_own() -> None:  # E8, E9
    text = board_text.render(board(pending=(row(7, **{**WAITS, "attempt": 2}),), counts={"pending": 1}), 80)
    assert "\n↻    7    18G  python train.py --seed 7\n" in text
    assert "WAITS FOR" not in text


def test_a_long_queue_is_counted_not_listed() -> None:  # E8
    text = board_text.render(board(), 80)
    assert text.count("\n·") == 20
    assert "\n… 980 more pending\n" in text
    ended = tuple(row(no, status="ok") for no in range(1, 51))
    text = board_text.render(board(done=ended, pending=()), 80)
    assert text.count("\n✓") == 20
    assert "--seed 50" in text
    assert "--seed 30" not in text


@pytest.mark.parametrize("width", [1, 10, 20, 40, 79, 80, 200])
def test_no_line_is_wider_than_asked_for(width: int) -> None:  # E8
    wide = row(1, name=WIDE, command=WIDE, note="cancelling", gpu_indices=tuple(range(16)))
    hard = board(
        title=WIDE, warning=WIDE, running=(wide,), done=(row(2, command=WIDE, status="ok"),),
        pending=(row(3, **{**WAITS, "waits_for": WIDE, "command": WIDE}),),
    )  # fmt: skip
    for one in (board(), empty(), hard):
        for line in board_text.render(one, width).splitlines():
            assert cell_count(line) <= width


# Q14: the rows of a sweep do not look alike
def test_the_beginning_is_shown_and_what_differs_is_not_cut() -> None:
    long = "python train.py --model resnet-with-a-long-name --data /srv/data/imagenet-1k/train"
    out = "--out /srv/results/of/this/sweep/with/a/long/name"
    seeds = [f"{long} --seed {seed} {out}" for seed in (1, 2, 30)]
    assert told_apart(seeds, 40, Glyphs()) == [
        "python train.py --m…--seed 1 --out /srv…",
        "python train.py --m…--seed 2 --out /srv…",
        "python train.py --m…--seed 30 --out /sr…",
    ]
    ends = [f"{long} --lr {rate}" for rate in ("0.1", "0.01")]
    assert told_apart(ends, 20, Glyphs()) == ["python trai…--lr 0.1", "python tra…--lr 0.01"]
    grid = [f"{long} --lr {rate} --seed {seed}" for rate in ("0.1", "0.01") for seed in (1, 2)]
    names = [f"resnet-lr-{rate}-seed-{seed}" for rate in ("0.1", "0.01") for seed in (1, 2)]
    for texts, width in ((grid, 20), (grid, 30), (names, 14), (names, 20)):
        assert len(set(told_apart(texts, width, Glyphs()))) == 4
    named = [f"jobs.txt#{number}: {line} --epochs 90" for number, line in enumerate(ends)]
    assert told_apart(named, 40, Glyphs()) == [
        "jobs.txt#0: python train…train --lr 0.1…",
        "jobs.txt#1: python train…rain --lr 0.01…",
    ]
    between = told_apart([ends[0], "make", ends[1], "make"], 20, Glyphs())
    assert between == ["python trai…--lr 0.1", "make", "python tra…--lr 0.01", "make"]
    assert told_apart([seeds[0]] * 2, 12, ASCII) == ["python tr..."] * 2  # which need only their beginning
    sims = ["sim --vram 20G --hold 2h", "sim --vram 6G --hold 1h"]
    assert told_apart(sims, 10, Glyphs()) == ["sim --vra…"] * 2  # whose rest would be scraps


def test_a_column_that_says_nothing_leaves_its_room_to_commands() -> None:  # W29
    for left, command, heads in (
        ("-", "python train.py", ["NAME", "FOR", "LEFT", "COMMAND"]),
        ("-", "python train.py --lr 0.1", ["NAME", "FOR", "COMMAND"]),
        ("5m", "python train.py --lr 0.1", ["NAME", "FOR", "LEFT", "COMMAND"]),
    ):  # fmt: skip
        cells = [("train", "1h5m", left, command)]
        head, row = table("NAME | FOR>!2 | LEFT>!1 | COMMAND", cells, 37, least=10)
        assert head.text.split() == heads
        assert row.text.endswith(command) is (left == "-"), row


@example(["a ", "  "], 1, ASCII)
@given(
    st.lists(st.text("ab 訓\u0301", max_size=30), max_size=4), st.integers(1, 40),
    st.sampled_from([ASCII, Glyphs()]),
)  # fmt: skip
def test_commands_fit_whatever_they_are(texts: list[str], width: int, glyphs: Glyphs) -> None:  # E8
    for text, shown in zip(texts, told_apart(texts, width, glyphs), strict=True):
        assert cell_count(shown) <= width
        assert shown == text or cell_count(text) > width


def test_a_sweep_can_be_told_apart_on_the_board() -> None:  # Q14
    jobs = [f"python train.py --config {'c' * 300} --seed {no} --out {'o' * 300}" for no in range(20, 26)]
    waiting = tuple(row(no, **{**WAITS, "command": job, "waits_for": "a GPU"}) for no, job in enumerate(jobs))
    ended = tuple(row(no, command=job, status="ok") for no, job in enumerate(jobs))
    for width in (80, 120, None):
        text = board_text.render(board(pending=waiting, done=ended, running=ended), width)
        for no in range(20, 26):
            assert text.count(f"--seed {no} --o") == 3, text


def test_a_width_of_none_cuts_no_reasons() -> None:
    why = "x" * 300
    text = board_text.render(board(pending=(row(3, **{**WAITS, "waits_for": why}),)), None)
    assert why in text


def test_control_characters_never_come_raw() -> None:  # E8
    job = row(1, name=NASTY, command=NASTY, note=NASTY)
    waits = row(2, **{**WAITS, "waits_for": NASTY, "command": NASTY})
    gpu = GpuRow(0, NASTY, 1024, 512, 1, ())
    text = board_text.render(
        board(title=NASTY, warning=NASTY, running=(job,), pending=(waits,), done=(job,), gpus=(gpu,)), None
    )
    assert text.replace("\n", "").isprintable()
    text.encode()


def test_what_is_wrong_stands_at_the_top() -> None:  # E8
    lines = board_text.render(board(warning="the disk is full", state="stalled"), 80).splitlines()
    assert lines[0].endswith("stalled: nothing is started")
    assert lines[3] == "! the disk is full"
    assert "stopping: nothing new is started" in board_text.render(board(state="stopping"), 80)


# W8: whether the queue lives, has ended or was killed can be told from status.txt
def test_it_says_when_it_was_written_and_by_whom() -> None:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(AT))
    line = f"\nwritten {at} by pid 946, again every 5s while jobs run; killed, if ps 946 shows no slicer\n\n"
    assert line in board_text.render(board(), None)
    text = board_text.render(board(state="ended"), None)
    assert f"\nwritten {at} by pid 946, which has ended\n\n" in text
    assert text.partition("\n")[0].endswith(" · ended")
    assert " left\n" not in text  # nobody will do that


def test_the_progress_bar_tells_done_running_and_the_rest() -> None:
    half = board(counts={"ok": 5, "running": 1, "pending": 4}, eta_s=50.0)
    assert board_text.progress(half, 80, Glyphs()) == (
        f"[{'█' * 15}{'▒' * 3}{'░' * 12}]  5 of 10 done (50%), about 50s left"
    )
    assert board_text.progress(half, 30, Glyphs()) == "5 of 10 done (50%), about 50s left"
    over = board(counts={"ok": 10}, eta_s=0.0)
    assert board_text.progress(over, None, Glyphs()) == f"[{'█' * 30}]  10 of 10 done (100%)"
    assert board_text.render(empty(), 80).splitlines()[1:3] == ["no jobs", "nothing to do"]


def test_a_gpu_of_unknown_size_has_an_empty_bar() -> None:
    text = board_text.render(empty(gpus=(GpuRow(0, "", 0, 10, None, (1,)),)), 80)
    assert "[░░░░░░░░░░]  10.0M of 0    job 1" in text
