"""What an account on the machine is good for against jobs of others: the list in docs/dev/attacks.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.systemd.helpers.attackers import (
    ALICE,
    BOB,
    HEAVY,
    THIRD,
    THIRD_UID,
    TRY,
    attempts,
    contents,
    hold,
    ledger_of,
    public_place,
)  # fmt: skip
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.queues import Queues
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.attackers"]
pytestmark = pytest.mark.systemd


@pytest.fixture
def slicer(public_slicer: Slicer, fresh_public_places: None) -> Slicer:
    return public_slicer


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A directory that is root's, with a file in it: nothing of it may change."""
    place = tmp_path / "victim"
    place.mkdir(mode=0o700)
    (place / "precious").write_text("precious\n")
    before = contents(place)
    yield place
    assert contents(place) == before


# -- directories ---------------------------------------------------------------------------------------------

REACH = """
base = sys.argv[1]
attempt("list", lambda: os.listdir(base))
attempt("lock", lambda: fcntl.flock(os.open(base + "/lock", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))
attempt("write the version", lambda: os.open(base + "/version", os.O_WRONLY))
attempt("make a lease", lambda: os.open(base + "/leases/0123456789ab", os.O_WRONLY | os.O_CREAT))
attempt("make a ticket", lambda: os.open(base + "/tickets/x", os.O_WRONLY | os.O_CREAT))
attempt("rename leases", lambda: os.rename(base + "/leases", base + "/gone"))
attempt("rename all", lambda: os.rename(base, base + ".gone"))
attempt("link into it", lambda: os.symlink("/etc", base + "/link"))
attempt("give its lock another name", lambda: os.link(base + "/lock", "/var/tmp/lock-of-another"))
attempt("chmod", lambda: os.chmod(base, 0o777))
attempt("remove", lambda: os.rmdir(base))
"""


@pytest.mark.parametrize("who", [ALICE, BOB, THIRD], ids=["alice", "bob", "third"])
def test_nobody_reaches_into_roots_ledger(slicer: Slicer, who: tuple[str, ...]) -> None:  # S1, S2, S4, S9
    slicer.run(*HEAVY, "--", "true")  # leaves the marks of the notices shown once per boot
    gate = slicer.gate()
    job = slicer.hold(gate, *HEAVY)
    before = contents(ledger_of(0))
    assert attempts(who, REACH, ledger_of(0)) == ""
    assert contents(ledger_of(0)) == before
    assert slicer.is_busy(*HEAVY)
    gate.open()
    assert job.end().code == 0


@pytest.mark.parametrize("who", [BOB, THIRD], ids=["bob", "third"])
def test_nobody_reaches_into_a_users_ledger(
    slicer: Slicer, alice: User, who: tuple[str, ...]
) -> None:  # S1, S2, S4, S9
    slicer.run(*HEAVY, "--", "true", via=alice.via)  # leaves the marks of the notices shown once per boot
    job, gate = hold(slicer, alice)
    ledger = ledger_of(alice.uid)
    before = contents(ledger)
    assert attempts(who, REACH, ledger) == ""
    assert contents(ledger) == before
    gate.open()
    assert job.end().code == 0


@pytest.mark.parametrize("way", ["his directory", "his link", "open to all", "below his directory"])
def test_root_uses_no_state_directory_that_another_could_exchange(
    slicer: Slicer, victim: Path, way: str
) -> None:  # S1, S2
    place = slicer.path("hostile")
    if way == "his link":
        os.symlink(victim, place)
        os.chown(place, THIRD_UID, THIRD_UID, follow_symlinks=False)
    else:
        place.mkdir()
        place.chmod(0o777 if way == "open to all" else 0o755)
        if way != "open to all":
            os.chown(place, THIRD_UID, THIRD_UID)
    state = place if way in ("his directory", "his link") else place / "state"
    done = slicer.run(*HEAVY, "--", "true", env={"SLICER_STATE_DIR": str(state)})
    assert done.code == 125, done
    assert "hostile" in done.stderr or "/var/tmp" in done.stderr
    assert way == "his link" or not list(place.iterdir())


