"""`slicer install --serve` under a real systemd: the units, their sandbox, and how they go. B6"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection

import pytest

from slicer.backend import serve_units
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.users import User
from tests.unit.backend.test_serve_units import EXPOSED

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

CONFIG = """\
[serve.started]
kind = "raw"
listen = ["127.0.0.1:8123"]
command = ["python3", "-m", "http.server", "${PORT}"]
profile = "heavy"

[serve.runs]
kind = "openai"
listen = ["unix:/run/runs.sock"]
upstream = "http://127.0.0.1:8124"
"""
# What slicer itself does in there: a scope, a lease, the history; and what the sandbox leaves to a job.
LOOKS = "grep ^0:: /proc/self/cgroup; grep NoNewPrivs /proc/self/status"
JOB = f"slicer run -q -p heavy --name inside -- sh -c '{LOOKS}'"


def socket(name: str) -> str:
    return serve_units.socket_of(name)


def service(name: str) -> str:
    return serve_units.service_of(name)


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test changes the machine's root: only for test machines")
    settings = Path("/etc/slicer/config.toml")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(CONFIG)
    systemctl.output("slicer", "install")
    for name in ("started", "runs"):
        systemctl.output("slicer", "install", "--serve", name)
    yield
    systemctl.output("slicer", "install", "--remove")
    settings.unlink()
    shutil.rmtree(settings.parent)


def in_its_place(folder: Path, name: str, manager: tuple[str, ...], told: Path) -> str:
    """What a job says of itself that is started in the sandbox of a service."""
    drop_in = folder / f"{service(name)}.d"
    drop_in.mkdir(parents=True)
    (drop_in / "looks.conf").write_text(
        f"[Service]\nType=oneshot\nExecStart=\nExecStart=/usr/local/bin/{JOB}\nRestart=no\n"
        f"StandardOutput=truncate:{told}\nExecStopPost=\n"
    )
    try:
        systemctl.output(*manager, "daemon-reload")
        systemctl.output(*manager, "start", service(name))
        return told.read_text()
    finally:
        shutil.rmtree(drop_in)
        systemctl.output(*manager, "daemon-reload")


def test_its_sockets_are_switched_on_and_nothing_runs(installed: None) -> None:  # B6
    for name in ("started", "runs"):
        assert systemctl.output("systemctl", "is-enabled", socket(name)) == "enabled"
        assert systemctl.show(socket(name), "ActiveState") == {"ActiveState": "active"}
        assert systemctl.show(service(name), "ActiveState") == {"ActiveState": "inactive"}
    info = Path("/run/runs.sock").lstat()
    assert (info.st_uid, info.st_mode & 0o777) == (0, 0o600)


def test_systemd_finds_nothing_wrong_in_them(installed: None) -> None:  # K5
    names = [unit for name in ("started", "runs") for unit in (socket(name), service(name))]
    done = subprocess.run(("systemd-analyze", "verify", *names), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("name", "most"), [("started", EXPOSED["ollama"]), ("runs", EXPOSED["runs"])])
def test_the_sandbox_is_as_tight_as_the_docs_say(installed: None, name: str, most: float) -> None:  # S9
    words = systemctl.output("systemd-analyze", "security", "--no-pager", service(name))
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", words)
    assert float(exposure) <= most


@pytest.mark.parametrize("name", ["started", "runs"])
def test_slicer_does_its_work_in_the_sandbox(installed: None, name: str) -> None:  # B6, S9
    """A scope, a lease, the history. And the job inherits what is closed."""
    said = in_its_place(Path("/run/systemd/system"), name, ("systemctl",), Path("/run/looks"))
    cgroup, privileges = said.splitlines()
    assert re.search(r"/_?cpu\.slice/slicer-[0-9a-f]+\.scope$", cgroup)
    assert privileges.split() == ["NoNewPrivs:", "1"]
    assert "inside" in systemctl.output("slicer", "history", "-n", "1")


def test_slicer_asks_the_broker_from_the_sandbox(installed: None) -> None:  # B6, L1
    systemctl.output("slicer", "install", "--broker")
    try:
        said = in_its_place(Path("/run/systemd/system"), "started", ("systemctl",), Path("/run/looks"))
    finally:
        systemctl.output("slicer", "install", "--broker", "--remove")
    assert re.search(r"/_?cpu\.slice/cpu-0\.slice/slicer-[0-9a-f]+\.scope$", said.splitlines()[0])


def test_a_users_is_in_the_users_own_manager(installed: None, alice: User) -> None:  # B6, S9
    config = alice.home / ".config/slicer/config.toml"
    slicer = (*alice.via, "slicer")
    text = CONFIG.replace("8123", "8125")  # the machine's has the other one
    systemctl.output(*alice.via, "sh", "-c", f"mkdir -p {config.parent}; printf '%s' '{text}' >{config}")
    systemctl.output(*slicer, "install", "--user", "--serve", "started")
    try:
        units = alice.home / ".local/share/systemd/user"
        assert (units / socket("started")).exists()
        assert systemctl.output(*alice.systemctl, "is-enabled", socket("started")) == "enabled"
        told = alice.home / "looks"
        said = in_its_place(Path(alice.runtime, "systemd/user"), "started", alice.systemctl, told)
        cgroup, privileges = said.splitlines()
        assert re.search(r"/user@\d+\.service/_?cpu\.slice/slicer-[0-9a-f]+\.scope$", cgroup)
        assert privileges.split() == ["NoNewPrivs:", "1"]
    finally:
        systemctl.output(*slicer, "install", "--user", "--remove", "--serve", "started")
        shutil.rmtree(config.parent)
    assert not list(units.glob("slicer-serve-*"))
    left = systemctl.show(socket("started"), "LoadState", prefix=alice.systemctl)
    assert left == {"LoadState": "not-found"}


def test_without_its_program_it_is_switched_off(installed: None) -> None:  # W23
    """As after `pipx uninstall` without `slicer install --remove` before it."""
    program = Path(serve_units.program_of("/usr/local/lib/systemd/system", "started"))
    gone = program.with_name("moved-away")
    program.rename(gone)
    try:
        with create_connection(("127.0.0.1", 8123)):
            pass
        until(
            lambda: systemctl.show(socket("started"), "ActiveState") == {"ActiveState": "inactive"},
            "the socket is gone",
        )
    finally:
        gone.rename(program)
    systemctl.output("systemctl", "reset-failed", service("started"), check=False)
    systemctl.output("systemctl", "restart", socket("started"))


def test_removal_leaves_nothing(installed: None) -> None:  # K5
    systemctl.output("slicer", "install", "--remove", "--serve", "runs")
    assert systemctl.show(socket("runs"), "LoadState") == {"LoadState": "not-found"}
    assert not Path("/run/runs.sock").exists()
    assert systemctl.show(socket("started"), "ActiveState") == {"ActiveState": "active"}
    systemctl.output("slicer", "install", "--remove")
    assert not list(Path("/usr/local/lib/systemd/system").glob("slicer-serve-*"))
    assert not list(Path("/etc/systemd/system").glob("*/slicer-serve-*"))
