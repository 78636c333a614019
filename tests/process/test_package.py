"""The wheel and the sdist of this checkout."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from slicer.version import __version__
from tests.built import Built
from tests.machines import checkout
from tests.machines.host import REPO

NAME = f"slicer_systemd-{__version__}"
TAG = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
LIBRARY = "slicer/share/libslicer-share.so"
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())
# Nothing that a user or a distribution builds, tests or reads slicer with.
NOT_IN_THE_SDIST = (".gitignore", ".git")


def build(source: Path, out: Path, *what: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", out, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is absent from the `packages` configuration" not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def package(built: Built) -> Path:
    """A directory with the checkout's files, its sdist, its wheel, and the sdist's wheel."""
    return built("package", make_package)


def make_package(root: Path) -> None:
    (root / "wheel").symlink_to(checkout.wheel())
    checkout.copy(root / "checkout")
    build(root / "checkout", root / "sdist", "--sdist")
    with tarfile.open(root / "sdist" / f"{NAME}.tar.gz") as archive:
        archive.extractall(root / "unpacked", filter="data")
    build(root / "unpacked" / NAME, root / "wheel-of-sdist", "--wheel")


def test_slicer_client_is_a_distribution_of_one_module(package: Path, tmp_path: Path) -> None:  # U2
    build(shutil.copytree(REPO / "slicer-client", tmp_path / "source"), tmp_path / "out")
    (wheel,) = (tmp_path / "out").glob("slicer_client-*-py3-none-any.whl")
    assert len(list((tmp_path / "out").glob("slicer_client-*.tar.gz"))) == 1
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        (about,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        found = email.message_from_bytes(archive.read(about))
        client = archive.read("slicer_client.py")
    assert names == ["slicer_client.py"]
    assert (found["Name"], found["Requires-Python"]) == ("slicer-client", ">=3.9")
    assert found["Version"] == __version__  # they are released together
    assert found["Requires-Dist"] is None
    assert client == files(package / "wheel")["slicer/_client.txt"]  # what `slicer client` prints


def files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel / f"{NAME}-{TAG}.whl") as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def relative(root: Path) -> set[str]:
    # A link to a directory is followed, as Python's own walk does not do it before 3.13.
    found = (Path(at, name) for at, _, names in os.walk(root, followlinks=True) for name in names)
    return {
        str(path.relative_to(root)) for path in found if "__pycache__" not in path.parts and path.is_file()
    }


def metadata(package: Path) -> Message:
    return email.message_from_bytes(files(package / "wheel")[f"{NAME}.dist-info/METADATA"])


def test_the_wheel_holds_slicer_and_nothing_else(package: Path) -> None:
    names = {name for name in files(package / "wheel") if ".dist-info/" not in name}
    ours = {name for name in relative(REPO / "src" / "slicer") if not name.startswith("share/preload/")}
    modules = {f"slicer/{name}" for name in ours} | {LIBRARY}
    assert {name for name in names if name.startswith("slicer/")} == modules
    scripts = {f"{NAME}.data/scripts/{name}" for name in ("slicer", "slicer-broker", "slicer-python")}
    man = {f"{NAME}.data/data/share/man/man{page.name[-1]}/{page.name}" for page in (REPO / "man").iterdir()}
    assert names - modules == scripts | man


def test_the_sdists_wheel_is_the_checkouts(package: Path) -> None:
    ours, theirs = files(package / "wheel"), files(package / "wheel-of-sdist")
    assert theirs.keys() == ours.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_the_wheel_is_for_every_python_on_this_platform(package: Path) -> None:
    wheel = email.message_from_bytes(files(package / "wheel")[f"{NAME}.dist-info/WHEEL"])
    assert (wheel["Tag"], wheel["Root-Is-Purelib"]) == (TAG, "false")
    with zipfile.ZipFile(package / "wheel" / f"{NAME}-{TAG}.whl") as archive:
        assert archive.getinfo(LIBRARY).external_attr >> 16 & 0o777 == 0o644


def test_without_a_compiler_it_says_what_helps(package: Path, tmp_path: Path) -> None:
    source = package / "unpacked" / NAME
    words = [sys.executable, "setup.py", "--quiet", "build_ext", "--force", "--build-lib", tmp_path / "lib"]
    words += ["--build-temp", tmp_path / "temp"]
    environ = {name: value for name, value in os.environ.items() if name != "CC"} | {"PATH": str(tmp_path)}
    refused = subprocess.run(words, cwd=source, env=environ, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "apt install gcc libc6-dev" in refused.stderr
    environ["SLICER_BUILD_SHARE"] = "no"
    subprocess.run(words, cwd=source, env=environ, capture_output=True, check=True)
    assert list(tmp_path.rglob("*.so")) == []


def test_the_sdist_is_the_checkout(package: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    tracked = {name for name in listed.stdout.split("\0") if name and (REPO / name).is_file()}
    found = relative(package / "unpacked" / NAME)
    assert {name for name in tracked - found if name not in NOT_IN_THE_SDIST} == set()
    assert [name for name in found if name.endswith(".so") and not name.startswith("build/")] == []


def test_the_metadata_is_what_an_index_shows(package: Path) -> None:
    found = metadata(package)
    assert (found["Name"], found["Version"]) == ("slicer-systemd", __version__)
    assert found["Requires-Python"] == ">=3.11"
    assert "License :: OSI Approved :: MIT License" in (found.get_all("Classifier") or [])
    assert found["Description-Content-Type"] == "text/markdown"


def test_debians_package_depends_on_what_the_wheel_does() -> None:
    control = (REPO / "debian" / "control").read_text()
    for dependency in PROJECT["project"]["dependencies"]:
        name, version = dependency.split(">=")  # a name and the lowest version, and nothing else
        debian = "python3-pynvml" if name == "nvidia-ml-py" else f"python3-{name}"
        (theirs,) = set(re.findall(rf"^ {debian} \(>= ([0-9.]+)\),$", control, re.MULTILINE))
        assert theirs == version
    first = (REPO / "debian" / "changelog").read_text().partition("\n")[0]
    assert first.startswith(f"slicer-systemd ({__version__.replace('.dev', '~dev')}) ")
