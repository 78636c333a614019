"""The Debian package: built from the sdist, installed, tried, and taken away without a trace."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slicer.version import __version__
from tests.fake_nvml import FakeNvml
from tests.machines import checkout
from tests.patience import DEADLINE_S, LONGEST_S, until
from tests.systemd.helpers import systemctl

pytest_plugins = ["tests.fake_nvml"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

NAME = "slicer-systemd"
ENVIRON = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}  # fmt: skip
SERVER = """\
[serve.model]
kind = "raw"
listen = ["127.0.0.1:8123"]
command = ["python3", "-m", "http.server", "${PORT}"]
"""
BUILD_SDIST = "import setuptools.build_meta as backend, sys; print(backend.build_sdist(sys.argv[1]))"
SHOWN = ("/usr", "/etc", "/var", "/run", "/opt", "/srv", "/root", "/home")
# What dpkg and the managers write about any package.
BOOKS = ("/var/lib/dpkg", "/var/log", "/var/cache", "/run/systemd", "/run/user", "/run/log", "/run/udev")


def run(*command: str | Path, cwd: str | Path = "/", code: int | None = 0) -> str:
    """Its output; ``code`` is the exit code that it must have (None: any)."""
    done = subprocess.run(command, cwd=cwd, env=ENVIRON, capture_output=True, text=True, check=False)
    assert code is None or done.returncode == code, (command, done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is: what the sdist lacks, the package lacks. PATH begins with a Python of conda."""
    scratch = tmp_path_factory.mktemp("debian")
    source, out, conda = scratch / "checkout", scratch / "out", scratch / "conda"
    checkout.copy(source)
    out.mkdir()
    conda.mkdir()
    for name in ("python3", f"python3.{sys.version_info.minor}"):
        (conda / name).write_text("#!/bin/sh\necho 'No module named build' >&2; exit 1\n")
        (conda / name).chmod(0o755)
    path = f"PATH={conda}:{ENVIRON['PATH']}"
    run(sys.executable, "-c", BUILD_SDIST, out, cwd=source)
    (sdist,) = out.glob("*.tar.gz")
    run("tar", "-xf", sdist, "-C", out)
    unpacked = out / sdist.name.removesuffix(".tar.gz")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/wheels"}
    run("env", path, *map("=".join, index.items()), "debian/rules", "pynvml", cwd=unpacked)
    run("env", path, "dpkg-buildpackage", "-b", "-us", "-uc", cwd=unpacked)
    (built,) = out.glob(f"{NAME}_*.deb")  # and one with the library's debugging symbols
    return built


def fragment() -> str:
    """Which file is cpu.slice; empty without one. (Debian 12's systemd calls /usr/lib /lib.)"""
    shown = run("systemctl", "show", "cpu.slice", "-P", "FragmentPath").strip()
    return os.path.realpath(shown) if shown else ""


@dataclass(frozen=True)
class Machine:
    """What a package could change: files (but for what dpkg keeps its books in) and units."""

    paths: set[str]
    enabled: str
    active: set[str]

    @staticmethod
    def look() -> Machine:
        found = run("find", *SHOWN, "-xdev", "-not", "-path", "*/__pycache__*")
        units = run("systemctl", "list-units", "--plain", "--no-legend")
        return Machine(
            {path for path in found.splitlines() if not path.startswith(BOOKS)},
            run("systemctl", "list-unit-files", "--state=enabled", "--no-legend"),
            {line.split()[0] for line in units.splitlines()},
        )


@pytest.fixture(scope="module")
def before(package: Path) -> Machine:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test installs a package: only for test machines")
    for state in ("/var/lib/slicer", "/run/slicer"):
        shutil.rmtree(state, ignore_errors=True)  # of other tests
    return Machine.look()


@pytest.fixture(scope="module")
def installed(package: Path, before: Machine) -> Iterator[Path]:
    try:
        run("dpkg", "--install", package)
        yield package
    finally:
        run("dpkg", "--purge", NAME)


