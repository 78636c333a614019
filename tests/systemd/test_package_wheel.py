"""The wheel, installed as the README says, from nothing but the system and the image's wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slicer.version import __version__
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.users import User, stop_manager, user

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

WHEELS = "/opt/wheels"
README = (Path(__file__).parents[2] / "README.md").read_text()
SESSION = "wheel-session.service"


@dataclass(frozen=True)
class Environment:
    """A virtual environment of Debian's Python, outside of which no program can be found."""

    root: Path
    programs: Path
    owner: User | None = None  # else root

    def run(
        self, program: str, *arguments: str, path: str | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": path or str(self.programs), "HOME": str(self.root), "LANG": "C.UTF-8", **more}
        command = [str(self.root / "bin" / program), *arguments]
        if self.owner is not None:
            environ |= {"HOME": str(self.owner.home), "XDG_RUNTIME_DIR": self.owner.runtime}
            command = ["/usr/bin/setpriv", *self.owner.identity[1:], *command]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    def install(self, *what: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
        offline = ("--no-index", "--find-links", WHEELS, "--no-cache-dir", "--disable-pip-version-check")
        # Optimised, pystemd takes a compiler a quarter of a minute.
        return self.run("pip", "install", *offline, *what, path=path, CFLAGS="-O0")


@pytest.fixture(scope="module")
def wheel() -> str:
    (found,) = Path("/wheel").glob("slicer_systemd-*.whl")
    return str(found)


@pytest.fixture(scope="module")
def on_debian(tmp_path_factory: pytest.TempPathFactory, wheel: str) -> Environment:
    """slicer with Debian's pystemd, installed where there is no compiler."""
    made = environment(tmp_path_factory, "--system-site-packages")
    done = made.install(wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def environment(factory: pytest.TempPathFactory, *options: str) -> Environment:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test starts jobs over the system's ledger: only for test machines")
    root, programs = factory.mktemp("venv"), factory.mktemp("programs")
    subprocess.run(["/usr/bin/python3", "-m", "venv", *options, root], check=True)
    return Environment(root, programs)


def works(installed: Environment, tmp_path: Path) -> None:
    """What a user tries first."""
    assert installed.run("slicer", "--version").stdout == f"slicer {__version__}\n"
    checked = installed.run("pip", "check")
    assert (checked.returncode, checked.stdout) == (0, "No broken requirements found.\n"), checked
    job = installed.run("slicer", "run", "--profile", "heavy", "--", "/bin/cat", "/proc/self/cgroup")
    assert job.returncode == 0, job
    assert "cpu.slice/slicer-" in job.stdout
    assert "done: exit 0" in job.stderr
    files = installed.run("slicer", "install", SLICER_SYSROOT=str(tmp_path))
    assert files.returncode == 0, files
    assert (tmp_path / "usr/local/lib/systemd/system/gpu.slice").is_file()
    assert (tmp_path / "usr/local/lib/systemd/catalog/slicer.catalog").is_file()
    assert (tmp_path / "usr/local/share/bash-completion/completions/slicer").is_file()
    assert (installed.root / "share/man/man1/slicer-run.1").is_file()  # where pipx finds it
    assert installed.run("slicer", "completion", "zsh").stdout.startswith("#compdef slicer")


@pytest.mark.core
def test_with_debians_pystemd_nothing_is_compiled(on_debian: Environment, tmp_path: Path) -> None:
    shown = on_debian.run("pip", "show", "--files", "pystemd").stdout
    assert "Location: /usr/lib/python3/dist-packages" in shown
    works(on_debian, tmp_path)


@pytest.mark.core
def test_what_the_wheel_brings_is_python_and_one_library(on_debian: Environment) -> None:
    """One that any program of this machine can have preloaded."""
    (site,) = on_debian.root.glob("lib/python3*/site-packages")
    (library,) = (path for path in site.rglob("*") if ".so" in path.suffixes)
    assert library == site / "slicer/share/libslicer-share.so"
    preloaded = {"PATH": "/bin", "LD_PRELOAD": str(library)}
    maps = ["/bin/cat", "/proc/self/maps"]
    done = subprocess.run(maps, env=preloaded, capture_output=True, text=True, check=True)
    assert (str(library) in done.stdout, done.stderr) == (True, "")
    assert [path.name for path in site.glob("pystemd*")] == []


@pytest.mark.core
def test_elsewhere_nothing_is_compiled_either(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, wheel: str
) -> None:
    """libsystemd is asked without pystemd, which has no wheels."""
    made = environment(tmp_path_factory)
    done = made.install(wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    refused = made.install(f"{wheel}[pystemd]")
    assert refused.returncode != 0, "a compiler was found, so the tests here mean nothing"
    works(made, tmp_path)
    assert made.run("pip", "show", "pystemd").returncode == 1


@pytest.fixture
def wanda(wheel: str) -> Iterator[User]:
    """A new user, who lingers, with the wheel in her home; nothing has used her bus since the boot."""
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", "wanda"], check=True)
    made = user("wanda")
    shutil.copy(wheel, made.home)
    systemctl.output("loginctl", "enable-linger", made.name)
    systemctl.output("systemctl", "start", f"user@{made.uid}.service")
    yield made
    systemctl.output("loginctl", "disable-linger", made.name)
    stop_manager(made)
    subprocess.run(["userdel", "--remove", made.name], check=True)
    shutil.rmtree(made.ledger, ignore_errors=True)


@pytest.mark.core
def test_an_ordinary_user_types_the_line(wanda: User) -> None:
    """No root, no compiler, and her first job is what starts her bus."""
    (row,) = re.findall(r"^    (python3 -m venv .*)$", README, re.MULTILINE)
    row = row.replace("pip install .", "pip install slicer_systemd-*.whl")  # as she has no compiler
    programs = wanda.home / "programs"
    programs.mkdir()
    for name in ("python3", "mkdir", "ln", "sh", "cat"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    path = f"PATH={programs}"
    offline = ("PIP_NO_INDEX=1", f"PIP_FIND_LINKS={WHEELS}", "PIP_DISABLE_PIP_VERSION_CHECK=1")
    job = "slicer run --profile heavy -- cat /proc/self/cgroup"
    line = [*wanda.via, path, *offline, "/bin/bash", "-c", f"cd && {row} && {job}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    # systemd puts a "_" before a slice that has the name of a controller of cgroup v1.
    assert re.search(rf"/user@{wanda.uid}\.service/_?cpu\.slice/slicer-", done.stdout), done
    assert "done: exit 0" in done.stderr


@pytest.mark.core
def test_an_ordinary_user_needs_neither_root_nor_a_compiler(
    tmp_path_factory: pytest.TempPathFactory, wheel: str, alice: User
) -> None:  # U1
    """She lingers: her jobs are in her manager, and a detached one outlives the session that it came from."""
    root = alice.home / "wheel"
    subprocess.run([*alice.identity, "/usr/bin/python3", "-m", "venv", root], check=True)
    installed = Environment(root, tmp_path_factory.mktemp("programs"), alice)
    done = installed.install(wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    job = installed.run("slicer", "run", "--", "/bin/cat", "/proc/self/cgroup")
    assert job.returncode == 0, job
    assert f"/user@{alice.uid}.service/" in job.stdout
    assert "/slicer-" in job.stdout
    said, gate = root / "said", root / "gate"
    os.mkfifo(gate)
    gate.chmod(0o666)
    command = f"/bin/sh -c 'echo up; : < {gate}; exit 4'"
    script = f"{root}/bin/slicer run -d -- {command} > {said}; exec /bin/sleep 1000"
    systemctl.output(
        "systemd-run", "--quiet", "--collect", f"--unit={SESSION}", "--property=User=alice",
        "--property=PAMName=login", f"--setenv=PATH={installed.programs}", "/bin/sh", "-c", script,
    )  # fmt: skip
    job_id = until(lambda: said.exists() and said.read_text().strip(), "it is detached")
    until(lambda: "up\n" in installed.run("slicer", "logs", job_id).stdout, "it runs")
    systemctl.output("systemctl", "kill", "--signal=KILL", SESSION)
    systemctl.output("systemctl", "stop", SESSION, check=False)
    assert "state      runs\n" in installed.run("slicer", "show", job_id).stdout
    gate.write_text("")
    assert installed.run("slicer", "wait", job_id).returncode == 4
