"""Ctrl-Z between the fork and the exec of a job's command: the parent of a vfork(2) sleeps until the exec."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slicer.kernel.proc import read_text
from tests.patience import until
from tests.process.harness import Box, state_of
from tests.systemd.helpers.terminal import BASH, CTRL_D, CTRL_Z, PROMPT, Terminal

# ptrace(2)
_CONT, _DETACH, _GETEVENTMSG, _SEIZE = 7, 17, 0x4201, 0x4206
_TRACEVFORK, _AT_VFORK, _WALL = 4, signal.SIGTRAP | 2 << 8, 0x40000000


def _ptrace(request: int, pid: int, data: object = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def held_at_vfork(parent: int, box: Box) -> Iterator[int]:
    """Hold the next child of vfork(2) in its first instant; its pid."""
    try:
        _ptrace(_SEIZE, parent, _TRACEVFORK)
    except PermissionError:
        pytest.skip("this machine lets nobody trace processes")
    box.state.with_suffix(".go").touch()
    while (status := os.waitpid(parent, _WALL)[1]) >> 8 != _AT_VFORK:
        _ptrace(_CONT, parent, os.WSTOPSIG(status) if status >> 16 == 0 else None)
    message = ctypes.c_ulong()
    _ptrace(_GETEVENTMSG, parent, ctypes.addressof(message))
    child = message.value
    os.waitpid(child, _WALL)
    try:
        yield child
    finally:
        for pid in (child, parent):
            _ptrace(_DETACH, pid)


def is_pending(pid: int, signo: int) -> bool:
    masks = (line.split()[1] for line in read_text(f"/proc/{pid}/status").splitlines() if "ShdPnd" in line)
    return any(int(mask, 16) >> signo - 1 & 1 for mask in masks)


# A9: the terminal hung, for the keeper could not tell of the stop, and the shell heard of none
@pytest.mark.parametrize("word", ["fg", "bg"])
def test_ctrl_z_between_fork_and_exec_gives_the_shell_back(box: Box, word: str) -> None:
    env = {**box.env, "SLICER_FAULTS": f"{box.state}:keeper-ordered~"}
    with Terminal(*BASH, env=env, cwd=box.root) as bash:
        bash.expect(PROMPT)
        bash.line("inner -p heavy -- sh -c 'echo up; exec cat'")
        keeper = until(lambda: next((x.keeper for x in box.leases()), 0), "its keeper")
        with held_at_vfork(keeper, box) as child:
            bash.type(CTRL_Z)
            until(lambda: is_pending(child, signal.SIGTSTP), "Ctrl-Z is on its way")
        assert "Stopped" in bash.expect(PROMPT)
        until(lambda: state_of(child) == "T", "the signal that was on its way has come")
        bash.line(word)
        bash.expect("up\n")
        if word == "bg":  # it reads from the terminal, and so stops again
            until(lambda: state_of(child) == "T", "it is stopped")
            bash.line("fg")
            bash.expect("fg\n")  # before it, bash tells of the stop, by the same words
            bash.expect("exec cat'\n")
        bash.line("words")
        bash.expect("words\nwords\n")
        bash.type(CTRL_D)
        bash.expect(PROMPT)
    box.assert_clean()
