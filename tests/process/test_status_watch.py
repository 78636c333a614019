"""``slicer status --watch`` at a terminal: it shows what happens, and leaves the terminal as it was."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.process.harness import SLICER, Box, Gate, kill_9
from tests.systemd.helpers import processes
from tests.systemd.helpers.terminal import BASH, CTRL_C, CTRL_Z, PROMPT, Terminal

pytest_plugins = ["tests.fake_nvml"]

OWN_PAGE, PAGE_BEFORE, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
FRAME = "\x1b[H"
TRAIN = "  train         running  1 CPU slot "


def watch(box: Box, *options: str) -> Terminal:
    # Nothing but the ledger's own events can be seen within an hour.
    options = options or ("--interval", "3600")
    return Terminal(*SLICER, "top", *options, env=box.env, cwd=box.root)


def frame(terminal: Terminal) -> list[str]:
    """The last complete screen, line by line."""
    terminal._read(0)
    last = terminal.seen.split(FRAME)[-1]
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last).replace("\r", "").split("\n")


@contextmanager
def watching(box: Box, *options: str) -> Iterator[Terminal]:
    """Until q, which leaves nothing behind."""
    with watch(box, *options) as terminal:
        yield terminal
        terminal.type("q")
        assert terminal.end() == 0
    box.assert_clean()


@pytest.fixture
def at_work(box: Box) -> Iterator[Terminal]:
    with watch(box) as terminal:
        terminal.expect("No jobs are running.")
        yield terminal


# B3
def test_a_job_that_starts_waits_and_ends_is_seen_at_once(box: Box, gate: Gate) -> None:
    box.run("-q", "--", "true")  # so that there is a ledger to be watched
    with watch(box) as terminal:
        terminal.expect("No jobs are running.")
        box.hold(gate, name="train")
        terminal.expect(TRAIN)
        box.wait_in_line("next")
        terminal.expect("  next          1 CPU slot ")
        terminal.expect("held by train")
        gate.open()
        terminal.expect("No jobs are running.")
        terminal.type(CTRL_C)
        assert terminal.end() == 0
    box.assert_clean()


# B3: looking makes no ledger, so its first job is found on the timer
def test_the_first_job_is_seen_too(box: Box, gate: Gate) -> None:
    with watching(box, "--interval", "0.1") as terminal:
        terminal.expect("No jobs are running.")
        assert not box.state.exists()
        box.hold(gate, name="train")
        terminal.expect(TRAIN)
        gate.open()
        terminal.expect("No jobs are running.")


# Holds its lease by nothing but being there.
CLOSING = """
import os, sys
os.closerange(0, 1024)
log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(log, b"start closing %d\\n" % os.getpid())
os.read(os.open(sys.argv[1], os.O_RDONLY), 1)
"""


# B3, K2: after kill -9 no file tells that such a job ends, only its processes do
def test_the_end_of_what_outlived_slicer_is_seen(box: Box, gate: Gate) -> None:
    process = box.start(
        "-q", "-p", "heavy", "--name", "train", "--", sys.executable, "-c", CLOSING, str(gate.path)
    )
    until(lambda: box.started("closing"), "the command runs")
    keeper = until(lambda: next((lease.keeper for lease in box.leases()), 0), "the keeper is known")
    with watch(box) as terminal:
        terminal.expect(TRAIN)
        kill_9(process.pid, keeper)
        until(lambda: follows_a_process(terminal.pid), "the command is watched")
        gate.open()
        terminal.expect("No jobs are running.")
    box.assert_clean()


def follows_a_process(pid: int) -> bool:
    return any("pidfd" in target for target in processes.descriptors(pid).values())


@pytest.mark.parametrize(
    ("end", "code"),
    [(CTRL_C, 0), ("q", 0), ("Q", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), ("\x1c", 131)],
)
def test_whoever_leaves_gets_the_terminal_as_it_was(box: Box, end: str | signal.Signals, code: int) -> None:
    with watch(box) as terminal:
        # The other side of the terminal outlives the command.
        side = os.open(other_side(terminal.fd), os.O_RDWR | os.O_NOCTTY)
        terminal.expect(OWN_PAGE)
        terminal.expect("No jobs are running.")
        during = termios.tcgetattr(side)
        assert not during[3] & (termios.ECHO | termios.ICANON)
        if isinstance(end, str):
            terminal.type(end)
        else:
            os.kill(terminal.pid, end)
        assert terminal.end() == code
        after = termios.tcgetattr(side)
        assert after[3] & termios.ECHO
        assert after[3] & termios.ICANON
        os.close(side)
        shown = terminal.seen
        assert shown.rindex(PAGE_BEFORE) > shown.rindex(OWN_PAGE)
        assert shown.rindex(CURSOR) > shown.rindex("\x1b[?25l")
        assert "Traceback" not in shown


def other_side(fd: int) -> str:
    """The path of the terminal whose controlling side is ``fd``."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptsname.restype = ctypes.c_char_p
    return os.fsdecode(libc.ptsname(fd))


