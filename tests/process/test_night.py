"""One ugly night by script: what goes wrong while nobody looks, and what is known of it in the morning."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slicer.queue.state import folding
from slicer.queue.state.journal import Journal
from tests.fake_nvml import FakeNvml
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box
from tests.process.test_run_detach import slicer

pytest_plugins = ["tests.fake_nvml"]

PROFILE = """\
[profiles.night]
inherits = "gpu"
preemptible = true
min_run = "0s"
grace = "2s"
"""
TYPOS = 12
# The second attempt ends by itself.
TRAIN = """\
echo "train $$" >>"$LOG"
[ "$(grep -c ^train "$LOG")" -lt 2 ] || exit 0
trap : TERM
while :; do sleep 0.1; done
"""
# Its first attempt fails because its GPU falls ill.
SICK = """\
echo sick >>"$LOG"
[ "$(grep -c ^sick "$LOG")" -lt 2 ] || exit 0
gpu=0
case $CUDA_VISIBLE_DEVICES in GPU-1*) gpu=1 ;; esac
echo "recovery $gpu 1" >>"$FAKE_NVML_STATE"
exit 3
"""
LINES = (
    *(f"python3 sweeep.py --lr=0.{number}" for number in range(TYPOS)),
    *(f"[name=good{number}] echo good{number} >>$LOG" for number in range(4)),
    "[name=sick] exec sh sick.sh",
    "[name=wide gpus=2] echo wide >>$LOG",
    "[name=train profile=night] exec sh train.sh",
)


class Night:
    def __init__(self, box: Box) -> None:
        self.box = box
        (box.root / "config.toml").write_text(PROFILE)
        box.env["SLICER_CONFIG"] = str(box.root / "config.toml")
        for name, script in (("train.sh", TRAIN), ("sick.sh", SICK)):
            (box.root / name).write_text(script)
        (box.root / "jobs.txt").write_text("".join(f"{line}\n" for line in LINES))
        self._queues = 0

    def slicer(self, *line: str) -> str:
        return slicer(self.box, *line).stdout

    def queue(self) -> subprocess.Popen[bytes]:
        self._queues += 1
        with self._said().open("wb") as said:
            process = subprocess.Popen(
                [*SLICER, "queue", "jobs.txt", "--json", "--backend", "plain", "--log-dir", "logs"],
                env=self.box.env, cwd=self.box.root, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip
        self.box.adopt(process)
        return process

    def _said(self) -> Path:
        return self.box.root / f"queue{self._queues}"

    def events(self, kind: str, name: str | None = None) -> list[dict[str, Any]]:
        """What the last queue has told of a kind, and of one line."""
        whole = self._said().read_text().rpartition("\n")[0].splitlines()
        told = [json.loads(line) for line in whole if line.startswith("{")]
        found = [each for each in told if each["event"] == kind]
        return [each for each in found if name in (None, (each["job"] or {}).get("name"))]

    def until_told(self, kind: str, name: str | None = None) -> dict[str, Any]:
        found = until(lambda: self.events(kind, name), f"{kind} of {name}: {self._said().read_text()}", 60.0)
        return found[-1]


@pytest.mark.slow
def test_in_the_morning_every_good_line_has_run(box: Box, gpus: FakeNvml) -> None:  # U8, U19, U15, P4
    night = Night(box)
    queue = night.queue()
    held = night.until_told("held-back")
    assert held["failures"] >= 5
    assert "sweeep.py" in held["last_line"]
    assert night.until_told("retry", "sick")["job"]["reason"] == "gpu"
    night.until_told("started", "train")

    # Somebody needs the GPU that is left for a moment; the queue is killed before the job has ended.
    eval_ = box.start("--gpus", "1", "--name", "eval", "--", "sh", "-c", "echo eval >>$LOG")
    until(lambda: any(each.gives_way_to == "eval" for each in box.leases()), "train gives way to eval")
    assert "gives way to eval in" in night.slicer("status")
    queue.kill()
    queue.wait()
    assert eval_.wait(LONGEST_S) == 0

    queue = night.queue()
    assert night.until_told("requeued", "train")["why"] == "it gave way to another job"
    for name in ("train", "sick"):
        night.until_told("finished", name)
    assert not night.events("started", "wide")
    assert "out of service" in night.slicer("status")
    for line in gpus.state.read_text().splitlines():
        if line.startswith("recovery"):
            gpus.remove(line)  # somebody has reset it
    assert queue.wait(LONGEST_S) == 2  # the typo's

    # In the morning.
    ran = Counter(line.partition(" ")[0] for line in box.lines())
    once = {"wide": 1, "eval": 1, **{f"good{number}": 1 for number in range(4)}}
    assert ran == {**once, "sick": 2, "train": 2}
    said = {(each.name.partition("#")[0], each.ended_by, each.exit_code) for each in box.outcomes()}
    assert ("train", "gave way", 75) in said
    assert ("sick", "gpu", 3) in said
    typos = [each for each in box.outcomes() if each.name.startswith("jobs.txt#")]
    assert 5 <= len(typos) <= 7  # one on each GPU may have begun before the end of the fifth was known
    records = Journal.peek(str(box.root / "logs")) or ()
    lines = Counter(state.status for state in folding.fold(records).values())
    assert lines == {"ok": 7, "failed": len(typos), "pending": TYPOS - len(typos)}
    assert "wrote report.html" in night.slicer("report", "--since", "yesterday")
    page = (box.root / "report.html").read_text()
    for words in ("train", "sick", "eval", "wide", "1 gave way to others", "its GPU failed", "exit 2"):
        assert words in page, words
    box.assert_clean()
