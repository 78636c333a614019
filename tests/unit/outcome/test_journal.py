"""The journal's entries, byte for byte, against a datagram socket of our own."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.outcome import journal
from tests.unit import made_up

pytestmark = pytest.mark.both_pythons


def parse(data: bytes) -> dict[str, bytes]:
    """What journald reads out of a native message (each field once, as slicer sends it)."""
    fields: dict[str, bytes] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        key, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, end, rest = rest[8 : 8 + size], rest[8 + size : 9 + size], rest[9 + size :]
            assert end == b"\n"
        name = key.decode()
        fields[name] = fields[name] + b" " + value if name in fields else value  # journald allows several
        data = rest
    return fields


class Journald:
    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(5)

    def receive(self) -> dict[str, bytes]:
        data, ancillary, _flags, _address = self.socket.recvmsg(1 << 20, 64)
        if not ancillary:
            return parse(data)
        assert data == b""  # as sd_journal_sendv() does: the file alone
        fds = array.array("i")
        fds.frombytes(ancillary[0][2])
        (fd,) = fds
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            assert seals == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            return parse(os.pread(fd, os.fstat(fd).st_size, 0))
        finally:
            os.close(fd)


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    server = Journald(tmp_path / "socket")
    yield server
    server.socket.close()


def test_an_event_carries_the_job_and_finds_its_scope(journald: Journald) -> None:  # K7
    assert journal.event(
        "finished",
        job="0123456789ab",
        name="train",
        unit="slicer-0123456789ab.scope",
        fields={"exit_code": 0, "reason": "exited", "wall_s": 1.5, "signal": None},
        path=journald.path,
    )
    assert journald.receive() == {
        "MESSAGE": b"train: finished",
        "MESSAGE_ID": b"77d802f3bad84efab975f5f9026a7cd7",
        "PRIORITY": b"6",
        "SYSLOG_IDENTIFIER": b"slicer",
        "SLICER_EVENT": b"finished",
        "SLICER_JOB": b"0123456789ab",
        "SLICER_NAME": b"train",
        "SLICER_UNIT": b"slicer-0123456789ab.scope",
        "OBJECT_SYSTEMD_UNIT": b"slicer-0123456789ab.scope",
        "SLICER_EXIT_CODE": b"0",
        "SLICER_REASON": b"exited",
        "SLICER_WALL_S": b"1.5",
    }


def test_a_user_managers_scope_is_named_as_journalctl_user_unit_wants_it(journald: Journald) -> None:  # K7
    journal.event("started", job="j", name="n", unit="slicer-j.scope", manager="user", path=journald.path)
    fields = journald.receive()
    assert fields["USER_UNIT"] == b"slicer-j.scope"
    assert "OBJECT_SYSTEMD_UNIT" not in fields


def test_a_gpu_is_found_by_its_index_and_by_its_uuid(journald: Journald) -> None:  # K7
    held = made_up.lease(gpus=("GPU-a", "GPU-b"), gpu_indices=(0, 2), profile="train")
    journal.event("started", job="j", name="n", fields=journal.about(held), path=journald.path)
    fields = journald.receive()
    assert (fields["SLICER_GPU"], fields["SLICER_PROFILE"]) == (b"0 2 GPU-a GPU-b", b"train")


def test_what_waits_has_a_profile_but_no_gpu_yet(journald: Journald) -> None:  # K7
    waits = made_up.ticket(gpus=2, profile="train")
    journal.event("stopping", job="j", name="n", fields=journal.about(waits), path=journald.path)
    fields = journald.receive()
    assert fields["SLICER_PROFILE"] == b"train"
    assert "SLICER_GPU" not in fields


def test_a_job_without_a_scope_names_no_unit(journald: Journald) -> None:  # K7, plain backend
    journal.event("waiting", job="j", name="n", path=journald.path)
    assert not {"USER_UNIT", "OBJECT_SYSTEMD_UNIT", "SLICER_UNIT"} & journald.receive().keys()


@pytest.mark.parametrize(
    ("kind", "exit_code", "priority"),
    [("finished", 0, b"6"), ("finished", 1, b"5"), ("error", None, b"3"), ("stopped", None, b"4")],
)
def test_what_went_wrong_stands_out(
    journald: Journald, kind: journal.Kind, exit_code: int | None, priority: bytes
) -> None:  # K7
    journal.event(kind, job="j", name="n", fields={"exit_code": exit_code}, path=journald.path)
    assert journald.receive()["PRIORITY"] == priority


def test_every_kind_has_an_id_of_its_own() -> None:  # K7
    ids = [kind.message_id for kind in journal.KINDS.values()]
    assert len(set(ids)) == len(ids) == 15
    assert all(len(i) == 32 and set(i) <= set("0123456789abcdef") for i in ids)


@pytest.mark.parametrize(
    ("result", "priority"),
    [
        ("started", journal.INFO),
        ("fallback", journal.NOTICE),
        ("blocked", journal.NOTICE),
        ("too-large", journal.ERROR),
        ("probe-error", journal.ERROR),
    ],
)
def test_a_decision_is_as_important_as_what_it_decided(
    journald: Journald, result: str, priority: int
) -> None:  # C6, K7
    assert journal.event("routed", job="", name="n", fields={"result": result}, path=journald.path)
    fields = journald.receive()
    assert fields["PRIORITY"] == str(priority).encode()
    assert "SLICER_JOB" not in fields  # none came to be


@pytest.mark.parametrize("value", ["two\nlines", "trailing\n", "\n", "A=B\nMESSAGE=forged\n", "", "é ∑"])
def test_values_arrive_as_they_are(journald: Journald, value: str) -> None:  # K7
    assert journal.event(
        "error", job="j", name="n", message="m", fields={"reason": value}, path=journald.path
    )
    fields = journald.receive()
    assert fields["SLICER_REASON"] == value.encode()
    assert fields["MESSAGE"] == b"m"


def test_a_job_name_cannot_forge_fields(journald: Journald) -> None:  # K7
    journal.event("started", job="j", name="x\nPRIORITY=0\n\nMESSAGE=forged", path=journald.path)
    fields = journald.receive()
    assert fields["PRIORITY"] == b"6"
    assert fields["MESSAGE"] == rb"x\nPRIORITY=0\n\nMESSAGE=forged: started"


def test_undecodable_arguments_arrive_as_their_bytes(journald: Journald) -> None:  # K7
    argument = os.fsdecode(b"\xff\xfe caf\xe9")
    journal.event("started", job="j", name=argument, fields={"command": b"\xff\0\n"}, path=journald.path)
    fields = journald.receive()
    assert fields["SLICER_NAME"] == b"\xff\xfe caf\xe9"
    assert fields["SLICER_COMMAND"] == b"\xff\0\n"
    assert fields["MESSAGE"] == rb"\xff\xfe caf\xe9: started"  # people can read it


def test_a_surrogate_that_is_no_byte_is_escaped(journald: Journald) -> None:  # K7
    assert journal.event("error", job="j", name="\ud800", path=journald.path)
    assert journald.receive()["SLICER_NAME"] == rb"\ud800"


def test_what_is_too_large_for_a_datagram_goes_through_a_sealed_file(journald: Journald) -> None:  # K7
    open_before = os.listdir("/proc/self/fd")
    value = "line\n" * (1 << 20)
    assert journal.event("error", job="j", name="n", fields={"command": value}, path=journald.path)
    assert journald.receive()["SLICER_COMMAND"] == value.encode()
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


@pytest.mark.parametrize("name", ["a-b", "a=b", "é", "a" * 60, "a\n", "a b"])
def test_field_names_that_journald_would_drop_are_refused(journald: Journald, name: str) -> None:  # K7
    with pytest.raises(ValueError, match="field name"):
        journal.event("error", job="j", name="n", fields={name: "x"}, path=journald.path)


def test_no_journald_is_no_harm(tmp_path: Path) -> None:  # K7
    open_before = os.listdir("/proc/self/fd")
    assert not journal.event("started", job="j", name="n", path=str(tmp_path / "none"))
    (tmp_path / "file").touch()
    assert not journal.event("started", job="j", name="n", path=str(tmp_path / "file"))
    assert not journal.event("started", job="j", name="n", path=str(tmp_path / ("x" * 200)))
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


def test_a_dead_journald_is_no_harm(journald: Journald) -> None:  # K7
    journald.socket.close()
    assert not journal.event("started", job="j", name="n", path=journald.path)


def test_a_journald_that_does_not_read_holds_nobody_up(journald: Journald) -> None:  # K7
    sent = 0
    while journal.event("started", job="j", name="n", path=journald.path):
        sent += 1
        assert sent < 100_000
    assert sent > 0
    large = {"command": "x" * (1 << 22)}
    assert not journal.event("error", job="j", name="n", fields=large, path=journald.path)
    journald.receive()
    assert journal.event("started", job="j", name="n", path=journald.path)


def test_the_hot_path_imports_c_modules_only() -> None:
    code = """
import sys, os, __future__
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import slicer.outcome.journal
slicer.outcome.journal.event("started", job="j", name="n", path="/nonexistent/socket")
print(*sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-IS", "-c", code, str(Path(journal.__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own = {f"slicer.{name}" for name in ("version", "outcome", "outcome.journal", "record", "text")}
    assert set(done.stdout.split()) <= {"_socket", "errno", "slicer"} | own
