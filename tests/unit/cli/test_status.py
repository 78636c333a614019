"""``slicer status``: what a person reads in 80 columns, and what a script reads."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicer.cli import output
from slicer.cli.status_json import status_json, without_clocks
from slicer.cli.status_text import lines, sections
from slicer.cli.status_why import reason
from slicer.cli.watch import fit
from slicer.gpu import attribution
from slicer.gpu.snapshot import GpuSnapshot, ProcessOnGpu
from slicer.ledger.status import PlainLock, Status, StatusReader, states, waits
from slicer.ledger.tickets import request_of
from slicer.model import Gpu, GpuMemory, Lease, Ticket
from slicer.placement import decision
from slicer.placement.capacity import Policy
from slicer.record import replace
from tests.fake_nvml import TWO_GPUS, FakeNvml
from tests.patience import wait_until
from tests.unit import made_up
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]

DOCS = Path(__file__).parents[3] / "docs" / "json.md"
NOW_S = 1000.0
POLICY = Policy()
H100 = "NVIDIA H100 80GB HBM3"
A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"
GPUS = (
    Gpu(0, A, H100, 81559, "00000000:01:00.0", 0),
    Gpu(1, B, H100, 81559, "00000000:02:00.0", 1),
    Gpu(2, C, H100, 81559, "00000000:03:00.0", 2),
)
TRAIN = made_up.lease(
    "3f2a9c01b7de", name="train", command="python train.py --epochs 90", pid=4211, keeper=4212, uid=0,
    unit="slicer-3f2a9c01b7de.scope", cgroup="/gpu.slice/slicer-3f2a9c01b7de.scope", gpus=(A, C),
    vram_peak_mib=(78000, 0), cpu_slots=1, since_s=280.0, expect_s=900.0,
)  # fmt: skip
BACKUP = replace(
    TRAIN, job="9b1c22d0aa31", name="", command="tar cJf backup.txz /srv", pid=88123, uid=54321,
    manager="user", unit="slicer-9b1c22d0aa31.scope", cgroup="/user.slice/slicer-9b1c22d0aa31.scope", gpus=(),
    vram_peak_mib=(), cpu_slots=2, since_s=990.0, expect_s=5.0,
)  # fmt: skip
LIGHT = replace(
    BACKUP, job="c0ffee112233", backend="plain", unit="", cgroup="", cpu_slots=0, since_s=999.7,
    expect_s=None, uid=0,
)  # fmt: skip
SERVE = made_up.lease(
    "5e72e0aa00bb", name="serve", pid=500, keeper=501, uid=0, cgroup="/gpu.slice/s.scope",
    unit="slicer-5e72e0aa00bb.scope", gpus=(B,), vram_mib=30 * 1024, vram_peak_mib=(31 * 1024,),
    since_s=940.0,
)  # fmt: skip
EVAL = made_up.ticket(
    "77aa00bb11cc", name="eval", command="python eval.py", uid=0, arrived_s=757.0, gpus=2, cpu_slots=1,
    expect_s=60.0,
)  # fmt: skip


def process(
    uuid: str, pid: int, used_mib: int | None, cgroup: str = "/other.scope", name: str = "python"
) -> ProcessOnGpu:
    return ProcessOnGpu(uuid, pid, used_mib, started=1, name=name, cgroup=cgroup, jobs=(), above=())


def snapshot(*processes: ProcessOnGpu, gpus: tuple[Gpu, ...] = GPUS, **extra_mib: int) -> GpuSnapshot:
    """The GPUs with these processes, and memory that none of them owns (by UUID without its prefix)."""

    def used(gpu: Gpu) -> int:
        own = sum(one.used_mib or 0 for one in processes if one.gpu_uuid == gpu.uuid)
        return own + extra_mib.get(gpu.uuid.removeprefix("GPU-"), 0)

    return GpuSnapshot(tuple(GpuMemory(gpu.uuid, gpu.memory_mib, used(gpu)) for gpu in gpus), processes)


def made(
    leases: tuple[Lease, ...] = (), tickets: tuple[Ticket, ...] = (), seen: GpuSnapshot | None = None,
    gpus: tuple[Gpu, ...] = GPUS, policy: Policy = POLICY, **other: Any,
) -> Status:  # fmt: skip
    """A status worked out as the real one is. ``seen`` None: the driver does not answer."""
    devices = attribution.devices(seen, leases, {}) if seen else None
    values: dict[str, Any] = {
        "directory": "/run/slicer", "no_gpus": "", "cpu_slots": 4, "plain_lock": None,
        "now_s": NOW_S,
    }  # fmt: skip
    return Status(
        leases=leases,
        tickets=tickets,
        waits=waits(tickets, devices, leases, policy, NOW_S),
        gpus=states(gpus, devices, seen, leases, policy, {}),
        **{**values, **other},
    )


IN_TRAIN = TRAIN.cgroup + "/inner"
FULL = made(
    (TRAIN, BACKUP, LIGHT),
    (EVAL,),
    snapshot(process(A, 4213, 77000, IN_TRAIN), process(C, 4213, 400, IN_TRAIN), process(B, 99, 2048)),
)
IDLE = made(gpus=(), directory="/tmp/state", cpu_slots=3, no_gpus="there is no NVIDIA driver here")

FULL_TEXT = """\
JOB           NAME   HOLDS                USER     PID  FOR     LEFT
3f2a9c01b7de  train  GPU 0,2, 1 CPU slot  root    4211  12m       3m
  slicer-3f2a9c01b7de.scope: python train.py --epochs 90