def test_it_holds_what_a_package_should(package: Path) -> None:
    listed = [line.split()[5] for line in run("dpkg-deb", "--contents", package).splitlines()]
    files = {path.removeprefix(".") for path in listed if not path.endswith("/")}
    assert {
        "/usr/bin/slicer",
        "/usr/lib/systemd/system/gpu.slice",
        "/usr/lib/systemd/system/cpu.slice",
        "/usr/lib/systemd/user/gpu.slice",
        "/usr/lib/systemd/user/cpu.slice",
        "/usr/lib/systemd/catalog/slicer.catalog",
    } <= files
    shells = ("/usr/share/bash-completion/", "/usr/share/zsh/", "/usr/share/fish/")
    documents = ("/usr/share/man/", f"/usr/share/doc/{NAME}/")
    places = ("/usr/bin/slicer", "/usr/lib/systemd/", f"/usr/lib/{NAME}/slicer", *shells, *documents)
    files.remove(f"/usr/lib/{NAME}/pynvml.py")
    files.remove(f"/usr/share/python3/runtime.d/{NAME}.rtupdate")  # dh_python3's, for a new Python
    files.remove(f"/usr/share/lintian/overrides/{NAME}")
    assert [path for path in files if not path.startswith(places)] == []


def test_its_library_is_as_policy_has_one(package: Path, tmp_path: Path) -> None:
    run("dpkg-deb", "--extract", package, tmp_path)
    (library,) = tmp_path.rglob("*.so")
    assert str(library.relative_to(tmp_path)) == f"usr/lib/{NAME}/slicer/share/libslicer-share.so"
    assert library.stat().st_mode & 0o777 == 0o644
    assert ".symtab" not in run("readelf", "--sections", "--wide", library)  # stripped
    assert run("dpkg-deb", "--field", package, "Architecture") == run("dpkg", "--print-architecture")
    depends = run("dpkg-deb", "--field", package, "Depends")
    assert re.search(r"\blibc6 \(>= ", depends)
    assert not re.search(r"python3\.|python3 \(<<", depends)  # it is a module of no Python


def test_its_version_is_slicers(package: Path) -> None:
    assert run("dpkg-deb", "--field", package, "Version").strip() == __version__.replace(".dev", "~dev")


def test_a_job_runs_in_its_scope(installed: Path) -> None:
    assert run("/usr/bin/slicer", "--version") == f"slicer {__version__}\n"
    run("sh", Path(__file__).parents[2] / "debian/tests/scope")


def test_its_report_is_a_page_with_debians_modules_alone(installed: Path, tmp_path: Path) -> None:  # U13
    run("/usr/bin/slicer", "run", "--name", "shown", "--", "true")
    run("/usr/bin/slicer", "report", "--output", f"{tmp_path}/report.html")
    assert "1 user: " in (tmp_path / "report.html").read_text()


def test_it_finds_nvidias_gpus_by_what_it_brings(installed: Path, fake_nvml: FakeNvml) -> None:  # W25, K3
    """Where nothing else has a pynvml. The licence is in the package, too."""
    assert not list(Path("/usr/lib/python3/dist-packages").glob("pynvml*"))
    command = ["/usr/bin/slicer", "status", "--json"]
    environ = {**ENVIRON, **fake_nvml.env}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["gpus"]["total"] == 2, done
    for place in (f"lib/{NAME}/pynvml.py", f"share/doc/{NAME}/copyright"):
        assert "NVIDIA Corporation" in Path("/usr", place).read_text()


def test_nothing_was_enabled_or_started(before: Machine, installed: Path) -> None:
    now = Machine.look()
    assert now.enabled == before.enabled
    assert [unit for unit in now.active - before.active if not unit.endswith((".scope", ".slice"))] == []


