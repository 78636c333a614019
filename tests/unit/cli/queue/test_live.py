"""A queue on a terminal, in a file, in a pipe: what is seen, and that nobody who looks can hurt it."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import io
import json
import os
import re
import select
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from slicer.cli.queue import live as live_module
from slicer.cli.queue.live import Live
from slicer.cli.queue.show import Lines, choose
from slicer.cli.queue.sink import Sink
from slicer.columns import ASCII, Glyphs, cell_count
from slicer.queue.model import Board
from slicer.queue.show.board_text import page
from tests.unit.queue.show.test_board_text import board, empty
from tests.unit.queue.show.test_event_text import event, row, summed_up

UNFINISHED = re.compile(r"\x1b(\[[\d;]*)?$")
SEQUENCE = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[[\d;]*m")


class Terminal:
    """A pseudo-terminal, and what a person would see on it."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self._master, slave = os.openpty()
        self.stream = open(slave, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self.lines = lines
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""
        self.raw = ""
        self.page = [""]  # all that was ever written, the scrollback included
        self.row = self.column = 0
        self.resize(columns)

    def resize(self, columns: int) -> None:
        """Make it as wide, as tmux does: lines are broken anew."""
        self.look()
        self.columns = columns
        size = struct.pack("4H", self.lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        above = sum(max(1, -(-len(text) // columns)) for text in self.page[: self.row])
        self.page = [
            text[start : start + columns]
            for text in self.page
            for start in range(0, max(1, len(text)), columns)
        ]
        self.row = above

    def look(self) -> list[str]:
        """All lines until now; the last of them, as many as the terminal has, are its screen."""
        while select.select([self._master], [], [], 0)[0]:
            self._rest += self._decoder.decode(os.read(self._master, 65536))
        unfinished = UNFINISHED.search(self._rest)
        cut = unfinished.start() if unfinished else len(self._rest)
        text, self._rest = self._rest[:cut], self._rest[cut:]
        self._take(text)
        lines = [line.rstrip() for line in self.page]
        while len(lines) > self.row + 1 and not lines[-1]:
            lines.pop()
        return lines

    def _take(self, text: str) -> None:
        self.raw += text
        position = 0
        while position < len(text):
            found = SEQUENCE.match(text, position)
            if found:
                self._obey(int(found[1] or 1) if found[2] else 0, found[2] or "m")
                position = found.end()
                continue
            self._put(text[position])
            position += 1

    def _obey(self, number: int, letter: str) -> None:
        if letter == "A":
            self.row = max(self.row - number, len(self.page) - self.lines, 0)
        elif letter == "J":
            top = max(len(self.page) - self.lines, 0)
            assert (self.row, self.column) != (top, 0), "tmux keeps a whole screen that is cleared"
            self.page[self.row :] = [self.page[self.row][: self.column]]
        elif letter == "K":
            assert number == 2
            self.page[self.row] = ""
        else:
            assert letter == "m"

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
            if self.row == len(self.page):
                self.page.append("")
        else:
            assert character.isprintable(), ascii(character)
            if self.column == self.columns:
                self._put("\n")
                self.column = 0
            line = self.page[self.row].ljust(self.column)
            self.page[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._master)

    def hang_up(self) -> None:
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        if self._master >= 0:
            self.hang_up()
        self.stream.close()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("locale.getencoding", lambda: "UTF-8")
    monkeypatch.setattr(live_module, "_SOONEST_S", 0.0)
    made = Terminal()
    yield made
    made.close()


def finished(no: int) -> Any:
    return event("finished", row(no, status="ok"))


def told_until(count: int, terminal: Terminal, live: Live) -> list[str]:
    """The numbers of the jobs that were said to have ended, once there are so many."""
    told: list[str] = []
    still = board()
    deadline = time.monotonic() + 20
    while len(told) < count and time.monotonic() < deadline:
        live.draw(still)
        told = [line.split()[2] for line in terminal.look() if " ok after " in line]
    return told


# -- the live board -----------------------------------------------------------------------------------------


def test_the_board_stays_below_and_the_events_stay_above_it(terminal: Terminal) -> None:  # E8
    live = Live(terminal.stream)
    live.begin()
    for no in range(1, 40):
        live.event(finished(no))
        live.draw(board())
        lines = terminal.look()
    told = [line for line in lines if " ok after " in line]
    assert [line.split()[2] for line in told] == [str(no) for no in range(1, 40)]  # each once, in order
    assert sum(line.startswith("jobs.txt") for line in lines) == 1
    assert lines.index(told[-1]) < next(i for i, line in enumerate(lines) if line.startswith("jobs.txt"))


def test_the_end_takes_the_board_away_and_keeps_what_was_said(terminal: Terminal) -> None:  # E8
    before = terminal.settings()
    live = Live(terminal.stream)
    live.event(finished(1))
    live.draw(board())
    live.end()
    live.end()
    lines = terminal.look()
    assert len(lines) == 2
    assert lines[0].endswith("job 1 ok after 12m4s: GPU 0 peak 17.2G of 18G declared, 96% busy"[-30:])
    assert (lines[1], terminal.column) == ("", 0)
    assert terminal.settings() == before


def test_the_terminal_is_as_it_was_even_after_a_kill(terminal: Terminal) -> None:  # E8
    before = terminal.settings()
    live = Live(terminal.stream)
    live.draw(board())
    terminal.look()  # and no end()
    assert terminal.settings() == before
    assert "\x1b[?" not in terminal.raw  # no other page, no hidden cursor
    assert re.findall(r"\x1b\[[\d;]*m", terminal.raw)[-1] == "\x1b[0m"
    assert terminal.column == 0


@pytest.mark.parametrize("columns", [30, 79, 120])
def test_another_width_leaves_nothing_of_the_board_before(terminal: Terminal, columns: int) -> None:  # E8
    terminal.lines = 60
    live = Live(terminal.stream)
    live.event(event("notice", text="first"))
    live.draw(board())
    terminal.resize(columns)
    live.draw(board())
    lines = terminal.look()
    assert lines[0].endswith("first")
    assert sum(line.startswith("jobs.txt") for line in lines) == 1
    assert sum("WANTS" in line for line in lines) == 1
    assert all(len(line) < columns for line in lines)


@pytest.mark.parametrize("glyphs", [Glyphs(), ASCII])
@pytest.mark.parametrize("height", [0, 1, 3, 4, 8, 15, 16, 24, 60])
@pytest.mark.parametrize("width", [1, 20, 79, 200])
def test_no_board_is_higher_or_wider_than_the_terminal(width: int, height: int, glyphs: Glyphs) -> None:  # E8
    crowd = board(running=tuple(row(no) for no in range(100)), warning="the disk is full")
    for one in (board(), crowd, empty()):
        lines = page(one, width, height, glyphs)
        assert len(lines) <= height
        assert all(cell_count(line.text) <= width for line in lines)
        assert height == 0 or lines


def test_what_does_not_fit_is_counted() -> None:  # E8
    crowd = board(running=tuple(row(no) for no in range(100)))
    texts = [line.text for line in page(crowd, 79, 23, Glyphs())]
    runs = sum(text.startswith("▶") for text in texts)
    assert runs >= 3
    assert f"… {100 - runs} more running" in texts
    waits = sum(text.startswith(("·", "↻")) for text in texts)
    assert waits >= 3
    assert f"… {1000 - waits} more pending" in texts


def test_a_narrow_terminal_shows_the_progress(terminal: Terminal) -> None:
    terminal.lines = 2
    terminal.resize(40)
    live = Live(terminal.stream)
    live.draw(board())
    assert terminal.look()[0] == "5 of 1007 done (0%), about 1h20m left"


def test_colours_are_for_those_who_want_them(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live(terminal.stream)
    live.event(event("warning", text="x"))
    terminal.look()
    assert "\x1b[33m" in terminal.raw
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.raw = ""
    live = Live(terminal.stream)
    live.event(event("warning", text="x"))
    live.draw(board(warning="y"))
    terminal.look()
    assert not re.search(r"\x1b\[[\d;]*3\dm", terminal.raw)


def test_a_terminal_without_utf_8_gets_ascii(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "ANSI_X3.4-1968")
    terminal.stream.reconfigure(encoding="ascii")  # type: ignore[union-attr]
    live = Live(terminal.stream)
    live.event(event("started", row(command="é" + "x" * 200)))
    live.draw(board())
    terminal.look()
    assert terminal.raw.isascii()
    assert "x..." in terminal.raw


def test_a_crowd_of_events_is_written_together(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_SOONEST_S", 3600.0)
    live = Live(terminal.stream)
    live.draw(board())
    written = len(terminal.look()) and len(terminal.raw)
    for no in range(1, 501):
        live.event(finished(no))
    terminal.look()
    assert len(terminal.raw) == written
    assert told_until(500, terminal, live) == [str(no) for no in range(1, 501)]


def test_a_stopped_terminal_stops_no_queue(terminal: Terminal) -> None:
    """As after Ctrl-S: what cannot be shown is shown later."""
    live = Live(terminal.stream)
    still = board()
    live.draw(still)
    termios.tcflow(terminal.stream.fileno(), termios.TCOOFF)
    for no in range(1, 1001):
        live.event(finished(no))
        live.draw(still)
    termios.tcflow(terminal.stream.fileno(), termios.TCOON)
    assert told_until(1000, terminal, live) == [str(no) for no in range(1, 1001)]


def test_after_a_stop_the_board_is_drawn_below(terminal: Terminal) -> None:
    live = Live(terminal.stream)
    live.draw(board())
    terminal.stream.write("[1]+  Stopped\n$ fg\n")
    terminal.stream.flush()
    live.begin()
    live.draw(board())
    lines = terminal.look()
    assert "[1]+  Stopped" in lines
    assert sum(line.startswith("jobs.txt") for line in lines) == 2


def test_a_queue_in_the_background_draws_no_board_over_the_shell(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(terminal.stream)
    monkeypatch.setattr("os.tcgetpgrp", lambda fd: os.getpgrp() + 1)
    live.event(event("notice", text="first"))
    live.draw(board())
    assert [line[9:] for line in terminal.look()] == ["first", ""]
    monkeypatch.undo()
    live.draw(board())
    assert any(line.startswith("jobs.txt") for line in terminal.look())


# -- who is shown what --------------------------------------------------------------------------------------


@contextlib.contextmanager
def written_to(path: Path) -> Iterator[TextIO]:
    with open(path, "w", encoding="utf-8") as stream:
        yield stream


def renderer(stream: TextIO, **wants: Any) -> Live | Lines:
    usual: dict[str, Any] = {"as_json": False, "verbose": False, "stdout": stream}
    return choose(**{**usual, **wants})


def play(one: Live | Lines) -> None:
    one.begin()
    one.event(finished(1))
    one.event(event("usage", row(2)))
    one.event(event("exceeds", row(2), gpu=0, used_mib=20 << 10, declared_mib=18 << 10))
    one.draw(board())
    one.end(summed_up(counts={"failed": 1}, failed=[row(4, status="failed", exit_code=3)], exit_code=3))


def test_a_file_gets_a_line_an_event_in_their_order(tmp_path: Path) -> None:  # E8, E12
    with written_to(tmp_path / "out") as stream:
        one = renderer(stream)
        assert not one.wants_board
        play(one)
    lines = (tmp_path / "out").read_text().splitlines()
    clock = time.strftime("%H:%M:%S", time.localtime(finished(1).at))
    assert lines[0].startswith(f"{clock} job 1 ok after ")
    assert lines[1].startswith(f"{clock} WARN job 2 uses 20G of GPU 0, declared 18G (11% more)")
    assert lines[2:] == [
        "  job 4 failed with exit code 3: python train.py --seed 4",
        f"{clock} 1 job in 1h2m: 1 failed; exit code 3",
    ]


def test_verbose_says_more_and_quiet_only_what_is_wrong(tmp_path: Path) -> None:  # E12
    with written_to(tmp_path / "out") as stream:
        play(renderer(stream, verbose=True))
    assert "job 2 uses 16.6G of GPU 0" in (tmp_path / "out").read_text()
    with written_to(tmp_path / "out") as stream:
        play(renderer(stream, quiet=True))
        renderer(stream, quiet=True).end(summed_up())
    text = (tmp_path / "out").read_text()
    assert "job 1 ok" not in text
    assert "exit code 3" in text
    assert len(text.splitlines()) == 3


def test_json_is_an_object_a_line_and_the_summary_the_last(tmp_path: Path) -> None:  # E12
    for verbose, kinds in (
        (False, ["finished", "exceeds", "summary"]),
        (True, ["finished", "usage", "exceeds", "summary"]),
    ):
        with written_to(tmp_path / "out") as stream:
            one = renderer(stream, as_json=True, verbose=verbose)
            assert not one.wants_board
            play(one)
        found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        assert [line["event"] for line in found] == kinds


def test_a_terminal_gets_the_board_and_then_the_summary(terminal: Terminal) -> None:  # E8, E12
    one = renderer(terminal.stream)
    assert one.wants_board
    play(one)
    lines = terminal.look()
    assert not any(line.startswith("jobs.txt") for line in lines)
    assert lines[-3:-1] == [
        "  job 4 failed with exit code 3: python train.py --seed 4",
        "1 job in 1h2m: 1 failed; exit code 3",
    ]


@pytest.mark.parametrize("term", ["dumb", "", None])
def test_a_terminal_that_cannot_be_drawn_on_gets_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, term: str | None
) -> None:
    monkeypatch.delenv("TERM")
    if term is not None:
        monkeypatch.setenv("TERM", term)
    one = renderer(terminal.stream)
    assert not one.wants_board
    play(one)
    terminal.look()
    assert "\x1b" not in terminal.raw


@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_who_leaves_does_not_end_the_queue(as_json: bool) -> None:  # E12
    inner, outer = os.pipe()
    os.close(inner)
    with open(outer, "w", encoding="utf-8") as stream:
        for _ in range(3):
            play(renderer(stream, as_json=as_json))


def test_a_terminal_that_hangs_up_does_not_end_the_queue(terminal: Terminal) -> None:  # E12
    one = renderer(terminal.stream)
    one.draw(board())
    terminal.hang_up()
    play(one)
    one.draw(board())


def test_a_full_disk_behind_stdout_does_not_end_the_queue() -> None:  # E12
    with open("/dev/full", "w", encoding="utf-8") as stream:
        play(renderer(stream))
        play(renderer(stream, as_json=True))


def test_a_slow_reader_misses_nothing_and_keeps_nobody_waiting() -> None:  # E12
    inner, outer = os.pipe()
    with open(inner, "rb", buffering=0) as reader, open(outer, "w", encoding="utf-8") as stream:
        sink = Sink(stream)
        for number in range(20_000):  # more than a pipe holds
            sink.write(f"{number:08}\n")
        found = b""
        while found.count(b"\n") < 20_000:
            sink.write("")
            found += reader.read(1 << 20)
    assert found == b"".join(b"%08d\n" % number for number in range(20_000))


def test_what_an_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as stream:
        Sink(stream).write("é… \udcff\n")
    assert (tmp_path / "out").read_bytes() == b"\\xe9... \\udcff\n"


def test_a_stream_without_a_descriptor_is_refused() -> None:
    with pytest.raises(io.UnsupportedOperation):
        Sink(io.StringIO())


def boards() -> list[Board]:
    return [board(counts={"ok": no, "pending": 1000 - no}) for no in range(0, 1000, 100)]


class Endless(tuple[Any, ...]):
    """Rows of which some may be taken, but not all looked at."""

    def __iter__(self) -> Iterator[Any]:
        pytest.fail("it goes through all pending jobs")


def test_drawing_is_cheap_however_long_the_queue(terminal: Terminal) -> None:  # E8
    live = Live(terminal.stream)
    for one in [board(pending=Endless(board().pending * 100)), *boards()]:  # 100,000 pending
        live.draw(one)
        terminal.stream.flush()
    terminal.look()
