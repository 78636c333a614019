"""What a script reads of ``slicer status --json``."""

from __future__ import annotations

import re
from pathlib import Path

from slicer.cli.status_json import status_json, without_clocks
from slicer.ledger.status import PlainLockState
from slicer.model import GpuLoad
from slicer.record import replace
from tests.unit.cli.made_up_status import (
    EVAL,
    FULL,
    GPUS,
    H100,
    IN_TRAIN,
    LIGHT,
    NOW_S,
    SERVE,
    TRAIN,
    A,
    B,
    C,
    made,
    process,
    snapshot,
)

DOCS = Path(__file__).parents[3] / "docs" / "json.md"

QUIET = {
    "priority": 0, "vram_mib": None, "estimate": None, "forced": False, "begun": True, "halted": None,
    "halted_for": None, "idle_timeout": None, "idle_end": None, "idle_for": None, "sharing": None,
    "preemptible": False, "gives_way_to": None, "gives_way_in": None,
}  # fmt: skip


def test_the_contract() -> None:  # B3
    def gpu(index: int, letter: str, **more: object) -> dict[str, object]:
        return {"index": index, "uuid": f"GPU-{letter * 4}", "name": H100, "memory_mib": 81559, **more}

    gone = {"index": None, "uuid": C, "name": None, "memory_mib": None, "used_mib": None, "peak_mib": 0}
    seen = snapshot(process(A, 4213, 77000, IN_TRAIN), process(B, 99, 2048), gpus=GPUS[:2])
    load = {A: GpuLoad(93, 64, 412, 700)}
    assert status_json(made((TRAIN, LIGHT), (EVAL,), seen, GPUS[:2], load=load)) == {
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
                **QUIET,
                "cpu_slots": 1,
                "slots": {"cpu": 1},
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
                **QUIET,
                "cpu_slots": 0,
                "slots": {},
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
                "slots": {"cpu": 1},
                "inside": [],
                "waited": 243.0,
                "expected": 60.0,
                "estimate": None,
                "starts_in": None,  # the process outside slicer gave no estimate
                "reserving": False,
                "why": {
                    "text": "held by train (about 3m left), processes outside slicer use GPU 1",
                    "lacks": "gpu",
                    "slot": None,
                    "holders": ["3f2a9c01b7de"],
                    "ahead": 0,
                    "foreign": ["GPU-bbbb"],
                    "reserved_for": None,
                    "never": None,
                    "policy": None,
                },
                "command": "python eval.py",
            },
        ],
        "later": [],
        "queues": [],
        "servers": [],
        "gpus": {
            "total": 2,
            "free": [gpu(1, "b")],
            "all": [
                gpu(
                    0, "a", used_mib=77000, reserved_mib=81559, free_mib=0, unexplained_mib=0, idle=False,
                    out_of_service=None, placed_last=False,
                    utilisation=93, temperature_c=64, power_w=412, power_limit_w=700,
                    jobs=["3f2a9c01b7de"], foreign=[],
                ),
                gpu(
                    1, "b", used_mib=2048, reserved_mib=2253, free_mib=79306, unexplained_mib=0, idle=False,
                    out_of_service=None, placed_last=False,
                    utilisation=None, temperature_c=None, power_w=None, power_limit_w=None, jobs=[],
                    foreign=[
                        {
                            "pid": 99, "name": "python", "used_mib": 2048, "peak_mib": 2048, "job": None,
                            "user": None,
                        }
                    ],
                ),
            ],
            "why_none": None,
        },
        "cpu_slots": {"total": 4, "free": 3},
        "slots": {"cpu": {"total": 4, "free": 3, "held": 1}},
        "plain_lock": None,
        "reservations": None,
        "users": None,
        "groups": None,
    }  # fmt: skip


def test_every_field_is_documented() -> None:  # B3
    documented = set(re.findall(r"[a-z_]+", " ".join(re.findall("`[^`]+`", DOCS.read_text()))))

    def names(item: object) -> set[str]:
        if isinstance(item, dict):
            return set(item).union(*map(names, item.values()))
        return set().union(*map(names, item)) if isinstance(item, list) else set()

    stray = snapshot(process(A, 9, 1))
    full = status_json(made((SERVE,), (EVAL,), stray, plain_lock=PlainLockState("/l", 1)))
    assert names(full) <= documented


def test_what_only_the_clock_changes_is_no_change() -> None:
    later = replace(FULL, now_s=NOW_S + 100)
    assert status_json(FULL) != status_json(later)
    assert without_clocks(status_json(FULL)) == without_clocks(status_json(later))
    other = replace(FULL, leases=FULL.leases[1:])
    assert without_clocks(status_json(FULL)) != without_clocks(status_json(other))
