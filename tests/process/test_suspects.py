"""A GPU where jobs fail at once, while the same command ends well elsewhere, is placed last."""

from __future__ import annotations

import json
from typing import Any

from tests.process.harness import Box
from tests.process.test_run_detach import slicer

TRAIN = ("sh", "-c", 'echo "on $CUDA_VISIBLE_DEVICES" >>"$LOG"; exit "$CODE"')


def status(box: Box) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(slicer(box, "status", "--json").stdout)["gpus"]["all"]
    return found


def test_the_next_job_goes_elsewhere(box: Box) -> None:  # U8
    box.env["SLICER_SIM"] = "2x24G"

    def train(code: int, *options: str) -> str:
        done = box.run("-q", "--gpus", "1", *options, "--", *TRAIN, env={"CODE": str(code)})
        assert done.returncode == code
        return box.lines()[-1]

    sick = train(1)
    for _ in range(2):
        assert train(1) == sick, "it is free, and the first"
    assert not any(each["placed_last"] for each in status(box)), "the command may be broken"
    train(0, "--gpu", "1")
    assert [each["placed_last"] for each in status(box)] == [True, False]
    assert "placed last" in slicer(box, "status").stdout
    assert train(0) != sick
    assert train(0, "--gpu", "0") == sick, "it is still given out"
    assert not any(each["placed_last"] for each in status(box)), "a job has ended well there"
    assert train(0) == sick
