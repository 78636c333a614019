"""What is not the file that it should be is refused: by a message, never by a crash, a hang or a guess."""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.share_box import HEAD, LIVE, SIZE, ShareBox, job_content

pytest_plugins = ["tests.process.share_fixtures"]

ENV = {"SLICER_SHARE_QUANTUM_MS": "3", "SLICER_SHARE_DRAIN_MS": "20"}
JOB_ID = "0123456789ab"


def patched(content: bytes, at: int, data: bytes) -> bytes:
    return content[:at] + data + content[at + len(data) :]


def u32(value: int) -> bytes:
    return struct.pack("=I", value & 0xFFFFFFFF)


GOOD = job_content(JOB_ID, wants="both", limit_mib=1000)
WRONG_JOB_FILES = {
    "magic": patched(GOOD, 0, b"x"),
    "version": patched(GOOD, 8, u32(2)),
    "size": patched(GOOD, 12, u32(SIZE + 1)),
    "id without an end": patched(GOOD, 16, b"0" * 16),
    "wants": patched(GOOD, 32, u32(4)),
    "priority": patched(GOOD, 36, u32(-101)),
    "no gpu": patched(GOOD, 40, u32(0)),
    "gpus": patched(GOOD, 40, u32(17)),
    "uuid without an end": patched(GOOD, 48, b"G" * 48),
    "rows": patched(GOOD, HEAD.size + 16 * 8 + 4, u32(257)),
    "empty": b"",
    "cut": GOOD[:-1],
    "longer": GOOD + b"\0",
    "a header only": GOOD[: HEAD.size],
}


@pytest.mark.parametrize("what", WRONG_JOB_FILES)
def test_a_job_file_that_makes_no_sense_is_refused(share: ShareBox, what: str) -> None:  # X7
    path = share.share / JOB_ID
    path.write_bytes(WRONG_JOB_FILES[what])
    path.chmod(0o600)
    client = share.start(path)
    assert client.ask("init").code == 304
    assert client.said().startswith("slicer: ")
    assert client.said().count("\n") == 1
    assert client.end() == 0


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o600)


def _of_another(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    os.chown(path, 65534, -1)


WRONG_PLACES: dict[str, Callable[[Path], object]] = {
    "a symbolic link": _link,
    "a pipe": _fifo,
    "a directory": _directory,
    "of another user": _of_another,
    "open to the group": lambda path: path.chmod(0o640),
    "open to all": lambda path: path.chmod(0o606),
    "with a second name": lambda path: os.link(path, path.with_name("second")),
    "not there": lambda path: path.unlink(),
}


@pytest.mark.parametrize("what", WRONG_PLACES)
def test_a_job_file_that_another_may_have_made_is_refused(share: ShareBox, what: str) -> None:  # X7
    path = share.share / JOB_ID
    path.write_bytes(GOOD)
    path.chmod(0o600)
    WRONG_PLACES[what](path)
    client = share.start(path)
    assert client.ask("init").code == 304
    assert client.said().count("\n") == 1


def made_arena(share: ShareBox) -> bytes:
    """An arena as the library makes it."""
    client = share.ready(share.job(), env=ENV)
    client.do("spin 100", "sync")
    client.end()
    return share.arena.read_bytes()


def lock_is_off(share: ShareBox) -> None:
    job = share.job()
    client = share.ready(job, env=ENV)
    client.do("work 100 5 2")
    assert job.told().troubles == {"no-arena"}
    assert client.said().count("\n") == 1
    assert client.end() == 0


@pytest.mark.parametrize("at", range(0, 16, 4))
def test_an_arena_with_a_wrong_header_is_refused(share: ShareBox, at: int) -> None:  # D1
    good = made_arena(share)
    share.arena.write_bytes(patched(good, at, bytes([good[at] ^ 0x41])))
    lock_is_off(share)


@pytest.mark.parametrize("size", [1, 64, -1, 1 << 20])
def test_an_arena_of_another_size_is_refused(share: ShareBox, size: int) -> None:  # D1
    good = made_arena(share)
    share.arena.write_bytes(good[:size] if size < len(good) else good.ljust(size, b"\0"))
    lock_is_off(share)


@pytest.mark.parametrize("what", [what for what in WRONG_PLACES if what != "not there"])
def test_an_arena_that_another_may_have_made_is_refused(share: ShareBox, what: str) -> None:  # D1
    made_arena(share)
    WRONG_PLACES[what](share.arena)
    lock_is_off(share)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_written_into_the_files_crashes_or_stops_a_job(share: ShareBox, seed: int) -> None:  # D1 X7
    """While processes use them. What the jobs then do to each other does not matter here."""
    made_arena(share)
    chance = random.Random(seed)
    jobs = [share.job(wants="both", limit_mib=70000) for _ in range(3)]
    clients = [share.ready(job, env=ENV) for job in jobs]
    for client in clients:
        client.tell("threads 3 work 100 60 3")
    done = threading.Event()

    def scribble() -> None:
        while not done.is_set():
            path, least = chance.choice([(share.arena, 28), (jobs[0].path, HEAD.size + LIVE.size)])
            with path.open("r+b") as file:
                file.seek(chance.randrange(least, path.stat().st_size - 8))
                file.write(
                    chance.choice([b"\xff" * 8, chance.randbytes(8), b"\0" * 8, u32(chance.randrange(600))])
                )

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for client in clients:
            assert client.hear().words == ["3"]
            assert client.ask("alloc linear 1").code in {0, 2}
    finally:
        done.set()
        thread.join()
    for client in clients:
        assert client.end() == 0