def test_its_broker_is_there_and_switched_on_by_slicer_install(installed: Path) -> None:  # L1
    assert run("systemctl", "is-enabled", "slicer-broker.socket", code=None).strip() == "disabled"
    try:
        told = run("/usr/bin/slicer", "install", "--broker")
        assert "created" not in told
        assert run("systemctl", "is-active", "slicer-broker.socket").strip() == "active"
        areas = json.loads(run("/usr/bin/slicer", "doctor", "--json", code=None))["areas"]
        (area,) = [area for area in areas if area["area"] == "broker"]
        assert (area["state"], area["summary"][:4]) == ("ok", "on: "), area
    finally:
        run("/usr/bin/slicer", "install", "--broker", "--remove")
    assert run("systemctl", "is-enabled", "slicer-broker.socket", code=None).strip() == "disabled"
    assert not Path("/run/slicer-broker/socket").exists()


def test_systemd_knows_its_slices(installed: Path) -> None:  # K5
    assert fragment() == "/usr/lib/systemd/system/cpu.slice"
    assert run("systemctl", "show", "cpu.slice", "-P", "NeedDaemonReload").strip() == "no"
    assert run("systemd-analyze", "verify", "gpu.slice", "cpu.slice") == ""


def test_the_journal_explains_its_events(installed: Path) -> None:  # K7
    assert "Defined-By: slicer" in run("journalctl", "--dump-catalog")


