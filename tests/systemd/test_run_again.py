"""``slicer run -d --retry`` in real scopes (U8); on simulated GPUs. The pause is a real one, of 30 s."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Slicer, leases

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

SIM_LEDGER = f"{SYSTEM_LEDGER}/sim-1x24G"
PAUSE_S = 30.0


@pytest.mark.core
def test_a_detached_job_that_failed_runs_again_in_a_scope_of_the_same_name(
    slicer: Slicer, tmp_path: Path
) -> None:  # U8, U19
    env = {"SLICER_SIM": "1"}
    script = f"echo up; if mkdir {tmp_path}/once 2>&-; then kill -SEGV $$; fi; exec sleep 600"
    options = ("--name", "train", "--gpus", "1", "--set", "MemoryMax=1G", "--retry", "any:1")
    job = slicer.run("--detach", *options, "--", "sh", "-c", script, env=env).stdout.strip()
    scope, service = f"slicer-{job}.scope", f"slicer-run-{job}.service"
    until(lambda: "(attempt 2 of 2)" in slicer.command("status", **env).stdout, "it is in its pause")
    assert leases(SIM_LEDGER) == []
    assert systemctl.show(service)["ActiveState"] == "active"
    assert systemctl.show(scope)["ActiveState"] == "inactive"
    lease = until(
        lambda: next((each for each in leases(SIM_LEDGER) if each.keeper), None),
        "it runs again", PAUSE_S + DEADLINE_S,
    )  # fmt: skip
    assert (lease.job, lease.unit) == (job, scope)
    assert systemctl.show(scope)["MemoryMax"] == str(1 << 30)
    log = slicer.command("logs", job, **env).stdout.splitlines()
    assert [line.partition(", at ")[0] for line in log] == [
        "up", "slicer: failed with exit code 139, killed by SIGSEGV (attempt 1 of 2): again in 30s", "up",
    ]  # fmt: skip
    slicer.command("stop", "train", **env)
    shown = json.loads(slicer.command("show", "--json", job, **env).stdout)
    ended = [(each["number"], each["reason"], each["ended_by"]) for each in shown["attempts"]]
    assert ended == [(1, "signal", ""), (2, "stopped", "slicer stop")]
    until(lambda: not leases(SIM_LEDGER), "the simulated ledger is empty")