@pytest.mark.parametrize(
    "name", ["status.txt.new", "status.txt.tmp", "status.txt", "job0001.log", "journal.jsonl"]
)
def test_a_link_in_the_log_directory_leads_roots_queue_nowhere(
    slicer: Slicer, victim: Path, name: str
) -> None:  # S6
    queues = Queues(slicer)
    queues.write("[profile=light] echo precious no more")
    queues.log_dir.mkdir(mode=0o755)
    os.symlink(victim / "precious", queues.log_dir / name)
    queues.start().end()  # the fixture sees that the victim is as before; the queue may refuse


@pytest.mark.parametrize("way", ["his directory", "open to all"])
def test_root_keeps_no_queue_in_a_directory_that_another_can_write(
    slicer: Slicer, victim: Path, way: str
) -> None:  # S6
    queues = Queues(slicer)
    queues.write("[profile=light] echo precious no more")
    queues.log_dir.mkdir()
    os.symlink(victim / "precious", queues.log_dir / "job0001.log")
    queues.log_dir.chmod(0o777 if way == "open to all" else 0o755)
    if way == "his directory":
        os.chown(queues.log_dir, THIRD_UID, THIRD_UID)
    done = queues.run()
    assert done.code == 125, done
    assert str(queues.log_dir) in done.stderr


# -- what a job inherits -------------------------------------------------------------------------------------

INHERITED = """
import stat
ours, unlocked = sys.argv[1], 0
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        path, mode = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_mode
    except OSError:
        continue
    if not path.startswith(ours):
        continue
    def write():
        try:
            os.pwrite(fd, b"SLICER_LEASE=1\\nJOB=../../../" + sys.argv[2].encode() + b"\\n", 0)
        except OSError as error:
            raise PermissionError from error
    def truncate():
        try:
            os.ftruncate(fd, 0)
        except OSError as error:
            raise PermissionError from error
    attempt(f"write {path}", write)
    attempt(f"truncate {path}", truncate)
    attempt(f"open {path} anew", lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
    if stat.S_ISREG(mode):
        fcntl.flock(fd, fcntl.LOCK_UN)  # what is inherited can be unlocked; that must be good for nothing
        unlocked += 1
with open(sys.argv[3], "w") as there:
    print(unlocked, tried, file=there, flush=True)
open(sys.argv[4]).read()
"""


def has_tried(there: Path) -> None:
    """Wait for the last word of who tries what it inherited: it unlocked something, and tried the rest."""
    words = until(lambda: there.read_text().split() if there.exists() else [], "it has tried")
    assert min(map(int, words)) > 0, words


@pytest.mark.parametrize("ending", ["as usual", "supervisor killed"])
def test_a_program_that_gave_up_root_can_do_nothing_with_what_it_inherited(
    slicer: Slicer, victim: Path, ending: str
) -> None:  # S3
    gate, there = slicer.gate(), slicer.path("there")
    arguments = ("/run/slicer", victim / "precious", there, gate)
    code = TRY + INHERITED
    drop = ("runuser", "-u", "bob", "--")
    job = slicer.start(*HEAVY, "--", *drop, sys.executable, "-I", "-S", "-c", code, *map(str, arguments))
    has_tried(there)
    assert job.stdout == ""
    assert slicer.is_busy(*HEAVY)  # the scope holds the lease, whatever was unlocked
    if ending == "supervisor killed":
        slicer.dirty = True
        job.kill()
        job.popen.wait()
        assert slicer.is_busy(*HEAVY)
    gate.open()
    if ending == "as usual":
        assert job.end().code == 0
    until(lambda: not slicer.is_busy(*HEAVY), "it is over")


# -- places open to all --------------------------------------------------------------------------------------

SQUAT = """
base, way = sys.argv[1:]
if way == "directory":
    os.mkdir(base); os.chmod(base, 0o777)
elif way == "file":
    open(base, "w").close()
elif way == "link":
    os.symlink("/home/alice", base)
elif way == "FIFO":
    os.mkfifo(base, 0o666)
"""


