"""What a person reads of ``slicer status`` in 80 columns."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from slicer.cli import output
from slicer.cli.status_json import status_json, without_clocks
from slicer.cli.status_rows import left_text
from slicer.cli.status_text import lines
from slicer.kernel.users import user_name
from slicer.ledger.halted import Halted
from slicer.ledger.status import LedgerStatus, PlainLockState
from slicer.model import GpuLoad, Reservation
from slicer.record import replace
from tests.unit import made_up
from tests.unit.cli.made_up_status import (
    EVAL,
    FULL,
    GPUS,
    IDLE,
    NOW_S,
    SERVE,
    TRAIN,
    A,
    B,
    C,
    made,
    process,
    row_of,
    snapshot,
    text,
)

FULL_TEXT = """\
JOBS 3        NAME   STATE    HOLDS                USER   FOR     LEFT  PID
3f2a9c01b7de  train  running  GPU 0,2, 1 CPU slot  root   12m       3m  4211
  slicer-3f2a9c01b7de.scope: python train.py --epochs 90
9b1c22d0aa31  -      running  2 CPU slots          54321  10s  overdue  88123
  slicer-9b1c22d0aa31.scope (--user): tar cJf backup.txz /srv
c0ffee112233  -      running  -                    root    0s        -  88123
  no scope: tar cJf backup.txz /srv

WAITING 1     NAME  WANTS               USER   FOR  STARTS
77aa00bb11cc  eval  2 GPUs, 1 CPU slot  root  4m3s     ~3m
  held by train (about 3m left), processes outside slicer use GPU 1 - python eval.py

