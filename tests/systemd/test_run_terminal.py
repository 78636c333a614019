"""At a terminal a job behaves as it does without slicer."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from tests.patience import until
from tests.systemd.helpers import processes
from tests.systemd.helpers.jobs import Slicer, leases
from tests.systemd.helpers.terminal import BASH, CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, PROMPT, Terminal

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


@pytest.fixture
def bash(slicer: Slicer) -> Iterator[Terminal]:
    """An interactive bash with job control."""
    with Terminal(*BASH, env=slicer.environ(), cwd=slicer.directory) as terminal:
        terminal.expect(PROMPT)
        yield terminal


def command(terminal: Terminal, line: str) -> None:
    """Type a command line; its echo is taken off."""
    terminal.line(line)
    terminal.expect(f"{line}\n")


def keeper_and_command() -> tuple[int, int]:
    """Of the one job that runs."""

    def find() -> tuple[int, int] | None:
        for lease in leases():
            inside = processes.in_cgroup(lease.cgroup) - {lease.keeper} if lease.cgroup else set()
            if inside:
                return lease.keeper, min(inside)
        return None

    return until(find, "a job with a command")


def test_ctrl_c_ends_the_command_and_the_shells_loop(bash: Terminal) -> None:
    command(
        bash, "for i in 1 2 3; do slicer run -q -- sh -c 'echo went in; exec sleep 1000'; echo step $i; done"
    )
    bash.expect("went in\n")
    bash.type(CTRL_C)
    shown = bash.expect(PROMPT)
    assert "step" not in shown
    command(bash, "echo code=$?")
    assert "code=130" in bash.expect(PROMPT)


@pytest.mark.parametrize("handles", ["", "trap 'echo handled; exit 7' INT; "], ids=["dies", "handles"])
def test_ctrl_c_ends_a_job_that_is_paused(bash: Terminal, slicer: Slicer, handles: str) -> None:  # X6
    command(bash, f"slicer run --name held -- sh -c \"{handles}echo went in; while :; do sleep 0.1; done\"")
    bash.expect("went in\n")
    slicer.command("pause", "held")
    bash.type(CTRL_C)
    shown = bash.expect(PROMPT)
    assert "the job was paused; it is resumed so that it can end" in shown
    assert "handled" in shown or not handles
    command(bash, "echo code=$?")
    assert f"code={7 if handles else 130}" in bash.expect(PROMPT)


# W1: bash and its line editor, which takes the terminal's echo for as long as one types
HOLD = "SHELL=/bin/bash PS1='held> ' slicer hold -q --cpu-slots 1 -- bash --norc --noprofile -i"


def hold_a_shell(bash: Terminal, line: str) -> None:
    command(bash, line)
    bash.expect("held> ")


def is_echoing(bash: Terminal) -> bool:
    return bool(termios.tcgetattr(bash.fd)[3] & termios.ECHO)


def test_a_held_shell_that_is_stopped_is_not_killed_for_it(slicer: Slicer, bash: Terminal) -> None:
    hold_a_shell(bash, HOLD)
    (lease,) = leases()
    done = subprocess.run(["slicer", "stop", lease.job], env=slicer.environ(), capture_output=True, text=True)
    assert done.returncode == 0, done
    bash.expect(PROMPT)
    assert is_echoing(bash)
    outcome = slicer.outcome(lease.job)
    assert (outcome.reason, outcome.signal) == ("stopped", signal.SIGHUP)


# Ignores what asks it to end, and has taken the echo away.
RUDE = """\
import signal, tty
for signo in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(signo, signal.SIG_IGN)
tty.setraw(0)
print("went in", end="", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("program", ["hold -q --cpu-slots 1", "run -q --set TimeoutStopSec=1s"])
def test_the_terminal_is_put_in_order_after_a_command_that_was_killed(
    slicer: Slicer, bash: Terminal, program: str
) -> None:
    slicer.path("rude.py").write_text(RUDE)
    command(bash, f"slicer {program} -- {sys.executable} rude.py")
    bash.expect("went in")
    (lease,) = leases()
    (victim,) = processes.children(lease.keeper)
    assert not is_echoing(bash)
    os.kill(victim, signal.SIGKILL)
    bash.expect(PROMPT)
    assert is_echoing(bash)


def test_what_a_command_has_set_by_itself_stays_set(bash: Terminal) -> None:
    command(bash, "slicer run -q -- stty -onlcr")
    bash.expect(PROMPT)
    until(lambda: not termios.tcgetattr(bash.fd)[1] & termios.ONLCR, "it is set")


def test_ctrl_c_ends_a_script_around_slicer(slicer: Slicer) -> None:
    script = "for i in 1 2 3; do slicer run -q -- sh -c 'echo went in; exec sleep 1000'; done; echo after"
    with Terminal("bash", "-c", script, env=slicer.environ()) as terminal:
        terminal.expect("went in")
        terminal.type(CTRL_C)
        assert terminal.end() == -2
        assert terminal.seen.count("went in") == 1
        assert "after" not in terminal.seen


# Takes one signal in its own way, and leaves no instant in which it could miss it.
HANDLER = """\
import signal, sys
signo = getattr(signal, sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, {signo})
print("went in", flush=True)
signal.sigwait({signo})
open("handled", "a").write(sys.argv[1] + "\\n")
"""


def handler(slicer: Slicer, signo: str) -> str:
    """A command line that ends with 0 at the signal, having noted it in ``handled``."""
    program = slicer.path("handler.py")
    program.write_text(HANDLER)
    return f"{sys.executable} {program} {signo}"


def test_ctrl_c_that_the_command_handles_ends_no_loop(bash: Terminal, slicer: Slicer) -> None:
    command(bash, f"for i in 1 2; do slicer run -q -- {handler(slicer, 'SIGINT')}; echo step $i; done")
    for step in ("step 1", "step 2"):
        bash.expect("went in\n")
        bash.type(CTRL_C)
        bash.expect(step)
    bash.expect(PROMPT)


def test_ctrl_backslash_quits(bash: Terminal) -> None:
    command(bash, "slicer run -q -- sleep 1000; echo code=$?")
    keeper_and_command()
    bash.type(CTRL_BACKSLASH)
    bash.expect("code=131")
    bash.expect(PROMPT)


def test_ctrl_z_stops_and_fg_continues(bash: Terminal) -> None:
    command(bash, "slicer run -q -- cat")
    _, cat = keeper_and_command()
    bash.line("before")
    bash.expect("before\nbefore\n")
    bash.type(CTRL_Z)
    assert "Stopped" in bash.expect(PROMPT)
    # Not a moment later: until it has stopped it may read what is typed at the shell's prompt.
    assert processes.state(cat) == "T"
    command(bash, "fg")
    bash.expect("slicer run -q -- cat\n")
    bash.line("again")
    bash.expect("again\nagain\n")
    bash.type(CTRL_Z)  # and once more
    assert "Stopped" in bash.expect(PROMPT)
    command(bash, "fg")
    bash.expect("slicer run -q -- cat\n")
    bash.line("last")
    bash.expect("last\nlast\n")
    bash.type(CTRL_D)
    bash.expect(PROMPT)
    command(bash, "echo code=$?")
    assert "code=0" in bash.expect(PROMPT)


# However soon after one another, and after the start: what one of them sets off must not come after the next.
def test_ctrl_z_and_fg_again_and_again(bash: Terminal) -> None:
    for number in range(30):
        command(bash, "slicer run -q -- cat")
        for _ in range(3):
            bash.line(f"line {number}")
            bash.expect(f"line {number}\nline {number}\n")
            bash.type(CTRL_Z)
            assert "Stopped" in bash.expect(PROMPT)
            command(bash, "fg")
            bash.expect("slicer run -q -- cat\n")
        bash.type(CTRL_D)
        bash.expect(PROMPT)


def test_the_last_copy_of_fgs_signal_may_come_after_the_next_ctrl_z(bash: Terminal) -> None:
    """The kernel gives a group its signals one by one, and may be interrupted in between."""
    command(bash, "slicer run -q -- sleep 1000")
    keeper, pid = keeper_and_command()
    job = processes.parent(keeper)

    def all_are(state: str) -> None:
        until(lambda: {processes.state(job), processes.state(pid)} == {state}, f"both are in state {state}")

    all_are("S")
    bash.type(CTRL_Z)
    assert "Stopped" in bash.expect(PROMPT)
    for each in (pid, keeper):  # the first of the group that fg's SIGCONT reaches
        os.kill(each, signal.SIGCONT)
    all_are("S")
    os.kill(pid, signal.SIGTSTP)
    all_are("T")
    before = bash.seen.count("Stopped")
    os.kill(job, signal.SIGCONT)
    bash.line("echo")  # a shell tells with its next prompt
    until(lambda: (bash.line(""), bash.expect(PROMPT), bash.seen.count("Stopped") > before)[-1], "it stops")
    all_are("T")


def test_a_command_that_ignores_ctrl_z_keeps_the_terminal(bash: Terminal) -> None:
    program = 'trap "" TSTP; echo went in; read -r line; echo "got $line"'
    command(bash, f"slicer run -q -- bash -c '{program}'")
    bash.expect("went in\n")
    bash.type(CTRL_Z)
    bash.line("words")
    bash.expect("got words\n")
    assert "Stopped" not in bash.expect(PROMPT)


def test_ctrl_z_and_bg_continue_in_the_background(bash: Terminal, slicer: Slicer) -> None:
    gate = slicer.gate()
    command(bash, f"slicer run -q -- sh -c 'echo up; : < {gate}; echo done in the back'")
    bash.expect("up\n")
    bash.type(CTRL_Z)
    assert "Stopped" in bash.expect(PROMPT)
    command(bash, "bg")
    bash.expect(PROMPT)
    _, pid = keeper_and_command()
    until(lambda: processes.state(pid) == "S", "it runs again")
    gate.open()
    bash.expect("done in the back")
    command(bash, "wait; echo code=$?")
    bash.expect("code=0")
    bash.expect(PROMPT)


@pytest.mark.parametrize("signo", ["STOP", "TSTP"])
def test_a_command_that_stops_itself_gives_the_shell_back(bash: Terminal, signo: str) -> None:
    command(bash, f"slicer run -q -- sh -c 'echo before; kill -{signo} $$; echo after; exit 3'")
    bash.expect("before\n")
    assert "Stopped" in bash.expect(PROMPT)
    command(bash, "fg")
    bash.expect("after\n")
    said = bash.expect(PROMPT)
    command(bash, "echo code=$?")
    assert "code=3" in bash.expect(PROMPT), said


def test_a_program_that_stops_its_whole_group_gives_the_shell_back(bash: Terminal) -> None:
    # As less and vim do at Ctrl-Z: the terminal is theirs in raw mode, they stop by themselves.
    command(bash, "slicer run -q -- sh -c 'echo before; kill -TSTP 0; echo after'")
    bash.expect("before\n")
    assert "Stopped" in bash.expect(PROMPT)
    command(bash, "fg")
    bash.expect("after\n")
    bash.expect(PROMPT)


def test_a_background_job_that_reads_the_terminal_stops_until_fg(bash: Terminal) -> None:
    command(bash, "slicer run -q -- cat &")
    _, cat = keeper_and_command()
    until(lambda: processes.state(cat) == "T", "cat is stopped")
    bash.expect(PROMPT)
    command(bash, "wait; jobs")  # wait returns at a stopped job's change of state
    bash.expect("Stopped")
    bash.expect(PROMPT)
    command(bash, "fg")
    bash.expect("slicer run -q -- cat\n")
    bash.line("words")
    bash.expect("words\nwords\n")
    bash.type(CTRL_D)
    bash.expect(PROMPT)


def test_ctrl_z_while_waiting_for_the_lease(bash: Terminal, slicer: Slicer) -> None:
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    command(bash, "slicer run -p heavy -- echo at last")
    bash.expect("waiting for a CPU slot")
    bash.type(CTRL_Z)
    assert "Stopped" in bash.expect(PROMPT)
    assert not slicer.is_busy("-p", "light")  # a stopped waiter stops nobody else
    command(bash, "fg")
    gate.open()
    assert holder.end().code == 0
    bash.expect("at last\n")
    bash.expect(PROMPT)


def test_ctrl_c_while_waiting_for_the_lease(bash: Terminal, slicer: Slicer) -> None:
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    command(bash, "slicer run -p heavy -- echo at last; echo code=$?")
    bash.expect("waiting for a CPU slot")
    bash.type(CTRL_C)
    bash.expect("\nslicer: no longer waiting\n")  # W15
    bash.expect(PROMPT)
    gate.open()
    assert holder.end().code == 0


def test_the_line_of_one_who_waits_is_kept_up_to_date(bash: Terminal, slicer: Slicer) -> None:  # W15
    gates = slicer.gate(), slicer.gate()
    first = slicer.hold(gates[0], "-p", "heavy", "--name", "first", "--priority", "1")
    script = f"echo up; : < {gates[1]}"
    second = slicer.start("-p", "heavy", "--name", "second", "--priority", "1", "--", "sh", "-c", script)
    second.ticket()
    bash.resize(24, 60)
    command(bash, "slicer run -p heavy -- echo at last")
    bash.expect("slicer: waiting for a CPU slot, held by first")
    gates[0].open()
    assert first.end().code == 0
    again = bash.expect("\r\x1b[Kslicer: waiting for a CPU slot, held by second")
    assert "\n" not in again
    gates[1].open()
    assert second.end().code == 0
    assert bash.expect("acquired").endswith("\nslicer: acquired")
    bash.expect("at last\n")
    bash.expect(PROMPT)


def test_one_who_waits_in_the_background_leaves_the_line_to_the_shell(
    bash: Terminal, slicer: Slicer
) -> None:  # W15
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    command(bash, "slicer run -p heavy -- echo at last &")
    bash.expect("for ")
    bash.expect(")\n")
    gate.open()
    assert holder.end().code == 0
    bash.expect("at last\n")
    assert "\x1b[K" not in bash.seen


RESIZED = """\
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
print("ready", flush=True)
for _ in range(3):
    signal.sigwait({signal.SIGWINCH})
    size = os.get_terminal_size()
    print(f"now {size.lines}x{size.columns}", flush=True)
"""


def test_the_command_learns_the_windows_size(slicer: Slicer) -> None:
    program = slicer.path("resized.py")
    program.write_text(RESIZED)
    with Terminal(
        "slicer", "run", "-q", "--", sys.executable, str(program), env=slicer.environ()
    ) as terminal:
        terminal.expect("ready")
        for rows, columns in ((30, 100), (50, 132), (24, 80)):
            terminal.resize(rows, columns)
            terminal.expect(f"now {rows}x{columns}")
        assert terminal.end() == 0
        assert terminal.seen.count("now") == 3  # each change once


FULL_SCREEN = """\
import curses
def main(screen):
    screen.timeout(100)  # a window that changes just before getch() is seen the next time round
    while True:
        curses.update_lines_cols()
        screen.clear()
        screen.addstr(1, 2, f"it is {curses.LINES}x{curses.COLS}", curses.A_BOLD)
        screen.refresh()
        if screen.getch() == ord("q"):
            break
curses.wrapper(main)
print("left the screen")
"""


def test_a_full_screen_program_works(slicer: Slicer) -> None:
    program = ("slicer", "run", "-q", "--", sys.executable, "-c", FULL_SCREEN)
    with Terminal(*program, env=slicer.environ()) as terminal:
        terminal.expect("24x80")
        terminal.resize(40, 120)
        terminal.expect("40x120")
        terminal.type("q")
        terminal.expect("left the screen")
        assert terminal.end() == 0


def test_a_full_screen_program_works_in_tmux(slicer: Slicer) -> None:
    assert shutil.which("tmux"), "the image lacks tmux"
    socket = str(slicer.path("tmux"))

    def tmux(*words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", socket, *words], env=slicer.environ(), capture_output=True, text=True
        )
        assert done.returncode == 0, done
        return done.stdout

    tmux("new-session", "-d", "-x", "80", "-y", "24", "slicer run -q -- top -c -d 1000; echo code=$?; cat")
    try:
        until(lambda: "PID USER" in tmux("capture-pane", "-p"), "top's screen")
        heights = itertools.cycle(("40", "41"))

        def look() -> bool:
            # top misses a new size that comes while it draws.
            tmux("resize-window", "-x", "132", "-y", next(heights))
            # Only the wider screen has room for the whole of slicer's own command line.
            return "slicer run -q -- top -c -d 1000" in tmux("capture-pane", "-p")

        until(look, "the wider screen")
        # top drops what is typed while it draws.
        until(lambda: tmux("send-keys", "q") or "code=0" in tmux("capture-pane", "-p"), "top's end")
    finally:
        tmux("kill-server")


def test_a_prompt_for_a_password_on_the_terminal_works(slicer: Slicer) -> None:
    ask = "import getpass; print('got', getpass.getpass('Secret: '))"  # opens /dev/tty, turns its echo off
    with Terminal("slicer", "run", "-q", "--", sys.executable, "-c", ask, env=slicer.environ()) as terminal:
        terminal.expect("Secret: ")
        terminal.line("open sesame")
        terminal.expect("got open sesame")
        assert terminal.end() == 0
        assert terminal.seen.count("open sesame") == 1


def test_a_closed_window_hangs_up_the_job(slicer: Slicer) -> None:
    run = ("slicer", "run", "-q", "--", *handler(slicer, "SIGHUP").split())
    with Terminal(*run, env=slicer.environ(), cwd=slicer.directory) as terminal:
        terminal.expect("went in")
        terminal.close()
        assert terminal.end() == 0
    assert slicer.path("handled").read_text() == "SIGHUP\n"