9b1c22d0aa31  -      2 CPU slots          54321  88123  10s  overdue
  slicer-9b1c22d0aa31.scope (--user): tar cJf backup.txz /srv
c0ffee112233  -      -                    root   88123   0s        -
  no scope: tar cJf backup.txz /srv

WAITING       NAME  WANTS               USER   FOR  STARTS
77aa00bb11cc  eval  2 GPUs, 1 CPU slot  root  4m3s     ~3m
  held by train (about 3m left), processes outside slicer use GPU 1 - python eval.py

CPU slots: 1 of 4 free; held by train, 9b1c22d0aa31 (2 slots)
GPUs: 0 of 3 free                          USED  RESERVED   FREE   PEAK
 0  H100 80GB HBM3  79.6G  [#########=]   75.2G     79.6G      0
      3f2a9c01b7de train                  75.2G     whole         76.2G
 1  H100 80GB HBM3  79.6G  [..........]    2.0G      2.2G  77.4G
      no job: pid 99 python                2.0G                    2.0G
 2  H100 80GB HBM3  79.6G  [==========]  400.0M     79.6G      0
      3f2a9c01b7de train                 400.0M     whole
"""
IDLE_TEXT = """\
No job runs.

CPU slots: 3 of 3 free
No GPUs: there is no NVIDIA driver here

Jobs of this user only (/tmp/state).
"""


def text(status: Status) -> str:
    return "".join(f"{line.text}\n" for line in lines(status))


@pytest.mark.parametrize(("status", "expected"), [(FULL, FULL_TEXT), (IDLE, IDLE_TEXT)])
def test_the_text_in_80_columns(status: Status, expected: str) -> None:  # B3
    shown = text(status)
    assert shown == expected
    assert max(len(row) for row in shown.splitlines() if not row.startswith("  held")) <= 80


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
    assert rows[1].startswith("3f2a9c01b7de  a name as long as…  GPU ?,?,?,?,?,?,?,?,?,?…")
    assert all(len(row) <= 80 for row in rows[-8:])
    assert " 0  RTX PRO 6000 …  79.6G  [··········]" in "\n".join(rows)


def test_names_cannot_break_out_of_their_line() -> None:
    evil = replace(TRAIN, name="a\nb\x1b[2J", command="c\u202ed \udcff")
    asks = replace(EVAL, name="\x1b]0;x\x07", command="\r\x9b2J")
    status = made((evil,), (asks,), snapshot(process(B, 7, 900, name="\x1b[31m\n")))
    shown = text(status)
    assert all(line.isprintable() for line in shown.splitlines())
    assert shown.count("a\\nb\\x1b[2J") == 5  # the job, who waits for it, the slots, two GPUs
    assert ": c\\u202ed \\udcff\n" in shown


def test_a_broken_configuration_hides_no_job() -> None:
    shown = text(replace(FULL, cpu_slots=None))
    assert "CPU slots: unknown; held by train," in shown
    assert status_json(replace(FULL, cpu_slots=None))["cpu_slots"] == {"total": None, "free": None}


def row_of(shown: str, word: str) -> str:
    return next(row for row in shown.splitlines() if word in row)


def test_a_job_that_is_halted_and_holds_a_gpu_is_marked() -> None:  # W16
    shown = text(made((TRAIN, SERVE), (), snapshot(), halted=((TRAIN.job, "stopped"), (SERVE.job, "frozen"))))
    assert "  stopped: GPU 0,2" in row_of(shown, f"{TRAIN.job}  train ")
    assert row_of(shown, "      5e72e0aa00bb serve").split()[-2:] == ["frozen", "over"]


def test_a_job_over_its_declaration_and_a_forced_one_are_marked() -> None:  # E5, A8
    forced = replace(SERVE, job="f0f0f0f0f0f0", name="late", forced=1, vram_peak_mib=(), cpu_slots=1)
    seen = snapshot(process(B, 502, 31000, SERVE.cgroup))
    status = made((SERVE, replace(forced, cgroup="/x.scope")), (), seen)
    shown = text(status)
    assert row_of(shown, "      5e72e0aa00bb serve").split()[2:] == ["30.3G", "30.0G", "31.0G", "over"]
    assert row_of(shown, "      f0f0f0f0f0f0 late").split()[2:] == ["0", "30.0G", "forced"]
    assert "  over: 30G of GPU 1 " in row_of(shown, "5e72e0aa00bb  serve ")
    assert "  forced: 30G of GPU 1, 1 CPU slot " in row_of(shown, "f0f0f0f0f0f0  late ")
    assert "; held by late (forced)\n" in shown
    assert {line.style for line in lines(status) if "late" in line.text and "held" not in line.text} == {
        "yellow"
    }
    within = text(made((replace(SERVE, vram_peak_mib=(30720,)),), (), snapshot()))
    assert row_of(within, "      5e72e0aa00bb serve").split()[-1] == "30.0G"
    assert "over" not in within


def test_what_is_on_a_gpu_without_a_lease_there() -> None:  # B3, X2
    stray = process(A, 502, 3000, SERVE.cgroup, name="worker")  # SERVE holds B
    status = made((SERVE,), (), snapshot(stray, process(B, 9, None, name="n/a"), aaaa=700, bbbb=5000))
    shown = text(status)
    assert row_of(shown, "of job 5e72e0aa: pid 502 worker").split()[-2:] == ["2.9G", "2.9G"]
    assert row_of(shown, "no process that is seen").split()[-1] == "700.0M"
    assert row_of(shown, "no job: pid 9 n/a").split()[-1] == "-"
    assert shown.count("no process that is seen") == 1  # what is left of B is the silent one's
    first, second, _ = status_json(status)["gpus"]["all"]
    assert first["foreign"] == [
        {"pid": 502, "name": "worker", "used_mib": 3000, "peak_mib": 3000, "job": SERVE.job}
    ]
    assert (first["unexplained_mib"], second["unexplained_mib"]) == (700, 0)
    assert (first["idle"], first["jobs"], second["jobs"]) == (False, [], [SERVE.job])
    assert [gpu["index"] for gpu in status_json(status)["gpus"]["free"]] == [0, 2]  # no job holds them


def test_gpus_that_cannot_be_looked_at_are_listed_all_the_same() -> None:
    status = made((TRAIN,), (EVAL,), None)
    shown = text(status)
    assert row_of(shown, " 1  H100").split() == ["1", "H100", "80GB", "HBM3", "79.6G", "-", "-", "-"]
    assert "the GPUs cannot be looked at" in shown
    gpu = status_json(status)["gpus"]["all"][0]
    assert (gpu["used_mib"], gpu["reserved_mib"], gpu["free_mib"], gpu["idle"]) == (None,) * 4


def test_memory_shared_with_the_cpu_has_no_figures_to_divide() -> None:
    gpu = replace(GPUS[0], memory_mib=0)
    shown = text(made((), (), snapshot(gpus=(gpu,)), (gpu,)))
    assert row_of(shown, " 0  H100").split()[4:] == ["-", "0", "0", "-"]


def test_the_lock_of_scripts_is_shown_while_somebody_has_it() -> None:
    held = replace(FULL, plain_lock=PlainLock("/tmp/gpu.lock", 815))
    assert "\nGPU lock of scripts: /tmp/gpu.lock is held by pid 815\n" in text(held)
    assert status_json(held)["plain_lock"] == {"path": "/tmp/gpu.lock", "pid": 815}
    assert "of scripts" not in text(replace(FULL, plain_lock=PlainLock("/tmp/gpu.lock", 0)))


# -- why ----------------------------------------------------------------------------------------------------

SMALL = made_up.ticket("5a5a00000000", name="small", arrived_s=900.0, gpus=1, vram_mib=20 * 1024)
SLOT = made_up.ticket("51070000aaaa", name="", arrived_s=950.0, cpu_slots=1, cpu_limit=2)
ALL = replace(TRAIN, gpus=(A, B, C), cpu_slots=0)
FOREIGN = snapshot(process(A, 1, 70000), process(B, 2, 70000), process(C, 3, 75000))


@pytest.mark.parametrize(
    ("leases", "tickets", "seen", "why"),
    [
        ((ALL,), (EVAL,), snapshot(), "held by train (about 3m left)"),
        ((replace(ALL, expect_s=10.0),), (EVAL,), snapshot(), "held by train (overdue)"),
        ((replace(ALL, name="", expect_s=None),), (EVAL,), snapshot(), "held by 3f2a9c01b7de"),
        ((ALL,), (EVAL, replace(EVAL, job="b")), snapshot(), "held by train (about 3m left), behind 1 other"),
        (
            (replace(TRAIN, gpus=(A,)), SERVE, replace(SERVE, job="x", gpus=(C,))), (EVAL,), snapshot(),
            "held by train (about 3m left) and 2 others",
        ),
        (
            (), (SMALL,), FOREIGN,
            "needs 20G free, GPU 0 has most: 4.5G, processes outside slicer use GPUs 0,1,2",
        ),
        (
            (), (replace(SMALL, gpus=2, gpu_choice=(B, C), margin_mib=512),), FOREIGN,
            "needs 20.5G free on 2 GPUs, none has that, processes outside slicer use GPUs 1,2",
        ),
        ((BACKUP,), (SLOT,), snapshot(), "held by 9b1c22d0aa31 (overdue)"),
        # the first has waited for long enough to get what is free kept for it
        (
            (replace(TRAIN, gpus=(A, B)),), (replace(EVAL, arrived_s=100.0),), snapshot(),
            "next, with a reservation, held by train (about 3m left)",
        ),
        (
            (replace(TRAIN, gpus=(A, B)),), (replace(EVAL, arrived_s=100.0), replace(SMALL, gpu_choice=(C,))),
            snapshot(), "what is free is kept for eval, which waits longest",
        ),
        (
            (), (EVAL, replace(EVAL, job="b")), snapshot(), "behind 1 other",
        ),
        ((), (EVAL,), snapshot(), "about to go"),
        (
            (), (replace(EVAL, gpus=4),), snapshot(),
            "can never be served: 4 GPUs were asked for, but this machine has 3 GPUs",
        ),
    ],
)  # fmt: skip
def test_why_the_last_waits(
    leases: tuple[Lease, ...], tickets: tuple[Ticket, ...], seen: GpuSnapshot, why: str
) -> None:  # B3
    status = made(leases, tickets, seen)
    assert reason(tickets[-1], status) == why
    found = status_json(status)["waiting"][-1]["why"]
    assert (found["text"] if found else "about to go") == why


@pytest.mark.parametrize(
    ("ticket", "wants"),
    [
        (EVAL, "2 GPUs, 1 CPU slot"),
        (SMALL, "20G on 1 GPU"),
        (replace(SMALL, gpus=2, gpu_choice=(A, C)), "20G on 2 GPUs (0,2)"),
        (replace(EVAL, gpus=1, gpu_choice=(C, "GPU-gone"), cpu_slots=2), "1 GPU (2,?), 2 CPU slots"),
        (SLOT, "1 CPU slot"),
    ],
)
def test_what_is_wanted(ticket: Ticket, wants: str) -> None:  # B3
    shown = text(made((ALL,), (ticket,), snapshot()))
    assert f"  {wants}  " in row_of(shown, ticket.job)


def test_priority_is_said_where_there_is_one() -> None:  # X4
    urgent = replace(EVAL, priority=5)
    assert "\n  priority +5 - held by " in text(made((ALL,), (urgent,), snapshot()))
    assert "priority" not in FULL_TEXT


def test_the_start_is_worked_out_from_estimates() -> None:  # B2, B3
    second = replace(EVAL, job="b" * 12, arrived_s=800.0)
    third = replace(EVAL, job="c" * 12, arrived_s=810.0, expect_s=None)
    fourth = replace(EVAL, job="d" * 12, arrived_s=820.0)
    found = status_json(made((ALL,), (EVAL, second, third, fourth), snapshot()))
    assert [waiting["starts_in"] for waiting in found["waiting"]] == [180.0, 240.0, 300.0, None]
    assert [waiting["why"]["ahead"] for waiting in found["waiting"]] == [0, 1, 2, 3]


def test_thousands_that_wait_are_explained_in_time() -> None:
    many = tuple(
        made_up.ticket(
            f"{i:012x}", arrived_s=500.0 + i / 100, gpus=1 + i % 3, vram_mib=(None, 1024, 30000)[i % 3]
        )
        for i in range(3000)
    )
    status = made((ALL,), many, snapshot())
    assert [status.waits[ticket.job].busy.ahead for ticket in many] == list(range(3000))  # type: ignore[union-attr]


def test_each_is_explained_as_if_it_were_the_only_one_to_be() -> None:  # B3
    """The reasons are shared among those who ask for the same: they must be those that each would get."""
    shapes = [
        {"gpus": 1}, {"gpus": 2, "gpu_choice": (A, B)}, {"gpus": 1, "vram_mib": 9000}, {"cpu_slots": 2},
        {"gpus": 1, "vram_mib": 60000, "cpu_slots": 1}, {"gpus": 1, "gpu_choice": (C,)}, {"cpu_slots": 1},
    ]  # fmt: skip
    asked = [made_up.ticket(f"{i:012x}", arrived_s=600.0 + 10 * i, **shapes[i * 5 % 7]) for i in range(40)]
    leases = (replace(ALL, gpus=(A,)), SERVE, replace(BACKUP, cpu_slots=3))
    seen = snapshot(process(C, 9, 30000))
    status = made(leases, tuple(asked), seen)
    queue = tuple(request_of(ticket) for ticket in asked)
    devices = attribution.devices(seen, leases, {})
    granted = decision.decide(queue, devices, leases, POLICY, NOW_S).grants
    for request in queue:
        if request.job not in granted:
            busy = decision.explain(request, queue, devices, leases, POLICY, NOW_S)
            assert status.waits[request.job].busy == busy
    assert len({wait.busy.reserved_for for wait in status.waits.values() if wait.busy}) > 1


# -- for scripts --------------------------------------------------------------------------------------------


def test_the_contract() -> None:  # B3
    def gpu(index: int, letter: str, **more: object) -> dict[str, object]:
        return {"index": index, "uuid": f"GPU-{letter * 4}", "name": H100, "memory_mib": 81559, **more}

    gone = {"index": None, "uuid": C, "name": None, "memory_mib": None, "used_mib": None, "peak_mib": 0}
    seen = snapshot(process(A, 4213, 77000, IN_TRAIN), process(B, 99, 2048), gpus=GPUS[:2])
    assert status_json(made((TRAIN, LIGHT), (EVAL,), seen, GPUS[:2])) == {
        "state": {"directory": "/run/slicer"},
        "jobs": [
            {
                "job": "3f2a9c01b7de",
                "name": "train",
                "pid": 4211,
                "unit": "slicer-3f2a9c01b7de.scope",
                "held_for": 720.0,
                "expected_remaining": 180.0,
                "command": "python train.py --epochs 90",
                "uid": 0,
                "user": "root",
                "backend": "systemd",
                "manager": "system",
                "cgroup": "/gpu.slice/slicer-3f2a9c01b7de.scope",
                "priority": 0,
                "vram_mib": None,
                "cpu_slots": 1,
                "forced": False,
                "halted": None,
                "gpus": [gpu(0, "a", used_mib=77000, peak_mib=78000), gone],
            },
            {
                "job": "c0ffee112233",
                "name": "tar cJf backup.txz /srv",
                "pid": 88123,
                "unit": None,
                "held_for": 0.3,
                "expected_remaining": None,
                "command": "tar cJf backup.txz /srv",
                "uid": 0,
                "user": "root",
                "backend": "plain",
                "manager": "user",
                "cgroup": None,
                "priority": 0,
                "vram_mib": None,
                "cpu_slots": 0,
                "forced": False,
                "halted": None,
                "gpus": [],
            },
        ],
        "waiting": [
            {
                "job": "77aa00bb11cc",
                "name": "eval",
                "pid": 4300,
                "uid": 0,
                "user": "root",
                "priority": 0,
                "gpus": 2,
                "gpu_choice": [],
                "vram_mib": None,
                "margin_mib": 0,
                "cpu_slots": 1,
                "inside": [],
                "waited": 243.0,
                "expected": 60.0,
                "starts_in": None,  # the process outside slicer gave no estimate
                "reserving": False,
                "why": {
                    "text": "held by train (about 3m left), processes outside slicer use GPU 1",
                    "lacks": "gpu",
                    "holders": ["3f2a9c01b7de"],
                    "ahead": 0,
                    "foreign": ["GPU-bbbb"],
                    "reserved_for": None,
                    "never": None,
                },
                "command": "python eval.py",
            },
        ],
        "gpus": {
            "total": 2,
            "free": [gpu(1, "b")],
            "all": [
                gpu(
                    0, "a", used_mib=77000, reserved_mib=81559, free_mib=0, unexplained_mib=0, idle=False,
                    jobs=["3f2a9c01b7de"], foreign=[],
                ),
                gpu(
                    1, "b", used_mib=2048, reserved_mib=2253, free_mib=79306, unexplained_mib=0, idle=False,
                    jobs=[],
                    foreign=[{"pid": 99, "name": "python", "used_mib": 2048, "peak_mib": 2048, "job": None}],
                ),
            ],
            "why_none": None,
        },
        "cpu_slots": {"total": 4, "free": 3},
        "plain_lock": None,
    }  # fmt: skip


def test_every_field_is_documented() -> None:  # B3
    documented = set(re.findall(r"[a-z_]+", " ".join(re.findall("`[^`]+`", DOCS.read_text()))))

    def names(item: object) -> set[str]:
        if isinstance(item, dict):
            return set(item).union(*map(names, item.values()))
        return set().union(*map(names, item)) if isinstance(item, list) else set()

    stray = snapshot(process(A, 9, 1))
    full = status_json(made((SERVE,), (EVAL,), stray, plain_lock=PlainLock("/l", 1)))
    assert names(full) <= documented


def test_what_only_the_clock_changes_is_no_change() -> None:
    later = replace(FULL, now_s=NOW_S + 100)
    assert status_json(FULL) != status_json(later)
    assert without_clocks(status_json(FULL)) == without_clocks(status_json(later))
    other = replace(FULL, leases=FULL.leases[1:])
    assert without_clocks(status_json(FULL)) != without_clocks(status_json(other))


def test_nothing_ran_yet(cli: Cli) -> None:  # B3
    found = cli.json("status")
    assert found.pop("gpus")["total"] >= 0
    assert found == {
        "version": 1,
        "state": {"directory": None},
        "jobs": [],
        "waiting": [],
        "cpu_slots": {"total": 1, "free": 1},
        "plain_lock": None,
    }
    assert not cli.state.exists()  # looking makes none


def test_jobs_that_run_and_wait(cli: Cli, fake_nvml: FakeNvml) -> None:  # B2, B3
    cli.environ |= fake_nvml.env
    gpu = cli.running("--gpus", "1", "--name", "train", "--expect", "1h")
    heavy = cli.running("-p", "heavy")
    light = cli.running("-p", "light", "--name", "small")
    ticket = cli.waiting("-p", "heavy", "--name", "next")
    found = cli.json("status")
    jobs = {job["job"]: job for job in found["jobs"]}
    assert set(jobs) == {gpu.job, heavy.job, light.job}
    assert [held["index"] for held in jobs[gpu.job]["gpus"]] == [0]
    assert 3500 < jobs[gpu.job]["expected_remaining"] < 3600
    assert (jobs[gpu.job]["name"], jobs[gpu.job]["pid"]) == ("train", gpu.pid)
    assert (jobs[heavy.job]["name"], jobs[heavy.job]["cpu_slots"]) == ("sleep 1000", 1)
    assert jobs[light.job]["gpus"] == []
    assert jobs[light.job]["cpu_slots"] == 0
    (waiting,) = found["waiting"]
    assert (waiting["job"], waiting["cpu_slots"], waiting["starts_in"]) == (ticket.job, 1, None)
    assert waiting["why"]["holders"] == [heavy.job]
    assert (found["gpus"]["total"], [free["index"] for free in found["gpus"]["free"]]) == (2, [1])
    assert found["cpu_slots"] == {"total": 1, "free": 0}
    shown = cli.run("status").stdout
    assert re.search(rf"^{gpu.job}  train  GPU 0       \S+ +{gpu.pid} +\d+s +(59m\d+s|1h)$", shown, re.M), (
        shown
    )
    assert f"\n  no scope: sleep 1000\n{light.job}" in shown
    assert f"\n  held by {heavy.job} - sleep 1000\n" in shown
    assert "\nGPUs: 1 of 2 free " in shown
    assert f"\n      {gpu.job} train " in shown


def test_the_memory_of_jobs_and_of_others(cli: Cli, fake_nvml: FakeNvml) -> None:  # B3, X2
    cli.environ |= fake_nvml.env
    job = cli.running("--vram", "8G", "--name", "serve")
    fake_nvml.add(f"process 0 {job.keeper} 5000 compute", f"process 1 {os.getpid()} 3000 compute")
    first, second = cli.json("status")["gpus"]["all"]
    assert (first["used_mib"], first["reserved_mib"], first["free_mib"]) == (5000, 8192, 81559 - 8192)
    assert (first["jobs"], first["foreign"], first["idle"]) == ([job.job], [], False)
    assert [(one["pid"], one["used_mib"]) for one in second["foreign"]] == [(os.getpid(), 3000)]
    assert (second["reserved_mib"], second["idle"]) == (3300, False)
    fake_nvml.write(TWO_GPUS)  # else the job's end waits for its memory to be given back


def test_a_broken_configuration_is_said_and_stops_nothing(cli: Cli) -> None:
    lease = cli.running("--name", "x")
    config = Path(cli.environ["XDG_CONFIG_HOME"], "slicer", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text("slots = 3\n")
    done = cli.run("status")
    assert str(config) in done.stderr
    assert done.stderr.count("\n") == 1
    assert lease.job in done.stdout
    assert "CPU slots: unknown" in done.stdout


def test_a_driver_that_fails_is_said_and_stops_nothing(cli: Cli, fake_nvml: FakeNvml) -> None:
    cli.environ |= fake_nvml.env
    lease = cli.running("--gpus", "1", "--name", "x")
    fake_nvml.add("error nvmlDeviceGetComputeRunningProcesses 999")
    done = cli.run("status")
    assert done.stderr.startswith("slicer: what is on the GPUs is not known: ")
    assert done.stderr.count("\n") == 1
    assert re.search(rf"^ 0  H100 80GB HBM3 +79.6G +- +- +-\n      {lease.job} x", done.stdout, re.M)


def test_whoever_looks_again_sees_a_driver_and_a_ledger_that_came_back(
    cli: Cli, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**cli.environ, "SLICER_STATE_DIR": str(cli.state)}
    for name, value in fake_nvml.env.items():
        monkeypatch.setenv(name, value)
    states_of = fake_nvml.state.read_text()
    said: list[str] = []
    monkeypatch.setattr("slicer.gpu.open_gpus", lambda: _Gpus(fake_nvml, states_of))
    reader = StatusReader(environ)
    assert reader.read(said.append).directory == ""
    lease = cli.running("-p", "heavy")
    assert [each.job for each in reader.read(said.append).leases] == [lease.job]
    fake_nvml.write("broken")
    assert reader.read(said.append).gpus[0].device is None
    assert len(said) == 1
    fake_nvml.write(states_of)
    assert reader.read(said.append).gpus[0].device is not None
    assert len(said) == 1
    reader.close()
    reader.close()


class _Gpus:
    """GPUs whose driver fails while the state is not what it was."""

    def __init__(self, fake: FakeNvml, right: str) -> None:
        self._fake, self._right = fake, right

    def list(self) -> tuple[Gpu, ...]:
        return GPUS

    def notes(self) -> tuple[str, ...]:
        return ()

    def memory(self, only: object = ()) -> tuple[GpuMemory, ...]:
        from slicer.errors import GpuError

        if self._fake.state.read_text() != self._right:
            raise GpuError("the driver is away")
        return tuple(GpuMemory(gpu.uuid, gpu.memory_mib, 0) for gpu in GPUS)

    def processes(self, only: object = ()) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass


# -- --watch, apart from its terminal (tests/process/test_status_watch.py) ----------------------------------


def test_each_change_is_one_line_for_scripts(cli: Cli) -> None:
    cli.running("--name", "first")
    with cli.popen("status", "--watch", "--json", "--interval", "3600", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [job["name"] for job in json.loads(process.stdout.readline())["jobs"]] == ["first"]
        lease = cli.running("-p", "heavy", "--name", "second")
        names: list[str] = []
        while "second" not in names:
            names = [job["name"] for job in json.loads(process.stdout.readline())["jobs"]]
        cli.run("stop", lease.job)
        while "second" in names:
            names = [job["name"] for job in json.loads(process.stdout.readline())["jobs"]]
        assert names == ["first"]
        process.stdout.close()  # it notices without having to write
        wait_until("it leaves", lambda: process.poll() is not None)


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (("--watch",), {}, "stdout is not a terminal"),
        (("--interval", "1"), {}, "--interval goes with --watch"),
        (("--watch", "--json", "--interval", "0"), {}, "0"),
        (("--watch", "--json", "--interval", "nan"), {}, "expected a number"),  # D6
    ],
)
def test_what_cannot_be_watched_is_refused(
    cli: Cli, arguments: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    done = cli.run("status", *arguments, env=env, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_terminal_that_cannot_be_drawn_on_is_refused(cli: Cli) -> None:
    outer, inner = pty.openpty()
    with cli.popen(
        "status", "--watch", env={"TERM": "dumb"}, stdin=inner, stdout=inner, stderr=subprocess.PIPE
    ) as it:
        _, said = it.communicate(timeout=30)
    os.close(inner)
    os.close(outer)
    assert (it.returncode, b"TERM=dumb" in said) == (2, True)


LONG = made(
    tuple(replace(LIGHT, job=f"{i:012x}", since_s=float(i)) for i in range(30)),
    tuple(replace(EVAL, job=f"{i:012x}") for i in range(100, 140)),
    snapshot(),
)


@pytest.mark.parametrize("height", [200, 60, 40, 24, 12, 5, 1])
def test_what_does_not_fit_the_screen_is_counted(height: int) -> None:
    shown = [line.text for line in fit(sections(LONG), height)]
    assert len(shown) <= height
    if height == 200:
        assert shown == text(LONG).splitlines()
    if height == 24:
        jobs = sum(row.startswith("0000000000") and "GPU" not in row for row in shown)
        waiting = sum(row.startswith("0000000000") and "GPU" in row for row in shown)
        assert f"… {30 - jobs} more jobs" in shown
        assert f"… {40 - waiting} more waiting" in shown
        assert sum(row.startswith(" ") and "H100" in row for row in shown) == 3  # a few lines are not cut


# -- on a terminal ------------------------------------------------------------------------------------------


def on_terminal(cli: Cli, *arguments: str, columns: int = 80) -> str:
    """What a terminal of that width is sent."""
    outer, inner = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns)}
    with cli.popen(*arguments, env=env, stdin=inner, stdout=inner, stderr=subprocess.PIPE) as process:
        os.close(inner)
        sent = b""
        try:
            while data := os.read(outer, 65536):
                sent += data
        except OSError:  # EIO: the other side is closed
            pass
        os.close(outer)
    assert process.returncode == 0
    return sent.decode().replace("\r\n", "\n")


def test_a_terminal_gets_style_and_no_line_too_long(cli: Cli) -> None:
    cli.running("-p", "heavy", "--name", "n" * 60, command=("sh", "-c", f"sleep 1000; echo {'x' * 100}"))
    sent = on_terminal(cli, "status")
    assert "\x1b[1mJOB " in sent  # bold
    plain = re.sub(r"\x1b\[[0-9;]*m", "", sent)
    assert max(map(len, plain.splitlines())) <= 80, plain
    assert "…\n" in plain  # the command is cut, and it shows
    assert "\x1b" not in cli.run("status").stdout


@pytest.mark.parametrize(("locale", "drawn"), [("C.UTF-8", True), ("C", False)])
def test_what_the_locale_lacks_is_not_drawn(cli: Cli, fake_nvml: FakeNvml, locale: str, drawn: bool) -> None:
    cli.environ |= {**fake_nvml.env, "LC_ALL": locale}
    cli.running("-p", "heavy", "--name", "n" * 60)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(cli, "status"))
    assert plain.isascii() is not drawn
    assert ("[··········]" if drawn else "[..........]") in plain
    assert ("n…" if drawn else "n...") in plain
    assert cli.run("status").stdout.isascii()
