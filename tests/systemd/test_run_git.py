"""Which code ran, in the journal. tests/process has the rest, with a real git: the machine has none."""

from __future__ import annotations

import pytest

from tests.patience import until
from tests.process.test_run_git import has_answered
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

COMMIT = "5a3c9f01" * 5
GIT = f"""\
#!/bin/sh
case "$*" in
    *rev-parse*) echo {COMMIT}; echo main ;;
    *diff-index*) echo +x ;;
esac
"""


def test_the_journal_has_the_commit(slicer: Slicer) -> None:  # U22
    tree = slicer.directory
    (tree / ".git").mkdir()
    (tree / "git").write_text(GIT)
    (tree / "git").chmod(0o755)
    gate = slicer.gate()
    path = f"{tree}:/usr/local/bin:/usr/bin:/bin"
    job = slicer.start("--", "sh", "-c", f": <{gate}", env={"PATH": path})
    until(lambda: has_answered(job.pid), "git has answered")
    gate.open()
    assert job.end().code == 0
    (entry,) = systemctl.journal("-t", "slicer", f"SLICER_GIT_COMMIT={COMMIT}")
    assert entry["SLICER_EVENT"] == "finished"
    assert (entry["SLICER_GIT_BRANCH"], entry["SLICER_GIT_DIRTY"]) == ("main", "1")
    assert len(entry["SLICER_GIT_DIFF"]) == 64
