"""Users who mean harm, and what they try.

PYTEST_DONT_REWRITE: tests import names from here before pytest loads it as a plugin.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import LONGEST_S
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Gate, Job, Slicer
from tests.systemd.helpers.users import User

HEAVY = ("-p", "heavy")
PUBLIC = ("/run/lock", "/dev/shm")
THIRD_UID = 4242
# Somebody with a uid and nothing else: no home, no session, no group.
THIRD = ("setpriv", f"--reuid={THIRD_UID}", f"--regid={THIRD_UID}", "--clear-groups")
ALICE = ("setpriv", "--reuid=alice", "--regid=alice", "--init-groups")
BOB = ("setpriv", "--reuid=bob", "--regid=bob", "--init-groups")

# Tries each act and prints the names of those that were let through.
TRY = """\
import fcntl, os, sys
tried = 0
def attempt(what, act):
    global tried
    tried += 1
    try:
        act()
    except PermissionError:
        return
    print(what, flush=True)
"""
# Who says this has lived to the end of its attempts. Of who is silent nobody knows what it would have done.
LAST_WORD = "tried all"
_SAY_IT = f'\nprint("{LAST_WORD}:", tried, flush=True)\n'


def attempts(who: tuple[str, ...], code: str, *arguments: object) -> str:
    """What of the code's attempts succeeds for somebody; fails where one of them was not made."""
    command = [*who, sys.executable, "-I", "-S", "-c", TRY + code + _SAY_IT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr
    said, last_word, tried = done.stdout.rpartition(f"{LAST_WORD}:")
    assert last_word, f"the attacker has not come to the end of its attempts: {done}"
    assert int(tried) >= code.count("attempt("), f"not all was tried: {done}"
    return said


def owned(uid: int) -> Iterator[Path]:
    """A user's ledgers in the places that are open to all."""
    for public in PUBLIC:
        for path in sorted(Path(public).glob(f"slicer-{uid}*")):
            if path.lstat().st_uid == uid:
                yield path


def ledger_of(uid: int) -> Path:
    """The one ledger of a user who has run a job."""
    (path,) = [Path(SYSTEM_LEDGER)] if uid == 0 else owned(uid)
    return path


def public_place() -> Path:
    """Where users' ledgers are made."""
    sticky = [path for path in PUBLIC if os.stat(path).st_mode & 0o1002 == 0o1002]
    return Path(sticky[0])


def contents(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Mode, owner, group and bytes of everything below."""
    found = {}
    for path in sorted([directory, *directory.rglob("*")]):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (info.st_mode, info.st_uid, info.st_gid, data)
    return found


@pytest.fixture
def fresh_public_places(alice: User, bob: User) -> Iterator[None]:
    """Each test finds the places that are open to all as after a boot."""
    yield
    for uid in (alice.uid, bob.uid, THIRD_UID):
        for path in owned(uid):
            shutil.rmtree(path)


def hold(slicer: Slicer, someone: User, *options: str) -> tuple[Job, Gate]:
    """A heavy job of somebody's that is up, and its gate."""
    gate = slicer.gate()
    job = slicer.start(*HEAVY, *options, "--", "sh", "-c", f"echo up; : < {gate}", via=someone.via)
    job.said("up")
    return job, gate


def command(someone: User, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of slicer's, by somebody."""
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "CPU_RUN_SLOTS": "1"}
    return subprocess.run(
        [*someone.via, "slicer", *words], capture_output=True, text=True, errors="surrogateescape", env=env,
        timeout=LONGEST_S,
    )  # fmt: skip


def everything(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr
