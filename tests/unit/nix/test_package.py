"""The package and the flake: what they are made of, and what their scripts do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slicer.backend.install_units import plan
from slicer.kernel import SYSROOT
from slicer.version import __version__
from tests.machines.host import REPO
from tests.patience import LONGEST_S
from tests.process.test_nix_build import SITE, SITE_OF_NIX, hook, named
from tests.systemd.test_nixos_script import CONFIGURATION
from tests.unit.nix.evaluation import NIX, evaluate
from tests.unit.nix.test_module import made
from tests.unit.nix.toml import written

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())
SYSTEMS = ["x86_64-linux", "aarch64-linux"]


def names(requirements: list[str]) -> list[str]:
    return [requirement.partition(">")[0] for requirement in requirements]


EXTRA = PROJECT["project"]["optional-dependencies"]
DEPENDENCIES = names([*PROJECT["project"]["dependencies"], *EXTRA["web"], *EXTRA["pystemd"]])
BUILD = names(PROJECT["build-system"]["requires"])
# Without what only the launcher executes, which Nix does without.
SCRIPTS = ["bin/slicer", "bin/slicer-broker"]


@pytest.fixture(scope="module")
def package() -> dict[str, Any]:
    found: dict[str, Any] = evaluate("package.nix", given=[*DEPENDENCIES, *BUILD])
    return found


def shell(script: str, directory: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script of a derivation as stdenv does: it ends at the first thing that fails."""
    env = {"HOME": "/homeless-shelter", "PATH": f"{directory}/bin:{os.environ['PATH']}", **environ}
    argv = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(
        argv, env=env, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """$out as after the installation of the wheel: the modules and the script. `python` is the build's."""
    site = tmp_path / "lib/python/site-packages"
    site.mkdir(parents=True)
    (site / "slicer").symlink_to(REPO / "src/slicer")
    (tmp_path / "bin").mkdir()
    for script in SCRIPTS:
        shutil.copy(REPO / script, tmp_path / "bin")
    (tmp_path / "bin/python").symlink_to(sys.executable)
    return tmp_path


def test_the_package_is_what_pyproject_says(package: dict[str, Any]) -> None:  # K5
    assert (package["pname"], package["version"]) == (PROJECT["project"]["name"], __version__)
    assert sorted(package["dependencies"]) == sorted(DEPENDENCIES)
    assert package["build-system"] == BUILD
    assert f"{package['meta']['license']['spdxId']} License" in " ".join(PROJECT["project"]["classifiers"])
    assert f"bin/{package['meta']['mainProgram']}" in SCRIPTS
    assert set(SCRIPTS) < set(PROJECT["tool"]["setuptools"]["script-files"])
    for path in package["src"]:
        assert (REPO / path).exists(), path
    needed = {"bin", "src", "units", "completions", "man", "pyproject.toml", "setup.py"}
    assert needed | {PROJECT["project"]["readme"]} <= set(package["src"])


def test_what_is_tried_without_nix_is_the_packages_own(package: dict[str, Any]) -> None:  # N1
    """tests/process/test_nix_build.py reads the file without Nix."""
    assert [path.removeprefix("../") for path in named("unions")] == package["src"]
    assert [each.removeprefix("python3Packages.") for each in named("nativeCheckInputs")] == [
        *package["nativeCheckInputs"]
    ]
    for name in ("enabledTestPaths", "disabledTestPaths", "disabledTests", "disabledTestMarks"):
        assert named(name) == package[name], name
    assert package["postInstall"].split() == hook("postInstall").replace(SITE_OF_NIX, SITE).split()


def test_it_has_what_install_writes(
    package: dict[str, Any], built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # K5
    done = shell(package["postInstall"], built, {"out": str(built), "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done
    monkeypatch.setenv(SYSROOT, str(tmp_path / "none"))
    local, fish = f"{tmp_path}/none/usr/local", "share/fish/vendor_completions.d/slicer.fish"
    for action in plan().actions:
        if action.destination.endswith("/run-slicer.users.mount"):
            continue  # the module says the same
        place = fish if action.destination.endswith(".fish") else action.destination.removeprefix(f"{local}/")
        assert (built / place).read_bytes() == Path(action.source).read_bytes(), place
    for name in ("slicer-broker-devices.service", "slicer-job-ended@.target"):
        installed = built / "lib/systemd/system" / name
        assert installed.read_bytes() == (REPO / "units/system" / name).read_bytes()
    for name, line in (("service", "ExecStart="), ("socket", "ConditionFileIsExecutable=")):
        text = (built / f"lib/systemd/system/slicer-broker.{name}").read_text()
        assert f"\n{line}{built}/bin/slicer-broker\n" in text
        assert "/usr/lib/slicer-systemd" not in text
    system = ("web.service", "web.socket", "metrics.service", "metrics.timer")
    queues = "system/slicer-queues.service", "user/slicer-queues.service"
    for name in (*(f"system/slicer-{each}" for each in system), *queues):
        text = (built / "lib/systemd" / name).read_text()
        assert f"{built}/bin/slicer" in text
        assert "/usr/bin/slicer" not in text
    # Whoever does not ask for it gets no delegation.
    assert not list(built.glob("lib/systemd/system/user@*"))


def test_nothing_of_its_python_reaches_the_jobs(package: dict[str, Any], built: Path) -> None:  # K5
    # The wrapper that nixpkgs would write exports PATH and PYTHONNOUSERSITE.
    assert package["dontWrapPythonPrograms"] is True
    assert package["env"] == {"SLICER_BUILD_LAUNCHER": "no", "SLICER_TEST_QUICK": "1"}
    hooks = 'buildPythonPath() { echo "path of $1"; }; patchPythonScript() { echo "patched $1"; }\n'
    python, scripts = "/nix/store/none-python3/bin/python3.13", [built / script for script in SCRIPTS]
    for script in scripts:
        script.write_text(script.read_text().replace("#!python", f"#!{python}", 1))
    done = shell(hooks + package["postFixup"], built, {"out": str(built)})
    assert done.stdout == "".join([f"path of {built}\n", *(f"patched {script}\n" for script in scripts)])
    for script in scripts:
        first, rest = script.read_text().split("\n", 1)
        assert first == f"#!{python} -IS"
        assert rest == (REPO / "bin" / script.name).read_text().split("\n", 1)[1]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"profiles": {"train": {"memory_max": "8G"}}}, ""),
        ({"profiles": {"train": {"memroy_max": "8G"}}}, "unknown key 'memroy_max' in [profiles.train] ("),
        ({"profiles": {"a": {"inherits": "b"}, "b": {"inherits": "a"}}}, "profiles inherit in a circle"),
        ({"slices": {"gpu": {"timeout": "1h"}}}, "unknown key 'timeout' in [slices.gpu]"),
    ],
    ids=["right", "misspelt", "circle", "slice"],
)
def test_slicer_checks_the_file_while_the_system_is_built(
    built: Path, settings: dict[str, Any], complaint: str
) -> None:  # K5
    found = made(settings)
    file, out = built / "slicer-config.toml", built / "out.toml"
    file.write_text(written(found["settings"]))
    (built / "bin/slicer").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slicer "$@"\n')
    environ = {"PYTHONPATH": ":".join(sys.path), "written": str(file), "out": str(out)}
    done = shell(found["script"], built, environ)
    assert (done.returncode == 0) == (complaint == "") == out.exists(), done
    assert complaint in done.stderr


def test_the_flake_has_the_module_the_package_and_the_checks() -> None:  # K5
    found = evaluate("outputs.nix", given=SYSTEMS)
    package, test = str(NIX / "package.nix"), str(NIX / "vm-test.nix")
    assert found["module"] == [str(NIX / "module.nix")]
    assert found["overlay"] == {"slicer-systemd": package}
    assert found["packages"] == {system: {"default": package} for system in SYSTEMS}
    assert found["checks"] == {system: {"package": package, "nixos": test} for system in SYSTEMS}


def test_the_machine_of_the_test_is_right_and_the_one_on_debian_is_like_it() -> None:  # K5
    found = evaluate("outputs.nix", given=SYSTEMS)
    assert found["imports"] == [str(NIX / "module.nix")]
    machine = made(**found["slicer"])
    assert machine["failed"] == []
    assert machine["settings"] == tomllib.loads(CONFIGURATION)
