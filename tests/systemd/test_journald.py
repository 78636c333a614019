"""Events reach a real journald, and journalctl finds them the way people look for them."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slicer.outcome import journal
from tests.patience import until

pytestmark = pytest.mark.systemd

SRC = str(Path(journal.__file__).parents[2])


@pytest.fixture
def job() -> str:
    return uuid.uuid4().hex[:12]


def journalctl(*args: str, prefix: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The matching entries, once journald has written what it was sent."""
    subprocess.run(["journalctl", "--sync"], check=True)
    command = [*prefix, "journalctl", "--no-pager", "--quiet", "--all", "--output=json", *args]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.core
def test_every_event_of_a_job_is_found_by_its_job_unit_and_identifier(job: str) -> None:  # K7
    unit = f"slicer-{job}.scope"
    for kind in journal.KINDS:
        # journald's socket holds 10 datagrams where nobody raised net.unix.max_dgram_qlen.
        sent = partial(journal.event, kind, job=job, name="train", unit=unit, fields={"exit_code": 3})
        until(sent, f"journald takes {kind}")
    kinds = list(journal.KINDS)
    for args in ([f"SLICER_JOB={job}"], ["-u", unit], ["-t", "slicer", f"SLICER_UNIT={unit}"]):
        assert [entry["SLICER_EVENT"] for entry in journalctl(*args)] == kinds
    (finished,) = journalctl(f"SLICER_JOB={job}", f"MESSAGE_ID={journal.KINDS['finished'].message_id}")
    assert finished["MESSAGE"] == "train: finished"
    assert finished["PRIORITY"] == "5"
    assert finished["SLICER_EXIT_CODE"] == "3"
    assert finished["SYSLOG_IDENTIFIER"] == "slicer"
    assert finished["_TRANSPORT"] == "journal"


@pytest.mark.core
def test_a_users_events_are_found_by_the_user_unit(job: str) -> None:  # K7
    alice = pwd.getpwnam("alice")
    unit = f"slicer-{job}.scope"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from slicer.outcome import journal;"
        "sys.exit(not journal.event('started', job=sys.argv[2], name='n', unit=sys.argv[3], manager='user'))"
    )
    as_alice = ("setpriv", f"--reuid={alice.pw_uid}", "--regid=systemd-journal", "--clear-groups")
    subprocess.run([*as_alice, sys.executable, "-c", code, SRC, job, unit], check=True)
    for args in (["--user-unit", unit], [f"SLICER_JOB={job}"]):
        assert [entry["SLICER_UNIT"] for entry in journalctl(*args, prefix=as_alice)] == [unit]


def test_odd_values_arrive_whole(job: str) -> None:  # K7
    name = os.fsdecode(b"two\nlines \xff")
    large = "x\n" * (1 << 19)
    assert journal.event("error", job=job, name=name, fields={"command": large})
    (entry,) = journalctl(f"SLICER_JOB={job}")
    assert bytes(entry["SLICER_NAME"]) == b"two\nlines \xff"
    assert entry["SLICER_COMMAND"] == large
    assert entry["MESSAGE"] == r"two\nlines \xff: slicer failed"
