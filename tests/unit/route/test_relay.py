"""What a job writes is passed on as it is, and a full GPU is recognised in it. (C8)"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.gpu.oom import HEAD_BYTES, TAIL_BYTES, Excerpt
from slicer.route.relay import ENDING, Relay, Relayed
from tests.patience import until

pytestmark = pytest.mark.both_pythons

OOM = b"torch.OutOfMemoryError: CUDA out of memory."


@pytest.fixture(autouse=True)
def blocked() -> Iterator[None]:
    """The signals that end slicer, as they are when a relay is asked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def relay_to() -> Iterator[Callable[..., Relay]]:
    made: list[Relay] = []

    def make(sink: int, *, is_droppable: bool = False) -> Relay:
        made.append(Relay(sink, is_droppable=is_droppable))
        return made[-1]

    yield make
    for relay in made:
        relay.close()


def read_all(fd: int) -> bytes:
    found = b""
    while data := os.read(fd, 1 << 16):
        found += data
    return found


def test_everything_arrives_unchanged_before_the_answer(
    relay_to: Callable[..., Relay], tmp_path: Path
) -> None:
    """Whoever asks has no need to wait for anything more."""
    data = os.urandom(3 << 20)
    with (tmp_path / "log").open("wb") as log:
        relay = relay_to(log.fileno())
        pid = os.fork()
        if not pid:  # more than a pipe holds
            view = memoryview(data)
            while view:
                view = view[os.write(relay.fd, view) :]
            os._exit(0)
        os.waitpid(pid, 0)
        assert relay.seen() == Relayed(False, False, 0)
    assert (tmp_path / "log").read_bytes() == data


@pytest.mark.parametrize(
    ("written", "expected"),
    [(b"", Relayed(False, True, 0)), (b"hello\n", Relayed(False, False, 0)), (OOM, Relayed(True, False, 0))],
)
def test_it_tells_what_passed(
    relay_to: Callable[..., Relay], tmp_path: Path, written: bytes, expected: Relayed
) -> None:
    with (tmp_path / "log").open("wb") as log:
        relay = relay_to(log.fileno())
        os.write(relay.fd, written)
        assert relay.seen() == expected


def test_who_keeps_his_end_open_keeps_nobody_waiting_and_is_heard(relay_to: Callable[..., Relay]) -> None:
    out, sink = os.pipe()
    relay = relay_to(sink)
    theirs = os.dup(relay.fd)
    os.write(theirs, b"first\n")
    assert relay.seen() is not None
    relay.close = lambda: None  # type: ignore[method-assign]  # it is closed here, before the fixture does it
    Relay.close(relay)
    os.close(sink)
    os.write(theirs, b"late\n")
    os.close(theirs)
    assert read_all(out) == b"first\nlate\n"
    os.close(out)
    os.waitpid(relay._pid, 0)


def test_a_command_whose_reader_is_gone_gets_sigpipe(relay_to: Callable[..., Relay]) -> None:
    out, sink = os.pipe()
    relay = relay_to(sink)
    os.close(out)

    def is_broken() -> bool:
        try:
            os.write(relay.fd, b"x")
        except BrokenPipeError:
            return True
        return False

    assert until(is_broken, "the relay has closed its end")
    assert relay.seen() == Relayed(False, False, 32)
    os.close(sink)


@pytest.mark.parametrize("is_droppable", [True, False])
def test_a_full_disk_loses_log_lines_but_no_result(
    relay_to: Callable[..., Relay], is_droppable: bool, tmp_path: Path
) -> None:
    """What slicer may lose, as stderr in a file, stops no job. For all else the command must hear of it."""
    import resource

    with (tmp_path / "log").open("wb") as log:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
            relay = relay_to(log.fileno(), is_droppable=is_droppable)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        os.write(relay.fd, b"123456789")
        if is_droppable:
            os.write(relay.fd, OOM)
            assert relay.seen() == Relayed(True, False, 27)
        else:
            until(lambda: raises_epipe(relay.fd), "the relay has closed its end")


