"""Limits of a queue's jobs really act, and what they do is told apart from CUDA's "out of memory"."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import DEADLINE_S
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer, configured
from tests.systemd.helpers.queues import Queues

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.enforced, pytest.mark.with_ci]

PROFILES = """\
[profiles.small]
slice = "cpu"
memory_max = "100M"
memory_swap_max = "0"

[profiles.small-gpu]
inherits = "gpu"
memory_max = "100M"
memory_swap_max = "0"
"""


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    return configured(tmp_path, PROFILES)


@pytest.mark.core
def test_out_of_main_memory_is_no_reason_to_run_a_job_again(
    slicer: Slicer, config: dict[str, str]
) -> None:  # E9, X3
    queues = Queues(slicer)
    hungry = "slicer simjob --host-memory 300M --hold 0"
    # Whatever it says of CUDA: it was the kernel that ended it.
    oom = "echo 'torch.cuda.OutOfMemoryError: CUDA out of memory.'"
    queues.write(
        f"[profile=small retries=2] {hungry}",
        f"[profile=small-gpu vram=2G retries=2] {oom}; {hungry}",
        "[vram=2G] echo goes on",
    )
    queue = queues.start("--sim", "1", env=config)
    codes = {137, 143}  # the shell around it gets SIGTERM from systemd, or is faster
    assert queue.end(2 * DEADLINE_S).code in codes
    for no in (1, 2):
        job = queue.told("finished", no)["job"]
        assert (job["status"], job["reason"], job["attempt"]) == ("failed", "oom-kill", 1)
        assert job["exit_code"] in codes
    assert queue.told("finished", 3)["job"]["status"] == "ok"
    assert not queue.events("retry")
    outcomes = queues.outcomes()
    assert [outcome.reason for outcome in outcomes].count("oom-kill") == 2
    assert all(outcome.usage.oom_kills for outcome in outcomes if outcome.reason == "oom-kill")


def test_a_jobs_peak_of_main_memory_is_remembered(slicer: Slicer) -> None:  # X3
    queues = Queues(slicer)
    queues.write("[vram=2G] slicer simjob --vram 1 --host-memory 200M --hold 0")
    assert queues.run("--sim", "1", deadline_s=2 * DEADLINE_S).code == 0
    (ended,) = queues.journal("ended")
    assert 200 << 20 < ended["memory_peak_bytes"] < 400 << 20
    assert not systemctl.scopes()
