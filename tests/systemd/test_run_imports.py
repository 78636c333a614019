"""The hot path of ``slicer run`` stays short on a real systemd, too (no timing: a list of modules)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import pytest

from tests.process.hot_path import SYSTEMD, imported, surplus

pytestmark = [pytest.mark.systemd, pytest.mark.core]


class Here:
    """This machine as it is."""

    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = os.environ


# K8
@pytest.mark.parametrize("options", [(), ("--profile", "heavy"), ("-q", "--name", "x", "--timeout", "1h")])
def test_a_job_in_a_scope_imports_what_it_needs(options: tuple[str, ...]) -> None:
    # Writes what killed jobs of other tests have left for the history; else this job does.
    subprocess.run(["slicer", "history", "-n", "1"], check=True, capture_output=True)
    found = imported(Here(), "--backend", "systemd", *options, "--", "true")
    assert surplus(found, SYSTEMD) == set()
    assert {"slicer.job.supervisor", "slicer.backend.pystemd_bus", "pystemd.dbuslib"} <= found


def test_the_installed_program_does_without_site() -> None:  # K8
    """As the launcher starts it: what others leave in site-packages costs a run nothing."""
    launched = ("/opt/slicer/bin/slicer-python", "slicer", "/usr/local/bin/slicer")
    command = ["/opt/slicer/bin/python", "-IS", "-X", "importtime", *launched, "run", "-q", "--", "true"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}
    assert {"slicer.job.supervisor", "slicer.job.command"} <= found
    assert "site" not in found
