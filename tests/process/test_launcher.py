"""``slicer`` where pip installs it: a program in C that starts Python with the flags that pip would drop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slicer.version import __version__
from tests.built import Built
from tests.machines.host import REPO

# In the place of slicer-python: tells how it was started.
STUB = """
import json, os, sys
flags = [sys.flags.isolated, sys.flags.no_site]
environ = [os.fsdecode(pair) for pair in open("/proc/self/environ", "rb").read().split(b"\\0") if pair]
json.dump({"argv": sys.argv, "flags": flags, "environ": environ, "executable": sys.executable}, sys.stdout)
"""
# What a shell cannot name and so would drop, and what Python would follow.
ENVIRON = {"a-b": "1", "BASH_FUNC_f%%": "() { :; }", "PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"}


@pytest.fixture(scope="module")
def programs(built: Built) -> Path:
    """A directory with what a wheel has for bin/, but for the first lines that an installer writes."""
    return built("programs", build_programs) / "bin"


def build_programs(root: Path) -> None:
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_scripts"]
    command += ["--executable", "python", "--build-dir", root / "bin"]
    subprocess.run(command, cwd=REPO, check=True, capture_output=True)


@pytest.fixture
def installed(programs: Path, tmp_path: Path) -> Path:
    """The same, with the stub."""
    shutil.copytree(programs, tmp_path / "bin", dirs_exist_ok=True)
    write_script(tmp_path / "bin", f"#!{sys.executable}\n")
    return tmp_path / "bin"


def write_script(bin: Path, head: str, body: str = STUB) -> None:
    (bin / "slicer-python").write_text(head + body)
    (bin / "slicer-python").chmod(0o755)


def start(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_the_wheels_script_is_one_whose_first_line_pip_writes(programs: Path) -> None:
    assert (programs / "slicer-python").read_text() == (REPO / "bin/slicer-python").read_text()
    assert (programs / "slicer").read_bytes()[:4] == b"\x7fELF"


def test_python_gets_its_flags_and_the_job_its_environment(installed: Path) -> None:  # K8
    done = start(installed / "slicer", "run", "--", "a  b", **ENVIRON)
    told = json.loads(done.stdout)
    program = str(installed / "slicer")
    assert told["argv"] == [str(installed / "slicer-python"), "slicer", program, "run", "--", "a  b"]
    assert told["flags"] == [1, 1]
    assert sorted(told["environ"]) == sorted(f"{name}={value}" for name, value in ENVIRON.items())
    assert told["executable"] == sys.executable  # the virtual environment's


def test_a_link_is_told_as_it_was_called(installed: Path, tmp_path: Path) -> None:  # C5
    (tmp_path / "first").symlink_to(installed / "slicer-broker")
    (tmp_path / "second").symlink_to("first")
    told = json.loads(start(tmp_path / "second").stdout)
    assert told["argv"][1:] == ["slicer-broker", str(tmp_path / "second")]


@pytest.mark.parametrize(
    "head",
    [
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",  # of an installer, for a path with a space
        "#!/usr/bin/env {python}\n",
        "#! {python}\n",
    ],
)
def test_where_the_interpreter_is_not_known_the_script_runs_as_it_is(installed: Path, head: str) -> None:
    write_script(installed, head.format(python=sys.executable))
    told = json.loads(start(installed / "slicer", "run", PATH="/usr/bin:/bin").stdout)
    assert told["argv"][1:] == ["slicer", str(installed / "slicer"), "run"]
    assert told["flags"] == [0, 0]


def test_an_interpreters_path_may_have_a_space(installed: Path, tmp_path: Path) -> None:
    python = tmp_path / "my python"
    python.symlink_to(os.path.realpath(sys.executable))
    write_script(installed, f"#!{python}\n")
    assert json.loads(start(installed / "slicer").stdout)["executable"] == str(python)


def test_without_its_script_it_says_so(installed: Path, tmp_path: Path) -> None:
    alone = tmp_path / "slicer"
    shutil.copy(installed / "slicer", alone)
    done = start(alone, "run")
    assert done.returncode == 127
    assert done.stderr == f"error: slicer: {tmp_path}/slicer-python: No such file or directory\n"


def test_it_runs_from_a_checkout_and_nobody_elses_modules(programs: Path, tmp_path: Path) -> None:
    """As `pip install -e` leaves it: the modules are not where a wheel has them."""
    for name in ("slicer", "click", "site"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of somebody else')")
    bin = tmp_path / "bin"
    shutil.copytree(programs, bin)
    body = (REPO / "bin/slicer-python").read_text().partition("\n")[2]
    write_script(bin, f"#!{sys.executable}\n", body)
    done = subprocess.run(
        [bin / "slicer", "--version"], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"slicer {__version__}\n", "")
