"""``slicer install``: says what it does, file by file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from slicer.cli import install_broker
from slicer.errors import SlicerError
from slicer.kernel import SYSROOT
from slicer.wrap import planning
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

SLICE = "usr/local/lib/systemd/system/gpu.slice"


def host(cli: Cli) -> Path:
    """Below it lies what belongs to the machine."""
    return cli.root / "host"


def test_a_dry_run_does_nothing(cli: Cli) -> None:  # K5
    out = cli.run("install", "--dry-run").stdout
    assert f"would install  {host(cli)}/{SLICE} " in out
    assert "would run  systemctl daemon-reload" in out
    assert not os.listdir(cli.root)


def test_install_edit_and_remove(cli: Cli) -> None:  # K5
    path = host(cli) / SLICE
    out = cli.run("install").stdout
    assert f"created  {path} " in out
    assert "not run: systemctl daemon-reload (systemd is not running)" in out
    assert f"unchanged  {path} " in cli.run("install").stdout
    path.write_text(path.read_text() + "# mine\n")
    done = cli.run("install")
    assert f"edited     {path} " in done.stdout
    assert done.stderr == f"slicer: edited by somebody and left alone: {path} (--force overwrites)\n"
    done = cli.run("install", "--remove")
    assert done.stderr == f"slicer: edited by somebody and left alone: {path} (--force removes)\n"
    assert [found for found in cli.root.rglob("*") if found.is_file()] == [path]
    assert f"removed  {path}" in cli.run("install", "--remove", "--force").stdout
    assert not [found for found in cli.root.rglob("*") if found.is_file()]


def test_removal_takes_the_drop_in_too(cli: Cli) -> None:  # K5
    cli.run("install", "--user-delegation")
    (drop_in,) = Path(cli.root).rglob("50-slicer-delegate.conf")
    cli.run("install", "--remove")
    assert not drop_in.exists()


def test_the_broker_comes_and_goes_alone(cli: Cli) -> None:  # L1
    program = cli.root / "slicer-broker"
    program.touch(0o755)
    cli.environ["PATH"] += f":{cli.root}"
    assert "slicer-broker" not in cli.run("install").stdout
    out = cli.run("install", "--broker").stdout
    assert "not run: systemctl enable --now slicer-broker.socket (systemd is not running)" in out
    # Another installation brings it up to date.
    assert "/slicer-broker.service " in cli.run("install").stdout
    cli.run("install", "--closed-shop", "--yes")
    out = cli.run("install", "--broker", "--remove").stdout
    assert "the closed shop stays: users get no GPU now" in out
    assert "not run: systemctl disable --now slicer-broker.socket (systemd is not running)" in out
    assert (host(cli) / SLICE).exists()
    assert "slicer-broker" not in cli.run("install").stdout


def test_a_broker_that_another_user_could_exchange_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # S1
    monkeypatch.delenv(SYSROOT, raising=False)  # inside a machine it is not set
    program = tmp_path / "slicer-broker"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "slicer")])
    monkeypatch.setattr(install_broker, "_HOMES", ("/nowhere/",))
    check = planning.check_way
    monkeypatch.setattr(planning, "check_way", lambda way, uid, path: check(way, os.geteuid(), path))
    for folder in (tmp_path, program):
        mode = folder.stat().st_mode
        folder.chmod(mode | 0o002)
        with pytest.raises(SlicerError, match=f"root must not run it: {folder} is writable by everybody"):
            install_broker.program()
        folder.chmod(mode)


def test_a_broker_in_a_home_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SYSROOT, raising=False)  # inside a machine it is not set
    program = tmp_path / "slicer-broker"
    program.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "slicer")])
    monkeypatch.setattr(install_broker, "_HOMES", (f"{os.path.realpath(tmp_path)}/",))
    monkeypatch.setattr(planning, "check_way", lambda way, uid, path: None)
    with pytest.raises(SlicerError, match="cannot run from a home directory"):
        install_broker.program()


def test_removal_says_what_stays(cli: Cli) -> None:  # W12
    system = host(cli)
    for path in ("etc/slicer", "var/lib/slicer"):
        (system / path).mkdir(parents=True)
    (system / "etc/slicer/config.toml").touch()
    out = cli.run("install", "--remove", code=None).stdout
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("stays")] == [
        ["stays", f"{system}/var/lib/slicer", "history"],
        ["stays", f"{system}/etc/slicer", "configuration;"],
    ]
    assert system.joinpath("etc/slicer").is_dir()


def test_what_cannot_go_together_is_said(cli: Cli) -> None:
    assert cli.run("install", "--user", "--broker", code=2).stderr.count("\n") == 1
    assert cli.run("install", "--user", "--user-delegation", code=125).stderr.count("\n") == 1