def test_a_new_size_is_drawn_at_once(at_work: Terminal) -> None:
    at_work.resize(40, 40)
    shown = "No jobs are running."
    until(lambda: max(map(len, frame(at_work))) <= 40 and shown in frame(at_work), "40 columns")
    at_work.resize(2, 10)
    until(lambda: len(frame(at_work)) <= 2 and max(map(len, frame(at_work))) <= 10, "2 lines of 10")
    at_work.resize(24, 80)
    until(lambda: shown in frame(at_work) and len(frame(at_work)) == 24, "all of it again")
    at_work.type("q")
    assert at_work.end() == 0


def test_ctrl_z_gives_the_shell_its_terminal_and_fg_takes_it_back(box: Box) -> None:
    line = " ".join((*SLICER[:2], f"'{SLICER[2]}'", "top"))
    with Terminal(*BASH, env=box.env, cwd=box.root) as bash:
        bash.expect(PROMPT)
        bash.line(line)
        bash.expect("No jobs are running.")
        bash.type(CTRL_Z)
        bash.expect(PAGE_BEFORE)
        assert "Stopped" in bash.expect(PROMPT)
        bash.line("echo heard")
        bash.expect("heard\n")
        bash.line("fg")
        bash.expect(OWN_PAGE)
        bash.expect("No jobs are running.")
        bash.type("q")
        bash.expect(PROMPT)
        bash.line("echo code=$?")
        bash.expect("code=0")


# B3: a driver that fails for a moment (an update, a reset) ends no live view
def test_gpu_figures_follow_and_a_broken_driver_is_survived(box: Box, fake_nvml: FakeNvml) -> None:
    box.env.update(fake_nvml.env)
    right = fake_nvml.state.read_text()
    with watch(box, "--interval", "0.1") as terminal:
        terminal.expect("GPUs: 2 of 2 free")
        fake_nvml.add(f"process 1 {os.getpid()} 3072 compute")
        terminal.expect("GPUs: 1 of 2 free")
        terminal.expect("no job: pid ")
        fake_nvml.write(f"{right}error nvmlDeviceGetComputeRunningProcesses 999\n")
        terminal.expect("the use of the GPUs is unknown: ")
        fake_nvml.write("error nvmlInit 9\n")
        terminal.expect("No GPUs: ")
        fake_nvml.write(right)
        terminal.expect("GPUs: 2 of 2 free")
        terminal.type("q")
        assert terminal.end() == 0


def test_a_state_directory_that_is_taken_away_ends_no_view(box: Box, gate: Gate) -> None:
    box.run("-q", "--", "true")
    with watching(box, "--interval", "0.1") as terminal:
        terminal.expect("Jobs of this user only")
        away = box.state.with_name("away")
        box.state.rename(away)
        until(lambda: not any("Jobs of this user only" in row for row in frame(terminal)), "it is gone")
        away.rename(box.state)
        box.hold(gate, name="train")
        terminal.expect(TRAIN)
        gate.open()
        terminal.expect("No jobs are running.")


# W7: k, p, l, / and ? from the keyboard
def test_a_job_is_stopped_only_after_a_yes(box: Box, gate: Gate) -> None:
    holder = box.hold(gate, name="train")
    box.wait_in_line("next")
    with watching(box) as terminal:
        terminal.expect(TRAIN)
        terminal.type("k")
        terminal.expect("stop train? y/n")
        terminal.type("n")
        terminal.expect("q quit")
        assert [lease.name for lease in box.leases()] == ["train"]
        terminal.type("\x1b[Bk")  # the one that waits
        terminal.expect("stop next? y/n")
        terminal.type("y")
        terminal.expect("no longer waits: ")
        assert not box.tickets()
        terminal.type("\x1b[Ak")
        terminal.expect("stop train? y/n")
        terminal.type("y")
        said = f"stopped {holder.lease.job}  train"
        until(lambda: frame(terminal)[-1].strip() == said, "the last line says so")
        assert "No jobs are running." in frame(terminal)


