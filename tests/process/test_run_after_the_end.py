"""Once a job's outcome is known, nothing costs its exit code: what fails from then on is only said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.process.harness import Box


def shadowed(box: Box, directory: Path, module: str, text: str) -> dict[str, str]:
    """An environment in which Python finds that text as the module."""
    directory.mkdir()
    (directory / f"{module}.py").write_text(text)
    return {"PYTHONPATH": f"{directory}:{box.env['PYTHONPATH']}"}


# D8
@pytest.mark.parametrize("backend", ["plain", ""])
def test_a_python_without_sqlite_keeps_no_history_and_the_exit_code(
    box: Box, tmp_path: Path, backend: str
) -> None:
    env = shadowed(box, tmp_path / "shadow", "_sqlite3", "raise ImportError('No module named _sqlite3')")
    done = box.run("-p", "heavy", "--", "sh", "-c", "exit 3", env=env, backend=backend)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if "history" in line]
    assert "sqlite3" in line
    assert "internal error" not in line
    box.assert_clean()


# D8
@pytest.mark.parametrize("what", ["outcome", "history"])
def test_a_broken_place_for_the_outcome_costs_no_exit_code(box: Box, what: str) -> None:
    bad = box.root / "bad"
    options: tuple[str, ...] = ()
    script = f": >{bad}; exit 3"  # a file where a directory should be
    if what == "outcome":
        bad.mkdir()
        options = ("--outcome", str(bad / "outcome.json"))
        script = f"rmdir {bad}; {script}"
    elif os.geteuid() == 0:
        bad = box.var_lib / "slicer"
        script = f": >{bad}; exit 3"
    done = box.run("-p", "heavy", *options, "--", "sh", "-c", script, env={"XDG_STATE_HOME": str(bad)})
    assert done.returncode == 3
    assert str(bad) in done.stderr
    box.assert_clean()


# D8: even an error that nobody thought of
def test_a_fault_of_slicers_own_after_the_end_costs_no_exit_code(box: Box, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'slicer.job.gpu_leftovers':\n"
        "            raise RuntimeError('broken on purpose')\n"
        "sys.meta_path.insert(0, Broken())\n"
    )
    env = {"PYTHONPATH": f"{site}:{box.env['PYTHONPATH']}", "SLICER_SIM": "1x8G"}
    done = box.run("--gpus", "1", "--", "sh", "-c", "exit 3", env=env)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("RuntimeError: broken on purpose") == 1, done.stderr
    assert not box.leases()
    assert "ended: exit 3" in done.stderr