CPU slots: 1 of 4 free; held by train, 9b1c22d0aa31 (2 slots)
GPUs: 0 of 3 free       VRAM  RESERVED   FREE  BUSY  TEMP  POWER
0  [#####=]   75.2G of 79.6G     79.6G      0     -     -      -  H100 80GB HBM3
  train (root) 75.2G, peak 76.2G
1  [......]    2.0G of 79.6G      2.2G  77.4G     -     -      -  H100 80GB HBM3
  no job: pid 99 python 2.0G, peak 2.0G
2  [======]  400.0M of 79.6G     79.6G      0     -     -      -  H100 80GB HBM3
  train (root) 400.0M
"""
IDLE_TEXT = """\
No jobs are running.

CPU slots: 3 of 3 free
No GPUs: there is no NVIDIA driver

Jobs of this user only (/tmp/state).
"""


@pytest.mark.parametrize(
    ("source", "left"), [("runs", "~5m"), ("limit", "<10m"), ("machine", "-"), ("", "-")]
)
def test_what_remains_of_a_job_is_marked_with_its_basis(source: Any, left: str) -> None:  # U7
    est_s = 600.0 if source else None
    assert left_text(made_up.lease(since_s=100.0, est_s=est_s, est_from=source), 100.0) == left


@pytest.mark.parametrize(("status", "expected"), [(FULL, FULL_TEXT), (IDLE, IDLE_TEXT)])
def test_the_text_in_80_columns(status: LedgerStatus, expected: str) -> None:  # B3
    shown = text(status)
    assert shown == expected
    assert max(len(row) for row in shown.splitlines() if not row.startswith("  held")) <= 80


def test_the_heads_stand_apart_from_the_number_of_gpus() -> None:  # B3
    small = tuple(replace(gpu, memory_mib=24 << 10) for gpu in GPUS)
    shown = text(made((), (), snapshot(gpus=small), small))
    assert "\nGPUs: 3 of 3 free    VRAM  RESERVED " in shown
    assert "\n0  [......]      0 of 24G " in shown


def test_a_terminal_gets_columns_that_fit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    long = replace(
        TRAIN,
        name="a name as long as names of jobs should never be",
        gpus=tuple(f"GPU-{i}" for i in range(13)),
    )
    gpus = tuple(replace(gpu, name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition") for gpu in GPUS)
    status = made((long, replace(SERVE, name=long.name)), (replace(EVAL, name=long.name),), snapshot(), gpus)
    assert long.name in text(status)  # whoever reads a pipe gets all
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    rows = text(status).splitlines()
    assert rows[1].startswith("3f2a9c01b7de  a name as long as…  running  GPU ?,?,?,?,?,?,?,?,?,?…")
    assert max(len(row) for row in rows if "…" in row and not row.startswith("  ")) <= 80
    assert re.search(r"^0  \[░░░░░░\] +0 of 79.6G .*  RTX PRO 6000 Black", "\n".join(rows), re.MULTILINE)


def test_names_cannot_break_out_of_their_line() -> None:
    evil = replace(TRAIN, name="a\nb\x1b[2J", command="c\u202ed \udcff")
    asks = replace(EVAL, name="\x1b]0;x\x07", command="\r\x9b2J")
    status = made((evil,), (asks,), snapshot(process(B, 7, 900, name="\x1b[31m\n")))
    shown = text(status)
    assert all(line.isprintable() for line in shown.splitlines())
    assert shown.count("a\\nb\\x1b[2J") == 5  # the job, who waits for it, the slots, two GPUs
    assert ": c\\u202ed \\xff\n" in shown


def test_a_broken_configuration_hides_no_job() -> None:
    shown = text(replace(FULL, slot_limits=None))
    assert "CPU slots: unknown; held by train," in shown
    assert status_json(replace(FULL, slot_limits=None))["cpu_slots"] == {"total": None, "free": None}


def test_each_slot_has_its_line_and_those_that_nobody_wants_one_together() -> None:  # issue: named slots
    limits = {"cpu": 4, "ocr": 3, "matlab": 2, "whisper-gpu": 2}
    held = replace(TRAIN, slots={"whisper-gpu": 2, "gone": 1})
    waits = replace(EVAL, slots={"matlab": 1}, slot_limits={"matlab": 2})
    status = made((held,), (waits,), snapshot(), slot_limits=limits)
    shown = text(status)
    assert (
        "\nCPU slots: 4 of 4 free\n"
        "gone slots: not in the configuration any more; held by train\n"
        "matlab slots: 2 of 2 free\n"
        "whisper-gpu slots: 0 of 2 free; held by train (2 slots)\n"
        "Slots all free: ocr 3\n\n"
    ) in shown
    assert "  GPU 0,2, 1 gone, 2 whisper-gpu  " in row_of(shown, f"{TRAIN.job}  train ")
    found = status_json(status)
    assert found["slots"] == {
        "cpu": {"total": 4, "free": 4, "held": 0},
        "gone": {"total": None, "free": None, "held": 1},
        "matlab": {"total": 2, "free": 2, "held": 0},
        "ocr": {"total": 3, "free": 3, "held": 0},
        "whisper-gpu": {"total": 2, "free": 0, "held": 2},
    }
    assert (found["jobs"][0]["slots"], found["jobs"][0]["cpu_slots"]) == ({"whisper-gpu": 2, "gone": 1}, 0)
    assert found["waiting"][0]["slots"] == {"matlab": 1}


HALTED = (Halted(TRAIN.job, "stopped", None), Halted(SERVE.job, "frozen", NOW_S - 90))


def test_a_job_that_is_halted_and_holds_a_gpu_is_marked() -> None:  # W16
    shown = text(made((TRAIN, SERVE), (), snapshot(), halted=HALTED))
    assert "  stopped       GPU 0,2" in row_of(shown, f"{TRAIN.job}  train ")
    assert "  serve (root, frozen, over) 0 of 30G, peak 31.0G\n" in shown
    assert "\n  stopped (Ctrl-Z); slicer resume train\n" in shown
    assert "\n  frozen from outside (systemctl freeze), 1m30s ago; slicer resume serve\n" in shown


def test_a_paused_job_says_how_it_goes_on() -> None:  # X6
    named = replace(TRAIN, name="my job")
    status = made((named,), (), None, halted=(Halted(TRAIN.job, "paused", NOW_S - 2),))
    assert "\n  paused by slicer pause, 2s ago; slicer resume 'my job'\n" in text(status)
    (told,) = status_json(status)["jobs"]
    assert (told["halted"], told["halted_for"]) == ("paused", 2.0)


def test_an_idle_job_is_marked_and_says_since_when() -> None:  # U4
    idle = replace(TRAIN, idle_warn_s=2700.0, idle_end_s=3000.0, idle_since_s=NOW_S - 2760)
    shown = text(made((idle, SERVE), (), snapshot()))
    assert "  idle 46m  GPU 0,2" in row_of(shown, f"{TRAIN.job}  train ")
    assert "\n  has not used its GPU for 46m, ended after 50m of that\n" in shown
    assert "ended after" not in text(made((replace(idle, idle_end_s=None),), (), snapshot()))
    found = status_json(made((idle, SERVE), (), snapshot()))["jobs"]
    assert [(each["idle_for"], each["idle_timeout"], each["idle_end"]) for each in found] == [
        (2760.0, 2700.0, 3000.0), (None, None, None),
    ]  # fmt: skip


def test_a_job_over_its_declaration_and_a_forced_one_are_marked() -> None:  # E5, A8
    forced = replace(SERVE, job="f0f0f0f0f0f0", name="late", forced=1, vram_peak_mib=(), slots={"cpu": 1})
    seen = snapshot(process(B, 502, 31000, SERVE.cgroup))
    status = made((SERVE, replace(forced, cgroup="/x.scope")), (), seen)
    shown = text(status)
    assert "  serve (root, over) 30.3G of 30G, peak 31.0G\n" in shown
    assert "  late (root, forced) 0 of 30G\n" in shown
    assert "  over    30G of GPU 1 " in row_of(shown, "5e72e0aa00bb  serve ")
    assert "  forced  30G of GPU 1, 1 CPU slot " in row_of(shown, "f0f0f0f0f0f0  late ")
    assert "; held by late (forced)\n" in shown
    assert {line.style for line in lines(status) if "late" in line.text and "held" not in line.text} == {
        "yellow"
    }
    within = text(made((replace(SERVE, vram_peak_mib=(30720,)),), (), snapshot()))
    assert "  serve (root) 0 of 30G, peak 30.0G\n" in within
    assert "over" not in within


def test_what_is_on_a_gpu_without_a_lease_there() -> None:  # B3, X2
    stray = process(A, 502, 3000, SERVE.cgroup, name="worker")  # SERVE holds B
    status = made((SERVE,), (), snapshot(stray, process(B, 9, None, name="n/a"), aaaa=700, bbbb=5000))
    shown = text(status)
    assert "  of job 5e72e0aa: pid 502 worker 2.9G, peak 2.9G\n" in shown
    assert "  no visible process 700.0M\n" in shown
    assert "  no job: pid 9 n/a -\n" in shown
    assert shown.count("no visible process") == 1  # what is left of B is the silent one's
    first, second, _ = status_json(status)["gpus"]["all"]
    assert first["foreign"] == [
        {"pid": 502, "name": "worker", "used_mib": 3000, "peak_mib": 3000, "job": SERVE.job, "user": None}
    ]
    assert (first["unexplained_mib"], second["unexplained_mib"]) == (700, 0)
    assert (first["idle"], first["jobs"], second["jobs"]) == (False, [], [SERVE.job])
    assert [gpu["index"] for gpu in status_json(status)["gpus"]["free"]] == [0, 2]  # no job holds them


def test_how_busy_warm_and_hungry_a_gpu_is_in_use() -> None:  # W7
    mine = replace(process(B, 9, 2048), uid=os.geteuid())
    status = made((TRAIN,), (), snapshot(mine), load={A: GpuLoad(93, 64, 412, 700), B: GpuLoad(7)})
    first, second = (row_of(text(status), f"{index}  [").split()[-6:-3] for index in (0, 1))
    assert (first, second) == (["93%", "64C", "412/700W"], ["7%", "-", "-"])
    assert f"no job: pid 9 python ({user_name(os.geteuid())})" in text(status)
    first, second, third = status_json(status)["gpus"]["all"]
    assert [first[name] for name in ("utilisation", "temperature_c", "power_w", "power_limit_w")] == [
        93, 64, 412, 700
    ]  # fmt: skip
    assert [second["utilisation"], second["power_w"], third["utilisation"]] == [7, None, None]
    # They never rest: a script that waits for changes is not told of them.
    cooler = made((TRAIN,), (), snapshot(mine), load={A: GpuLoad(12, 50, 80, 700)})
    assert without_clocks(status_json(status)) == without_clocks(status_json(cooler))


def test_gpus_that_cannot_be_looked_at_are_listed_all_the_same() -> None:
    status = made((TRAIN,), (EVAL,), None)
    shown = text(status)
    assert "\n1      - of 79.6G         -     -     -     -      -  H100 80GB HBM3\n" in shown
    assert "the GPUs cannot be examined" in shown
    gpu = status_json(status)["gpus"]["all"][0]
    assert (gpu["used_mib"], gpu["reserved_mib"], gpu["free_mib"], gpu["idle"]) == (None,) * 4


def test_memory_shared_with_the_cpu_has_no_figures_to_divide() -> None:
    gpu = replace(GPUS[0], memory_mib=0)
    shown = text(made((), (), snapshot(gpus=(gpu,)), (gpu,)))
    assert row_of(shown, "H100").split()[1:4] == ["0", "0", "-"]


def test_the_lock_of_scripts_is_shown_while_somebody_has_it() -> None:
    held = replace(FULL, plain_lock=PlainLockState("/tmp/gpu.lock", 815))
    assert "\nGPU lock of scripts: /tmp/gpu.lock is held by pid 815\n" in text(held)
    assert status_json(held)["plain_lock"] == {"path": "/tmp/gpu.lock", "pid": 815}
    assert "of scripts" not in text(replace(FULL, plain_lock=PlainLockState("/tmp/gpu.lock", 0)))


def test_reservations_are_listed_with_their_users_and_times(monkeypatch: pytest.MonkeyPatch) -> None:  # U7
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    kept = (
        Reservation("a" * 12, 0, (A, C), 1_699_999_000.0, 1_700_003_600.0),
        Reservation("b" * 12, 0, ("GPU-gone",), 1_702_000_000.0, 1_702_007_200.0),
    )
    shown = [line.text for line in lines(replace(made(), reservations=kept))]
    begin = next(number for number, line in enumerate(shown) if line.startswith("RESERVED"))
    first, second = (line.split() for line in shown[begin + 1 : begin + 3])
    assert first[:5] == ["aaaaaaaaaaaa", "root", "0,", "2", "now"]
    assert second[:4] == ["bbbbbbbbbbbb", "root", "GPU-gone", "on"]
    assert (first[-1], second[-1]) == ("1h17m", "2h")