def test_a_job_is_paused_and_resumed(box: Box, gate: Gate) -> None:
    box.hold(gate, name="train")
    with watching(box) as terminal:
        terminal.expect(TRAIN)
        terminal.type("p")
        terminal.expect("train         paused")
        terminal.expect("paused by slicer pause")
        terminal.type("p")
        terminal.expect(TRAIN)
        gate.open()
        terminal.expect("No jobs are running.")
        terminal.type("p")
        terminal.expect("choose a job to pause")


def test_a_log_is_followed_on_the_terminals_own_page_until_q(
    box: Box, gate: Gate, second_gate: Gate
) -> None:
    script = f"echo one; read x <'{gate.path}'; printf 'two\\033[31m\\033[?25l'; read x <'{second_gate.path}'"
    box.run("-q", "-d", "-p", "heavy", "--name", "train", "--", "sh", "-c", script)
    with watching(box) as terminal:
        terminal.expect(TRAIN)
        terminal.type("l")
        terminal.expect(PAGE_BEFORE)
        terminal.expect("slicer logs -f train: q returns")
        terminal.expect("one\n")
        gate.open()
        terminal.expect("two")
        terminal.type("qky")  # what follows q, such as an answer of the terminal's, is not for the rows
        terminal.expect("\x1b[0m\x1b(B" + OWN_PAGE)  # whatever the job has done to it
        terminal.expect(TRAIN)
        terminal.type("l")
        terminal.expect("one\ntwo")
        second_gate.open()
        terminal.expect("-- the job has ended: q returns --")
        terminal.type("q")
        terminal.expect("No jobs are running.")


def test_ctrl_z_while_a_log_is_shown_stops_and_continues_both(box: Box, gate: Gate) -> None:
    script = f"echo one; read x <'{gate.path}'; echo two"
    box.run("-q", "-d", "-p", "heavy", "--name", "train", "--", "sh", "-c", script)
    line = " ".join((*SLICER[:2], f"'{SLICER[2]}'", "top"))
    with Terminal(*BASH, env=box.env, cwd=box.root) as bash:
        bash.expect(PROMPT)
        bash.line(line)
        bash.expect(TRAIN)
        bash.type("l")
        bash.expect("one\n")
        bash.type(CTRL_Z)
        assert "Stopped" in bash.expect(PROMPT)
        bash.line("fg")
        bash.expect("slicer.__main__")
        gate.open()
        bash.expect("two\n")
        bash.expect("-- the job has ended: q returns --")  # the view has the keys again, too
        bash.type("q")
        bash.expect("No jobs are running.")
        bash.type("q")
        bash.expect(PROMPT)
    box.assert_clean()


def test_an_error_of_a_command_is_shown_and_ends_no_view(box: Box, gate: Gate) -> None:
    box.hold(gate, name="train")  # in the foreground: its output goes where its caller's does
    with watch(box) as terminal:
        terminal.expect(TRAIN)
        terminal.type("l")
        terminal.expect("slicer keeps no log of train")
        gate.open()
        terminal.expect("No jobs are running.")
        terminal.type(CTRL_C)
        assert terminal.end() == 0
    box.assert_clean()


def test_ctrl_c_leaves_the_log_and_then_the_view(box: Box, gate: Gate) -> None:
    script = f"echo one; read x <'{gate.path}'"
    box.run("-q", "-d", "-p", "heavy", "--name", "train", "--", "sh", "-c", script)
    with watch(box) as terminal:
        terminal.expect(TRAIN)
        terminal.type("l")
        terminal.expect("one\n")
        terminal.type(CTRL_C)
        terminal.expect(TRAIN)
        terminal.type(CTRL_C)
        assert terminal.end() == 0
    gate.open()
    until(lambda: not box.leases(), "the job ends")
    box.assert_clean()


def test_a_filter_and_help_from_the_keyboard(box: Box, gate: Gate) -> None:
    box.hold(gate, name="train")
    with watching(box) as terminal:
        terminal.expect(TRAIN)
        terminal.type("/nobody")
        terminal.expect("JOBS 0 of 1")
        terminal.expect("filter: nobody_")
        terminal.type("\x1b")  # an escape that nothing follows
        terminal.expect(TRAIN)
        terminal.type("?")
        terminal.expect("Keys and words")
        terminal.type("q")
        terminal.expect(TRAIN)
        gate.open()
        terminal.expect("No jobs are running.")


def test_top_is_another_name_for_it(box: Box) -> None:
    with Terminal(*SLICER, "top", "--interval", "3600", env=box.env, cwd=box.root) as terminal:
        terminal.expect("No jobs are running.")
        terminal.type("q")
        assert terminal.end() == 0