def raises_epipe(fd: int) -> bool:
    try:
        os.write(fd, b"x")
    except BrokenPipeError:
        return True
    return False


def test_a_reader_that_sleeps_keeps_nobody_from_ending(relay_to: Callable[..., Relay]) -> None:
    """Ctrl-C, while a pager has the output and does not read."""
    out, sink = os.pipe()
    os.write(sink, b"x" * fcntl.fcntl(sink, fcntl.F_GETPIPE_SZ))  # full
    relay = relay_to(sink)
    os.write(relay.fd, b"more\n")
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    assert relay.seen() is None
    assert signal.sigpending() & ENDING == set()  # it was for this
    os.close(sink)
    os.close(out)


def test_a_relay_that_was_killed_knows_nothing(relay_to: Callable[..., Relay]) -> None:
    out, sink = os.pipe()
    relay = relay_to(sink)
    os.kill(relay._pid, signal.SIGKILL)
    os.waitpid(relay._pid, 0)
    assert relay.seen() is None
    os.close(sink)
    os.close(out)


def test_at_a_terminal_the_command_has_one_that_changes_nothing(relay_to: Callable[..., Relay]) -> None:
    real, sink = os.openpty()
    fcntl.ioctl(sink, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    relay = relay_to(sink)
    assert os.isatty(relay.fd)
    assert os.get_terminal_size(relay.fd) == (111, 33)
    os.write(relay.fd, b"50%\r100%\n\x1b[2K\xff" + OOM)
    assert relay.seen() == Relayed(True, False, 0)
    # The only change is the one that the real terminal makes.
    assert os.read(real, 4096) == b"50%\r100%\r\n\x1b[2K\xff" + OOM
    os.close(sink)
    os.close(real)


def test_its_size_follows_the_terminals(relay_to: Callable[..., Relay]) -> None:
    real, sink = os.openpty()
    relay = relay_to(sink)
    fcntl.ioctl(sink, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 70, 0, 0))
    before = signal.signal(signal.SIGWINCH, signal.SIG_IGN)  # it goes to the whole group
    try:
        os.kill(relay._pid, signal.SIGWINCH)
        until(lambda: os.get_terminal_size(relay.fd) == (70, 20), "the size is the new one")
    finally:
        signal.signal(signal.SIGWINCH, before)
    os.close(sink)
    os.close(real)


def test_without_pseudo_terminals_it_is_a_pipe(
    relay_to: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sink = os.openpty()

    def none() -> tuple[int, int]:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "openpty", none)
    relay = relay_to(sink)
    os.write(relay.fd, b"hello")
    assert relay.seen() == Relayed(False, False, 0)
    assert os.read(real, 64) == b"hello"
    os.close(sink)
    os.close(real)


def test_it_keeps_no_other_descriptor_open(relay_to: Callable[..., Relay]) -> None:
    """Somebody may wait for the other end of a pipe, or for a lock."""
    out, end = os.pipe()
    _, sink = os.pipe()
    relay_to(sink)
    os.close(end)
    assert os.read(out, 1) == b""  # it would hang
    os.close(out)


# -- what of a long text is looked at ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0, 0, True),
        (HEAD_BYTES - len(OOM), 10 << 20, True),
        (HEAD_BYTES, 10 << 20, False),
        (10 << 20, TAIL_BYTES - len(OOM), True),
        (10 << 20, TAIL_BYTES, False),
        (HEAD_BYTES - 20, TAIL_BYTES + 20 - len(OOM), True),  # across the edge, where nothing lies between
    ],
)
@pytest.mark.parametrize("piece", [1 << 16, 4095])
def test_the_beginning_and_the_end_count(before: int, after: int, expected: bool, piece: int) -> None:
    text = b"x" * before + OOM + b"y" * after
    excerpt = Excerpt()
    for at in range(0, len(text), piece):
        excerpt.add(text[at : at + piece])
    assert excerpt.tells_of_oom() is expected
