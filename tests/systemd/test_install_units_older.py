"""Units installed over a version that shared the ledger with a group, one of whose members means harm."""

from __future__ import annotations

import errno
import grp
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.backend.install_units import plan, remove
from tests import older_units
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import user

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

LEDGER, HISTORY = Path("/run/slicer"), Path("/var/lib/slicer")
LIB = Path("/usr/local/lib")
NOT_ALLOWED = errno.errorcode[errno.EACCES]

# The member: plants what may lead root astray, holds on to all directories, and tries them all when told so.
MEMBER = """
import errno, os, sys
base, target = sys.argv[1:]
os.umask(0)
for path in ("sim-1x24G", "sim-1x24G/leases", "sim-1x24G/tickets", "mine"):
    os.mkdir(f"{base}/{path}")
os.rename(f"{base}/leases", f"{base}/old")
os.symlink("/etc", f"{base}/leases")
os.symlink(target, f"{base}/sim-2x24G")
os.symlink(target, f"{base}/sim-1x24G/bells")
open(f"{base}/old/3f2a9c01b7de", "w").close()
held = [os.open(directory, os.O_RDONLY) for directory, _, _ in os.walk(base)]
print("planted", flush=True)
sys.stdin.readline()

def attempt(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

told = []
for fd in held:
    told.append(attempt(lambda: os.mkdir("new", dir_fd=fd)))
    told.append(attempt(lambda: os.symlink("/etc", "new", dir_fd=fd)))
    told.append(attempt(lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd)))
    told.append(attempt(lambda: os.rename("leases", "new", src_dir_fd=fd, dst_dir_fd=fd)))
    told.append(attempt(lambda: os.fchmod(fd, 0o777)))
print(*told, flush=True)
"""


@pytest.fixture
def older() -> Iterator[tuple[Path, Path]]:
    """An older version is installed, and alice is in its group: its two files."""
    shutil.rmtree(LEDGER, ignore_errors=True)
    files = older_units.install(LIB)
    systemctl.output("systemd-sysusers", "slicer.conf")
    systemctl.output("systemd-tmpfiles", "--create", "slicer.conf")
    systemctl.output("gpasswd", "--add", "alice", "slicer")
    assert stat.S_IMODE(LEDGER.stat().st_mode) == 0o2770
    yield files
    for path in files:
        path.unlink(missing_ok=True)
    if has_group():
        systemctl.output("groupdel", "slicer")
    remove(plan(user_delegation=True))
    shutil.rmtree(LEDGER)
    # The history of other tests stays.
    os.chown(HISTORY, 0, 0)
    HISTORY.chmod(0o700)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A directory of root's that the member would like to have."""
    made = tmp_path / "roots"
    made.mkdir(mode=0o755)
    (made / "leases").mkdir(mode=0o755)
    return made


@pytest.fixture
def member(older: tuple[Path, Path], target: Path) -> Iterator[subprocess.Popen[str]]:
    command = (*user("alice").identity, "/usr/bin/python3", "-c", MEMBER, LEDGER, target)
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert popen.stdout is not None
    assert popen.stdout.readline() == "planted\n"
    yield popen
    popen.kill()
    popen.communicate()


def has_group() -> bool:
    return "slicer" in [group.gr_name for group in grp.getgrall()]


def install_units(*options: str) -> str:
    return systemctl.output("slicer", "install", *options)


def access(path: Path) -> tuple[int, int, int, int]:
    info = path.lstat()
    return info.st_mode, info.st_uid, info.st_gid, info.st_ctime_ns


# S1, S2
@pytest.mark.core
@pytest.mark.parametrize("options", [(), ("--remove",)], ids=["install", "remove"])
def test_what_a_group_could_write_is_roots_alone_again(
    older: tuple[Path, Path], member: subprocess.Popen[str], target: Path, options: tuple[str, ...]
) -> None:
    before = [access(path) for path in (target, target / "leases")]
    etc = Path("/etc").stat()
    said = install_units(*options)
    assert not [path for path in older if path.exists()]
    assert not has_group()
    for told in (f"closed  {LEDGER} ", f"closed  {HISTORY} ", "ran: groupdel slicer"):
        assert told in said
    directories = [Path(path) for path, _, _ in os.walk(LEDGER)]
    assert {path.name for path in directories} >= {"slicer", "old", "tickets", "sim-1x24G", "leases", "mine"}
    for path in (*directories, HISTORY):
        mode, uid, gid, _ = access(path)
        assert (path, stat.S_IMODE(mode), uid, gid) == (path, 0o700, 0, 0)
    # Nothing was followed.
    assert os.readlink(LEDGER / "leases") == "/etc"
    now = Path("/etc").stat()
    assert (now.st_mode, now.st_uid, now.st_gid) == (etc.st_mode, etc.st_uid, etc.st_gid)
    assert [access(path) for path in (target, target / "leases")] == before
    told, _ = member.communicate("go\n")
    outcomes = told.split()
    assert len(outcomes) == 5 * len(directories)
    assert set(outcomes) <= {NOT_ALLOWED, "EPERM"}, outcomes
    assert "closed" not in install_units(*options)


# S1, K5
def test_a_dry_run_says_what_would_be_taken_back(older: tuple[Path, Path]) -> None:
    before = [access(path) for path in (LEDGER, HISTORY, *older)]
    for options in ((), ("--remove",)):
        said = install_units("--dry-run", *options)
        for path in older:
            assert [
                line for line in said.splitlines() if line.startswith("would remove") and str(path) in line
            ]
        for told in ("would run  groupdel slicer", f"would close  {LEDGER} ", f"would close  {HISTORY} "):
            assert told in said
    assert [access(path) for path in (LEDGER, HISTORY, *older)] == before
    assert has_group()


# K5
def test_an_edited_file_stays_and_so_does_the_group_in_it(older: tuple[Path, Path]) -> None:
    sysusers, tmpfiles = older
    sysusers.write_text(sysusers.read_text() + "m bob slicer\n")
    assert "groupdel" not in install_units()
    assert (sysusers.exists(), tmpfiles.exists(), has_group()) == (True, False, True)
    assert stat.S_IMODE(LEDGER.stat().st_mode) == 0o700
    assert "ran: groupdel slicer" in install_units("--force")
    assert not has_group()


# S1: before the units are installed, and afterwards
def test_root_uses_the_ledger_only_when_it_is_closed(older: tuple[Path, Path], slicer: Slicer) -> None:
    done = slicer.run("-p", "heavy", "--", "true")
    assert (done.code, "slicer install" in done.stderr) == (125, True), done
    install_units()
    assert slicer.run("-p", "heavy", "--", "true").code == 0


# S1, S2
def test_root_says_which_link_is_in_its_way(member: subprocess.Popen[str], slicer: Slicer) -> None:
    install_units()
    done = slicer.run("-p", "heavy", "--", "true")
    assert done.code == 125, done
    assert f"{LEDGER}/leases: " in done.stderr
    assert "symbolic link" in done.stderr
    (LEDGER / "leases").unlink()
    assert slicer.run("-p", "heavy", "--", "true").code == 0