@pytest.mark.parametrize("way", ["directory", "file", "link", "FIFO"])
def test_a_squatted_name_locks_nobody_out(slicer: Slicer, alice: User, way: str) -> None:  # S12
    name = public_place() / f"slicer-{alice.uid}"
    home = contents(alice.home)
    attempts(THIRD, SQUAT, name, way)
    try:
        job, gate = hold(slicer, alice)
        ledger = ledger_of(alice.uid)
        assert ledger.name.startswith(f"{name.name}.")
        assert ledger.stat().st_mode & 0o7777 == 0o700
        assert slicer.run("--no-wait", *HEAVY, "--", "true", via=alice.via).code == 75
        assert attempts(THIRD, REACH, ledger) == ""
        if not name.is_symlink() and name.is_dir():  # with fs.protected_symlinks even root may not follow it
            assert not list(name.iterdir())
    finally:
        shutil.rmtree(name) if way == "directory" else name.unlink()
    # The squatter has gone: her jobs still meet in the one ledger.
    assert slicer.run("--no-wait", *HEAVY, "--", "true", via=alice.via).code == 75
    gate.open()
    assert job.end().code == 0
    assert ledger_of(alice.uid) == ledger
    assert {path for path in contents(alice.home) if ".local" not in path} == {
        path for path in home if ".local" not in path
    }


FLOOD = """
for number in range(3000):
    os.mkdir(f"{sys.argv[1]}.{number:012x}")
"""


def test_a_flood_of_names_like_hers_locks_nobody_out(slicer: Slicer, alice: User) -> None:  # S9, S12
    name = public_place() / f"slicer-{alice.uid}"
    attempts(THIRD, f"os.mkdir(sys.argv[1])\n{FLOOD}", name)
    try:
        job, gate = hold(slicer, alice)
        assert slicer.run("--no-wait", *HEAVY, "--", "true", via=alice.via).code == 75
        gate.open()
        assert job.end().code == 0
    finally:
        for path in name.parent.glob(f"{name.name}*"):
            if path.stat().st_uid == THIRD_UID:
                path.rmdir()


FILL = """
import errno
with open(sys.argv[1], "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 16))
    except OSError as error:
        assert error.errno == errno.ENOSPC
"""


def test_a_full_public_place_is_said_and_takes_nothing_from_what_runs(
    slicer: Slicer, alice: User
) -> None:  # S9
    filler = public_place() / "filler"
    if os.statvfs(filler.parent).f_blocks * os.statvfs(filler.parent).f_frsize > 64 << 20:
        pytest.skip(f"{filler.parent} is too large to fill")
    job, gate = hold(slicer, alice)
    attempts(THIRD, FILL, filler)
    try:
        done = slicer.run("--no-wait", *HEAVY, "--", "true", via=alice.via)
        assert done.code in (75, 125), done  # refused, never let in
        assert "Traceback" not in done.stderr
        assert slicer.run(*HEAVY, "--", "true").code == 0  # root's ledger is elsewhere
    finally:
        filler.unlink()
    assert slicer.run("--no-wait", *HEAVY, "--", "true", via=alice.via).code == 75
    gate.open()
    assert job.end().code == 0


def test_a_lock_on_a_public_place_stops_nobody(slicer: Slicer, alice: User) -> None:  # S9
    lock = "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)"
    code = f"import fcntl, os, sys, time; {lock}; print(1, flush=True); time.sleep(1000)"
    command = [*THIRD, sys.executable, "-c", code, str(public_place())]
    locker = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert locker.stdout is not None
        assert locker.stdout.readline()
        assert slicer.run("--no-wait", *HEAVY, "--", "true", via=alice.via).code == 0
        assert slicer.run("--no-wait", *HEAVY, "--", "true").code == 0
        assert locker.poll() is None  # it has held its lock all the time
    finally:
        locker.kill()
        locker.communicate()
