"""A call through the shim is the same call: arguments, names, environment, streams, signals, exit code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slicer.record import replace
from slicer.wrap import shim
from slicer.wrap.terms import Wrap
from tests.patience import LONGEST_S, until
from tests.unit.wrap.box import Box

pytest_plugins = ["tests.unit.wrap.box"]

WRAP = Wrap("/usr/bin/x", "/usr/bin/x-real", "r", "/usr/bin/slicer", "install", 1, 1, 2, "", "", 3.0)
# What a shell adds to its environment, each by its own habit.
OF_SHELLS = {b"PWD", b"OLDPWD", b"SHLVL", b"_"}
ODD = ["a b", "it's", 'say "x"', "new\nline", "-n", "$HOME `id` $(id)", "*", "ü\udcff", "\\", "#!"]

TELL = f"""\
#!{sys.executable} -IS
import os, sys
sys.stdout.buffer.write(b"\\0".join(map(os.fsencode, sys.argv)))
"""


@pytest.fixture
def tell(box: Box) -> Box:
    """The program prints its arguments."""
    box.program.write_text(TELL)
    return box


def run(*command: str | bytes | Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, timeout=LONGEST_S, check=False, **options)  # type: ignore


def test_every_byte_of_every_argument_arrives(tell: Box) -> None:  # C5
    tell.install()
    arguments = [b"", b" ", bytes(range(1, 256)), *(bytes([n]) for n in range(1, 256)), b"--", b"--program"]
    done = run(tell.program, *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split(b"\0")[1:] == arguments


@pytest.mark.parametrize("name", ODD)
def test_any_name_of_the_program_will_do(box: Box, name: str) -> None:  # C5
    program = box.bin / name
    program.write_text(TELL)
    program.chmod(0o755)
    box.install(program, route="small")
    assert run(program, "x").stdout.split(b"\0") == [os.fsencode(f"{program}-real"), b"x"]
    box.remove(program)
    assert box.names() == sorted([name, "whisper"])


def test_the_program_sees_the_name_that_it_was_called_by(box: Box) -> None:  # C5
    """As a link to it, too: programs of several names (busybox, python in a venv) go by that."""
    shutil.copy(shutil.which("bash") or "/bin/bash", box.program)
    (box.bin / "other-name").symlink_to("whisper")
    box.install()
    for called in (box.program, box.bin / "other-name"):
        assert run(called, "-c", "echo $0").stdout.decode().strip() == str(called)
    assert run("./whisper", "-c", "echo $0", cwd=box.bin).stdout == b"./whisper\n"
    on_path = run("env", f"PATH={box.bin}:/usr/bin:/bin", "whisper", "-c", "echo $0")
    assert on_path.stdout.decode().strip() == str(box.program)


def test_the_environment_is_the_callers(box: Box) -> None:  # C5
    shutil.copy(shutil.which("env") or "/usr/bin/env", box.program)
    odd = {b"real": b"1", b"slicer": b"2", b"LANG": b"C.UTF-8", b"route": b"\xff", b"PWD": b"/"}
    before = set(run(box.program, "-0", env=odd).stdout.split(b"\0"))
    box.install()
    after = set(run(box.program, "-0", env=odd).stdout.split(b"\0"))
    changed = {each.partition(b"=")[0] for each in before ^ after} - {b""}
    assert changed <= OF_SHELLS


def test_standard_streams_and_other_descriptors_are_the_callers(box: Box) -> None:  # C5
    read, write = os.pipe()
    box.program.write_text(f"#!/bin/sh\ncat; cat /dev/fd/{read}; echo err >&2\n")
    box.install()
    os.write(write, b"from the pipe\n")
    os.close(write)
    done = run(box.program, input=b"from stdin\n", pass_fds=(read,))
    os.close(read)
    assert (done.stdout, done.stderr) == (b"from stdin\nfrom the pipe\n", b"err\n")


@pytest.mark.parametrize("code", [0, 1, 75, 126, 127, 255])
def test_the_exit_code_is_the_programs(box: Box, code: int) -> None:  # C5
    box.program.write_text(f"#!/bin/sh\nexit {code}\n")
    box.install()
    assert run(box.program).returncode == code


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
def test_signals_reach_the_program_and_end_it(box: Box, tmp_path: Path, signo: signal.Signals) -> None:  # C5
    box.program.write_text(f"#!/bin/sh\n: > {tmp_path}/runs\nexec sleep 1000\n")
    box.install()
    with subprocess.Popen([box.program]) as process:
        until((tmp_path / "runs").exists, "the program runs")
        process.send_signal(signo)
        assert process.wait(LONGEST_S) == -signo


def test_signals_that_the_caller_ignores_stay_ignored(box: Box) -> None:  # C5
    tells = "import signal\nprint(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)\n"
    box.program.write_text(f"#!{sys.executable} -IS\n{tells}")
    box.install()
    assert run("sh", "-c", f"trap '' HUP; {box.program}").stdout == b"True\n"


@pytest.mark.parametrize("gone", ["slicer", "real"])
def test_what_is_gone_is_said_with_the_way_back(box: Box, gone: str) -> None:  # C5
    box.install()
    (box.slicer if gone == "slicer" else box.real).unlink()
    done = run(box.program)
    assert (done.returncode, done.stdout) == (127, b"")
    way = f"mv -f {box.real} {box.program}" if gone == "slicer" else f"slicer wrap remove {box.program}"
    assert way in done.stderr.decode()
    if gone == "slicer":  # and the way leads back
        subprocess.run(way, shell=True, check=True)
        assert run(box.program).stdout == b"first\n"
        assert box.state() == "unwrapped"


def test_a_shim_is_known_whatever_it_says() -> None:
    for wrap in (WRAP, replace(WRAP, path="/a\nexit 0\n", real="/a\n'-real", diverted="/a", route="'; exit")):
        text = shim.text(wrap)
        assert shim.is_shim(text)
        assert len(text) < shim.MOST_BYTES
        done = run("sh", "-n", input=text)
        assert (done.returncode, done.stderr) == (0, b"")
    assert not shim.is_shim(b"#!/bin/sh\necho slicer wrap, form 1\n")
