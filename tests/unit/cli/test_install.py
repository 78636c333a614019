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


@pytest.mark.parametrize(
    ("options", "library"),
    [(("--web",), "aiohttp"), (("--metrics",), "prometheus-client"), (("--serve", "o"), "aiohttp")],
)
def test_what_lacks_its_library_is_not_installed(
    cli: Cli, options: tuple[str, ...], library: str
) -> None:  # U13, B6
    absent = cli.root / "absent"
    absent.mkdir()
    (absent / "sitecustomize.py").write_text(
        "import sys\nfrom importlib import metadata\nsys.modules['prometheus_client'] = None\n"
        "def version(name):\n    raise metadata.PackageNotFoundError(name)\nmetadata.version = version\n"
    )
    cli.environ["PYTHONPATH"] += f":{absent}"
    said = cli.run("install", *options, code=125).stderr
    assert f"pip install {library} in slicer's environment" in said
