"""A wrapped program of a Debian package, from its installation to its removal; and root's own wraps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.process.harness import kill_9, state_of

pytestmark = [pytest.mark.systemd, pytest.mark.core]

NAME = "slicer-test-tool"
ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", "HOME": "/root", "LANG": "C.UTF-8"}
CONFIG = Path("/etc/slicer/conf.d/wrap-test.toml")
ROUTES = '[routes.tool]\nprobe = "size"\nthreshold = "1G"\n[routes.tool.gpu]\n[routes.tool.cpu]\n'
STAND_IN = f"#!{sys.executable} -IS\nimport os, sys\nos.execv(sys.argv[4], sys.argv[6:])\n"
ODD = "odd [name]*"  # a glob to dpkg-query, if nobody looks


def run(*command: str | Path, code: int | None = 0, **more: str) -> str:
    done = subprocess.run(command, env={**ENVIRON, **more}, capture_output=True, text=True, check=False)
    assert code is None or done.returncode == code, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


def deb(root: Path, version: str, *, folder: str = "/usr/bin") -> Path:
    """A package with two programs that say their version."""
    tree = root / version
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        f"Package: {NAME}\nVersion: {version}\nArchitecture: all\n"
        "Maintainer: nobody <nobody@example.org>\nDescription: a test\n"
    )
    programs = tree / folder.strip("/")
    programs.mkdir(parents=True)
    for name in ("slicer-test-tool", ODD):
        (programs / name).write_text(f"#!/bin/sh\necho {version}\n")
        (programs / name).chmod(0o755)
    built = root / f"{version}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", tree, built)
    return built


@pytest.fixture
def slicer(tmp_path: Path) -> Iterator[Path]:
    """A stand-in that ends as `slicer route` does, where root alone can write."""
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test installs packages: only for test machines")
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CONFIG.write_text(ROUTES)
    stand_in = tmp_path / "slicer"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    try:
        yield stand_in
    finally:
        run("dpkg", "--purge", NAME, code=None)
        for line in diversions():
            run("dpkg-divert", "--no-rename", "--remove", line.split()[3])
        for left in Path("/usr/bin").glob("slicer-test-tool*"):
            left.unlink()
        CONFIG.unlink()
        shutil.rmtree("/var/lib/slicer/wraps", ignore_errors=True)


def wrap(slicer: Path, *arguments: str | Path, code: int = 0, **more: str) -> str:
    options = ("--route", "tool", "--slicer", slicer) if arguments[0] == "install" else ()
    return run("slicer", "wrap", *arguments, *options, code=code, **more)


def diversions() -> list[str]:
    return [line for line in run("dpkg-divert", "--list").splitlines() if "slicer" in line or "odd" in line]


@pytest.mark.parametrize(("shipped", "name"), [("/usr/bin", ODD), ("/bin", "slicer-test-tool")])
def test_a_packages_program_stays_wrapped_through_upgrades(
    slicer: Path, tmp_path: Path, shipped: str, name: str
) -> None:  # C5
    program, real = Path("/usr/bin", name), Path("/usr/bin", f"{name}-real")
    first, second = (deb(tmp_path, version, folder=shipped) for version in ("1", "2"))
    run("dpkg", "--install", first)
    before = program.lstat()

    assert "dpkg puts later versions" in wrap(slicer, "install", program)
    assert run(program) == "1\n"
    assert real.lstat().st_ino == before.st_ino
    (found,) = json.loads(wrap(slicer, "list", "--json"))["wraps"]
    assert (found["state"], found["package"], found["diverted"]) == ("ok", NAME, f"{shipped}/{name}")
    assert len(diversions()) == 1

    run("dpkg", "--install", second)
    assert run(program) == "2\n"
    wrap(slicer, "check")
    assert "already" in wrap(slicer, "install", program)

    run("dpkg", "--remove", NAME)
    assert "its program" in run(program, code=127)
    assert "program-gone" in wrap(slicer, "check", code=1)
    run("dpkg", "--install", first)  # it comes back to its place behind the shim
    assert run(program) == "1\n"
    wrap(slicer, "check")

    wrap(slicer, "remove", program)
    assert (run(program), diversions(), real.exists()) == ("1\n", [], False)
    run("dpkg", "--install", second)
    assert (run(program), real.exists()) == ("2\n", False)
    run("dpkg", "--verify", NAME)


def test_a_service_that_calls_the_program_has_a_job_in_a_scope(slicer: Path) -> None:  # C5
    """The whole way, with slicer itself; the service knows nothing of it."""
    program, tells = Path("/usr/local/bin/wrap-test-tool"), "cat /proc/self/cgroup; echo $0 $*; exit 7"
    program.write_text(f"#!/bin/sh\n{tells}\n")
    program.chmod(0o755)
    try:
        run("slicer", "wrap", "install", program, "--route", "tool")
        service = ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--setenv=SLICER_SIM=1x8G")
        said = run(*service, "wrap-test-tool", "/etc/hostname", code=7)
        assert re.search(r"/gpu.slice/slicer-[0-9a-f]{12}\.scope\n", said)
        assert f"{program}-real /etc/hostname\n" in said
        # Others may be there, too: what nobody saw end is added once somebody looks.
        outcomes = json.loads(run("slicer", "history", "-n", "9", "--json"))["outcomes"]
        (row,) = (each for each in outcomes if each["command"][0] == str(program))
        assert (row["exit_code"], row["command"]) == (7, [str(program), "/etc/hostname"])
    finally:
        run("slicer", "wrap", "remove", program)
        program.unlink()


def test_the_shim_of_a_package_that_is_gone_can_be_taken_away(slicer: Path, tmp_path: Path) -> None:  # C5
    program = Path("/usr/bin/slicer-test-tool")
    run("dpkg", "--install", deb(tmp_path, "1"))
    wrap(slicer, "install", program)
    run("dpkg", "--purge", NAME)
    assert "was already missing" in wrap(slicer, "remove", program)
    assert (program.exists(), diversions()) == (False, [])


@pytest.mark.parametrize("point", ["wrap-link", "wrap-divert", "wrap-draft"])
def test_an_upgrade_after_a_crash_is_not_lost(slicer: Path, tmp_path: Path, point: str) -> None:  # C5
    """Killed before the shim was in its place, and then upgraded: the newest program is wrapped."""
    program = Path("/usr/bin/slicer-test-tool")
    run("dpkg", "--install", deb(tmp_path, "1"))
    state = tmp_path / "state"
    faults = {"SLICER_STATE_DIR": str(state), "SLICER_FAULTS": f"{state}:{point}"}
    command = ("slicer", "wrap", "install", program, "--route", "tool", "--slicer", slicer)
    with subprocess.Popen(command, env={**ENVIRON, **faults}) as process:
        until(lambda: state_of(process.pid) == "T", f"it comes to {point}")
        kill_9(process.pid)
    assert run(program) == "1\n"
    run("dpkg", "--install", deb(tmp_path, "2"))
    wrap(slicer, "check", "--fix")
    assert run(program) == "2\n"
    wrap(slicer, "remove", program)
    assert (run(program), diversions()) == ("2\n", [])


@pytest.mark.parametrize("point", ["wrap-record", "wrap-restore", "wrap-undivert"])
def test_a_crash_while_it_is_unwrapped(slicer: Path, tmp_path: Path, point: str) -> None:  # C5
    program = Path("/usr/bin/slicer-test-tool")
    run("dpkg", "--install", deb(tmp_path, "1"))
    wrap(slicer, "install", program)
    state = tmp_path / "state"
    faults = {"SLICER_STATE_DIR": str(state), "SLICER_FAULTS": f"{state}:{point}"}
    with subprocess.Popen(("slicer", "wrap", "remove", program), env={**ENVIRON, **faults}) as process:
        until(lambda: state_of(process.pid) == "T", f"it comes to {point}")
        kill_9(process.pid)
    run("dpkg", "--install", deb(tmp_path, "2"))
    run(program)  # whichever of the two: it runs
    wrap(slicer, "check", "--fix")
    assert (run(program), diversions()) == ("2\n", [])


def test_a_diversion_that_somebody_took_back_is_set_again(slicer: Path, tmp_path: Path) -> None:  # C5
    program = Path("/usr/bin/slicer-test-tool")
    run("dpkg", "--install", deb(tmp_path, "1"))
    wrap(slicer, "install", program)
    run("dpkg-divert", "--local", "--no-rename", "--remove", program)
    assert "diversion-gone" in wrap(slicer, "check", code=1)
    assert "wrap-changed" in run("slicer", "doctor", code=None)
    wrap(slicer, "check", "--fix")
    assert len(diversions()) == 1
    wrap(slicer, "remove", program)


def test_what_somebody_else_has_diverted_is_refused(slicer: Path, tmp_path: Path) -> None:  # C5
    program = Path("/usr/bin/slicer-test-tool")
    run("dpkg", "--install", deb(tmp_path, "1"))
    run("dpkg-divert", "--local", "--no-rename", "--divert", f"{program}.orig", "--add", program)
    try:
        assert f"is already diverted to {program}.orig" in wrap(slicer, "install", program, code=2)
    finally:
        run("dpkg-divert", "--local", "--no-rename", "--remove", program)
    assert not Path(f"{program}-real").exists()


def test_the_systems_own_are_refused(slicer: Path) -> None:  # C5
    """sh, a setuid program, an alternative, what is no file; and for root, what is a user's."""
    for path, said in (
        ("/bin/sh", "is the shell of shims"), ("/usr/bin/dash", "is the shell of shims"),
        ("/usr/bin/su", "is setuid"), ("/usr/bin/awk", "belongs to update-alternatives"),
        ("/usr/bin", "is a directory"), ("/dev/null", "not a file: a device"),
    ):  # fmt: skip
        assert said in wrap(slicer, "install", path, code=2)
    home = Path("/home/alice/wrapped")
    home.write_text("#!/bin/sh\n")
    home.chmod(0o755)
    shutil.chown(home, "alice")
    assert "belongs to uid" in wrap(slicer, "install", home, code=2)
    as_alice = ("runuser", "-u", "alice", "--", "slicer", "wrap", "install", "--route", "tool")
    assert "you may not write to /usr/bin" in run(*as_alice, "/usr/bin/true", code=125)
    assert "wrapped /home/alice/wrapped" in run(*as_alice, home)
    home.unlink()
    home.with_name("wrapped-real").unlink()
    shutil.rmtree("/home/alice/.local/state/slicer/wraps")


def test_a_read_only_place_is_left_alone(slicer: Path, tmp_path: Path) -> None:  # C5
    run("mount", "-t", "tmpfs", "none", tmp_path)
    try:
        slicer = Path("/var/tmp/slicer-stand-in")
        slicer.write_text(STAND_IN)
        slicer.chmod(0o755)
        program = tmp_path / "tool"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        run("mount", "-o", "remount,ro", tmp_path)
        assert "its file system is read-only" in wrap(slicer, "install", program, code=125)
        assert json.loads(wrap(slicer, "list", "--json"))["wraps"] == []
    finally:
        run("umount", tmp_path)
        slicer.unlink()