def test_another_module_of_that_name_does_not_become_the_program(installed: Path, tmp_path: Path) -> None:
    for name in ("slicer", "click", "pystemd"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of somebody else')")
    command = ["/usr/bin/slicer", "--version"]
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"slicer {__version__}\n"


def test_the_manual_and_the_shells_find_it(installed: Path) -> None:
    assert run("man", "--where", "slicer", "slicer-run", "slicer.toml").count("/usr/share/man/man") == 3
    listed = run("dpkg-deb", "--contents", installed)
    for shell in ("bash-completion/completions/slicer", "zsh/vendor-completions/_slicer",
                  "fish/vendor_completions.d/slicer.fish"):  # fmt: skip
        assert f" ./usr/share/{shell}\n" in listed


@pytest.fixture
def job(installed: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A job that runs until its gate is opened, and then exits with 7."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    waits = f": > {gate}; read line < {gate}; exit 7"
    command = ["/usr/bin/slicer", "run", "-q", "--profile", "heavy", "--outcome", tmp_path / "outcome", "--"]
    started = subprocess.Popen([*command, "sh", "-c", waits], env=ENVIRON)
    try:
        gate.read_bytes()  # it runs
        yield started, gate
    finally:
        systemctl.output("systemctl", "stop", "slicer-*.scope")
        started.wait(LONGEST_S)


def test_a_job_outlives_an_upgrade(installed: Path, job: tuple[subprocess.Popen[bytes], Path]) -> None:
    running, gate = job
    run("dpkg", "--install", installed)
    gate.write_text("go on\n")
    assert running.wait(LONGEST_S) == 7
    assert json.loads((gate.parent / "outcome").read_text())["exit_code"] == 7


def test_a_job_outlives_the_packages_removal(
    installed: Path, job: tuple[subprocess.Popen[bytes], Path]
) -> None:
    """Its command does. (slicer itself may want a module that is no longer there.)"""
    before = systemctl.scopes()
    run("dpkg", "--remove", NAME)
    try:
        assert len(before) == 1
        assert systemctl.scopes() == before
    finally:
        run("dpkg", "--install", installed)


@dataclass(frozen=True)
class Shop:
    """A machine where all is switched on: the broker, a closed shop, a server of slicer serve, and two jobs.

    One is root's, the other one waits.
    """

    holder: subprocess.Popen[bytes]
    waiter: subprocess.Popen[bytes]  # bob's
    gate: Path
    ran: Path  # there once bob's command has run

    @staticmethod
    def asks() -> bool:
        """Whether clients of the server are heard."""
        return run("systemctl", "is-active", "slicer-serve-model.socket", code=None).strip() == "active"

    @staticmethod
    def is_closed() -> bool:
        return run("systemctl", "show", "user.slice", "-P", "DevicePolicy").strip() == "strict"

    def is_served(self) -> bool:
        """Whether the broker knows of both."""
        said = json.loads(run("/usr/bin/slicer", "status", "--json"))
        return [len(said[what]) for what in ("jobs", "waiting")] == [1, 1]


@pytest.fixture
def shop(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    config, gate = Path("/etc/slicer/config.toml"), tmp_path / "gate"
    config.write_text(f"[slots]\ncpu = 1\n{SERVER}")
    os.mkfifo(gate)
    public = Path(tempfile.mkdtemp(prefix="shop-", dir="/tmp"))
    public.chmod(0o1777)
    (public / "bob").mkdir()
    shutil.chown(public / "bob", "bob")
    monkeypatch.setitem(ENVIRON, "HOME", str(public))  # what jobs leave in their users' homes stays there
    as_bob = ["setpriv", "--reuid=bob", "--regid=bob", "--init-groups", "env", f"HOME={public}/bob"]
    slicer = ["/usr/bin/slicer", "run", "-q", "--profile", "heavy", "--"]
    library = Path("/usr/lib/python3/dist-packages/aiohttp-3.9.dist-info")
    started = []
    try:
        run("/usr/bin/slicer", "install", "--broker")
        run("/usr/bin/slicer", "install", "--closed-shop", "--yes")
        library.mkdir()  # the machines have no aiohttp, and no request comes
        (library / "METADATA").write_text("Metadata-Version: 2.1\nName: aiohttp\nVersion: 3.9\n")
        run("/usr/bin/slicer", "install", "--serve", "model")
        waits = f": > {gate}; read line < {gate}"
        started.append(subprocess.Popen([*slicer, "sh", "-c", waits], env=ENVIRON))
        gate.read_bytes()
        ran = public / "ran"
        started.append(subprocess.Popen([*as_bob, *slicer, "touch", ran], env=ENVIRON))
        holder, waiter = started
        made = Shop(holder, waiter, gate, ran)
        until(made.is_served, "both are known")
        assert made.is_closed()
        yield made
    finally:
        systemctl.output("systemctl", "stop", "slicer-*.scope")
        for each in started:
            each.kill()
            each.wait(LONGEST_S)
        if Path("/usr/bin/slicer").exists():
            run("/usr/bin/slicer", "install", "--remove")
        run("dpkg", "--install", installed)
        config.unlink()
        shutil.rmtree(public)
        shutil.rmtree(library)


def test_an_upgrade_leaves_the_shop_closed_and_each_job_its_turn(installed: Path, shop: Shop) -> None:  # L1
    run("dpkg", "--install", installed)
    until(shop.is_served, "both are known still")
    assert (shop.is_closed(), shop.asks(), shop.ran.exists()) == (True, True, False)
    shop.gate.write_text("go on\n")
    assert (shop.holder.wait(LONGEST_S), shop.waiter.wait(LONGEST_S)) == (0, 0)
    assert shop.ran.exists()


def test_its_removal_opens_the_shop_and_switches_the_broker_off(shop: Shop) -> None:  # W23, L1
    (job,) = json.loads(run("/usr/bin/slicer", "status", "--json"))["jobs"]
    told = run("dpkg", "--remove", NAME)
    assert "50-slicer-closed-shop.conf" in told
    assert not shop.is_closed()
    assert not shop.asks()
    assert not Path("/run/slicer-broker/socket").exists()
    places = ("/usr/local/lib/systemd", "/etc/systemd/system/sockets.target.wants")
    assert [path for place in places for path in Path(place).rglob("*slicer*")] == []
    # Nothing is given away twice: the job goes on, and the one that waited for its slot ends.
    assert job["unit"] in systemctl.scopes()
    assert shop.waiter.wait(2 * DEADLINE_S) == 75  # for half a minute it tries to be heard again
    assert not shop.ran.exists()


def test_its_removal_tells_how_a_shop_is_opened_whose_file_was_edited(shop: Shop) -> None:  # W23
    drop_in = Path("/usr/local/lib/systemd/system/user.slice.d/50-slicer-closed-shop.conf")
    drop_in.write_text(drop_in.read_text() + "# and one line more\n")
    told = removed()
    try:
        assert shop.is_closed()
        assert "GPUs are still closed, by a file that somebody edited" in told
        (command,) = [line for line in told.splitlines() if line.startswith("  rm -f ")]
        run("sh", "-c", command)
        run(*told.partition("and after that: ")[2].splitlines()[0].split())
        assert not shop.is_closed()
    finally:
        drop_in.unlink(missing_ok=True)


def removed() -> str:
    """What the package's removal says to a person."""
    command = ("dpkg", "--remove", NAME)
    return subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=True).stderr


def test_slicer_install_adds_nothing_to_the_package(installed: Path) -> None:
    done = run("/usr/bin/slicer", "install")
    assert "created" not in done, done
    assert fragment() == "/usr/lib/systemd/system/cpu.slice"
    shown = json.loads(run("/usr/bin/slicer", "doctor", "--json", code=None))
    mended = [found["id"] for found in shown["findings"] if found["area"] in ("units", "environment", "gpus")]
    assert mended == []


def test_an_older_slicer_install_wins_until_it_is_repeated(installed: Path, before: Machine) -> None:
    copies = tuple(f"/usr/local/lib/systemd/system/{name}.slice" for name in ("cpu", "gpu"))
    run("dpkg", "--remove", NAME)
    run("/opt/slicer/bin/slicer", "install")
    run("dpkg", "--install", installed)
    assert fragment() == copies[0]
    told = run("/usr/bin/slicer", "install")
    assert all(re.search(rf"^removed +{path} ", told, re.MULTILINE) for path in copies), told
    assert fragment() == "/usr/lib/systemd/system/cpu.slice"
    run("/usr/bin/slicer", "install", "--remove")


def test_what_it_has_wrapped_is_unwrapped_with_its_removal(installed: Path, tmp_path: Path) -> None:  # C5
    """And not with an upgrade: a shim without slicer would be a program that is gone."""
    program, config = tmp_path / "tool", Path("/etc/slicer/conf.d/wrap.toml")
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    config.parent.mkdir(parents=True, exist_ok=True)
    route = '[routes.tool]\nprobe = "size"\nthreshold = "1G"\n[routes.tool.gpu]\n[routes.tool.cpu]\n'
    config.write_text(route)
    try:
        run("/usr/bin/slicer", "wrap", "install", program, "--route", "tool")
        assert "exec /usr/bin/slicer route tool" in program.read_text()
        run("dpkg", "--install", installed)
        assert "exec /usr/bin/slicer" in program.read_text()
        run("dpkg", "--remove", NAME)
        assert run(program) == "mine\n"
    finally:
        config.unlink()
        run("dpkg", "--install", installed)


def test_nothing_of_it_stays(before: Machine, installed: Path) -> None:
    """Removed, it leaves root's history; purged, nothing."""
    assert Path("/var/lib/slicer/history.db").exists()
    run("dpkg", "--remove", NAME)
    assert not Path("/usr/bin/slicer").exists()
    assert Path("/var/lib/slicer/history.db").exists()
    assert fragment() == ""
    assert "Defined-By: slicer" not in run("journalctl", "--dump-catalog")
    run("dpkg", "--purge", NAME)
    # (/usr/local: empty directories of `slicer install`.)
    left = Machine.look().paths - before.paths
    assert {path for path in left if not path.startswith("/usr/local/")} == set()
