"""What is read from files: the right one counts, and nobody else's word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.backend import closed_shop
from slicer.backend.unit_files import SYSTEM_UNITS
from slicer.doctor import glance
from slicer.doctor.facts import gpus, host, installed, reading, state
from slicer.kernel import SYSROOT, cgroup

MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw,hidepid=2
23 27 0:22 / / rw - ext4 /dev/sda1 rw
24 23 0:23 / /run rw,nosuid - tmpfs tmpfs rw,size=10k
25 24 0:24 / /run/lock rw - tmpfs tmpfs rw
26 23 0:25 / /mnt/with\\040blank rw - nfs4 server:/x rw
broken
"""


def test_the_file_system_of_a_path_is_the_innermost_mount() -> None:
    mounted = host.parse(MOUNTINFO)
    kinds = {
        path: host.holding(path, mounted) for path in ("/run/lock/slicer-0", "/runx", "/mnt/with blank/a")
    }
    assert [mount.kind if mount else "" for mount in kinds.values()] == ["tmpfs", "ext4", "nfs4"]


def test_a_daemons_setting_is_read_as_systemd_reads_it(tmp_path: Path) -> None:
    etc, lib = str(tmp_path / "etc"), str(tmp_path / "lib")
    written = {
        "etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\nKillUserProcesses=yes\nKillOnlyUsers=a b\n",
        "lib/systemd/logind.conf": "RemoveIPC=no\n",  # hidden by the one in /etc
        "lib/systemd/logind.conf.d/10.conf": "KillUserProcesses=no\n",
        "lib/systemd/logind.conf.d/50.conf": "UserTasksMax=1\n",
        "etc/systemd/logind.conf.d/50.conf": "Other=1\n",  # in place of the one above
    }
    for name, text in written.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    keys = ("RemoveIPC", "KillUserProcesses", "KillOnlyUsers", "UserTasksMax", "Other")
    said = [reading.setting("logind.conf", key, (etc, lib)) for key in keys]
    assert said == ["", "no", "a b", "", "1"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "open", "missing", "socket"])
def test_what_is_no_plain_file_of_ours_says_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "open":
        path.write_text("x")
        path.chmod(0o666)
    elif kind == "socket":
        os.mknod(path, 0o140600)
    assert reading.trusted_text(str(path)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another user")
def test_another_users_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    assert reading.trusted_text(str(path)) == "x"
    os.chown(path, 54321, 54321)
    assert reading.trusted_text(str(path)) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\nGCC version: 12.2.0",
            "550.54.14",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build", "575.57.08"),
        ("", ""),
    ],
)
def test_the_version_of_the_kernel_module_is_read(text: str, version: str) -> None:
    assert gpus.module_version(text) == version


def test_an_mps_daemon_is_seen_by_its_pipe_which_nobody_opens(tmp_path: Path) -> None:  # D5
    assert gpus.mps({}, str(tmp_path)) == ""
    os.mkfifo(tmp_path / "control")
    assert gpus.mps({}, str(tmp_path)) == str(tmp_path)
    other = tmp_path / "other"
    assert gpus.mps({"CUDA_MPS_PIPE_DIRECTORY": str(other)}, str(tmp_path)) == str(tmp_path)
    other.mkdir()
    assert gpus.mps({"CUDA_MPS_PIPE_DIRECTORY": str(other)}, str(tmp_path)) == str(other)
    (other / "control").touch()
    assert gpus.mps({}, str(other)) == ""  # a plain file is no pipe of a daemon's


def test_nobody_is_logged_in_and_whether_a_closed_shop_acts_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # D6: no finding without a cause
    folder = tmp_path / f"units/{closed_shop.SLICE}.d"
    folder.mkdir(parents=True)
    (folder / closed_shop.NAME).touch()
    monkeypatch.setattr(gpus, "_FOLDERS", (str(tmp_path / "units"),))
    monkeypatch.setattr(cgroup, "root", lambda: str(tmp_path / "cgroup"))
    monkeypatch.setattr(gpus, "filters_devices", lambda directory: False)
    assert gpus.gather_fence(0).acts is None
    (tmp_path / "cgroup" / closed_shop.SLICE).mkdir(parents=True)
    assert gpus.gather_fence(0).acts is False


@pytest.mark.parametrize(
    ("uid", "socket", "manager"), [(0, "", "system"), (1000, "", "user"), (1000, "/run/s", "system")]
)
def test_where_there_is_a_broker_the_systems_manager_starts_everybodys_jobs(
    monkeypatch: pytest.MonkeyPatch, uid: int, socket: str, manager: str
) -> None:  # L1
    monkeypatch.setattr(glance, "broker_socket", lambda environ: socket)
    who = glance.who_is(uid, {}, is_sudoer=True)
    assert (who.manager, who.is_brokered) == (manager, bool(socket))


def test_a_closed_shop_is_seen_on_nixos_too(tmp_path: Path) -> None:  # N4
    """Where a module says what slicer's drop-in says elsewhere, among all else that is said of the unit."""
    folders = (str(tmp_path / "etc"), str(tmp_path / "lib"))
    assert gpus.drop_in(folders) == ""
    theirs = tmp_path / "etc/user.slice.d/overrides.conf"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("[Slice]\nDevicePolicy=closed\n")
    assert gpus.drop_in(folders) == ""
    theirs.write_text("[Slice]\nDeviceAllow=char-1 rwm\nDevicePolicy=strict\n")
    assert gpus.drop_in(folders) == str(theirs)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_seen_before_there_is_a_history(tmp_path: Path) -> None:  # N10
    assert state.shut(str(tmp_path / "a/b")) == ""
    tmp_path.chmod(0o555)
    assert state.shut(str(tmp_path / "a/b")) == str(tmp_path)
    assert state.shut(str(tmp_path)) == ""


def test_installed_services_without_their_library_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # X10, U13
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    units = tmp_path / SYSTEM_UNITS.lstrip("/")
    units.mkdir(parents=True)
    for name in ("slicer-web.socket", "slicer-metrics.timer", "slicer-serve-o.socket"):
        (units / name).touch()
    found = installed.gather_units({"HOME": str(tmp_path)}).lacking
    assert dict(found) == {
        "slicer-web.service": "aiohttp", "slicer-metrics.service": "prometheus-client",
        "slicer-serve-o.service": "aiohttp",
    }  # fmt: skip
    monkeypatch.setattr(installed, "find_spec", lambda name: name)
    assert installed.gather_units({"HOME": str(tmp_path)}).lacking == ()
