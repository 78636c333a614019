"""Finds the program of a command, and executes it: in place of slicer, or in a child."""

from __future__ import annotations

import errno
import os

from slicer.errors import CannotExecute, CommandNotFound, SlicerError
from slicer.kernel import on_host
from slicer.kernel.signals import signal
from slicer.text import quote, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

PODMAN_VARIABLE = "CONTAINERS_CONF_OVERRIDE"  # names the file that podman reads last
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python, but not by commands


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """The path to execute, known before anything is acquired. Raises CommandNotFound or CannotExecute."""
    if "/" in name:
        candidates = [name]
    else:
        path = environ.get("PATH", os.defpath)
        candidates = [f"{directory or '.'}/{name}" for directory in path.split(":")] if name else []
    denied = ""
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
        if not denied and os.path.lexists(candidate):
            denied = candidate
    if denied:
        reason = "is a directory" if os.path.isdir(denied) else "is not executable"
        raise CannotExecute(f"cannot execute: {reason}", where=denied, hint=f"chmod +x {quote(denied)}?")
    raise CommandNotFound("command not found", where=quote(name), hint=_why_not_found(name))


def _why_not_found(name: str) -> str:
    """The most likely reason why there is no such program."""
    variable = name.partition("=")[0]
    if variable != name and variable.isidentifier():
        return "to set a variable, put env first: env NAME=VALUE COMMAND"
    if " " in name.strip():
        return "that is one word: leave out the quotes, or, for a shell: sh -c 'COMMAND'"
    return "no such file" if "/" in name else "it is not in any directory of PATH"


def in_path(name: str, environ: Mapping[str, str]) -> str:
    """The program of that name for who has these variables; "" if there is none."""
    paths = (f"{place}/{name}" for place in environ.get("PATH", os.defpath).split(":") if place)
    return next((path for path in map(on_host, paths) if os.access(path, os.X_OK)), "")


def runs_podman(program: str, environ: Mapping[str, str]) -> bool:
    """Whether a job may start podman: it is the job's program, or installed."""
    return program.endswith("/podman") or bool(in_path("podman", environ))


def become(program: str, command: tuple[str, ...], env: Mapping[str, str], mask: Iterable[int]) -> NoReturn:
    """Execute the command in place of slicer. ``mask``: its signal mask. Never returns; raises OSError."""
    for signo in _IGNORED:
        signal.signal(signo, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execve(program, command, env)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve(*_by_shell(program, command), env)


def spawn(
    program: str, command: tuple[str, ...], env: Mapping[str, str], mask: Iterable[int],
    moves: Iterable[tuple[int, int]],
) -> int:  # fmt: skip
    """Execute the command in a child; its pid. ``moves``: which descriptor goes where. Raises OSError."""
    # A descriptor already in its place may be the placeholder of one that the caller closed.
    actions = [(os.POSIX_SPAWN_DUP2, fd, place) for fd, place in moves if fd != place]

    def start(path: str, argv: tuple[str, ...]) -> int:
        return os.posix_spawn(path, argv, env, file_actions=actions, setsigmask=mask, setsigdef=_IGNORED)

    try:
        return start(program, command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        return start(*_by_shell(program, command))


def _by_shell(program: str, command: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """How to execute a script without "#!", as execvp(3) and every shell do."""
    return "/bin/sh", ("/bin/sh", program, *command[1:])


def cannot_execute(program: str, exec_errno: int) -> SlicerError:
    """The error for a command that the kernel would not execute (exit code 126 or 127)."""
    why, hint = os.strerror(exec_errno), ""
    if exec_errno == errno.E2BIG:
        hint = "a command, and each of its variables, must be below 128 KiB: put it in a file"
    lacking = _interpreter(program) if exec_errno != errno.E2BIG else ""
    if lacking:
        why = f"its {lacking}: {why}"
        crlf = f"its lines end in CRLF: sed -i 's/\\r$//' {quote(program)}"
        hint = crlf if lacking.endswith("\\r") else "it was moved or never installed here"
    kind = CommandNotFound if exec_errno == errno.ENOENT and not lacking else CannotExecute
    return kind(f"cannot execute: {why}", where=program, hint=hint)


def _interpreter(program: str) -> str:
    """What the kernel executes in place of an existing file; "" for none, or if it cannot be read."""
    try:
        with open(os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            head = file.read(256)  # of a script's first line the kernel reads no more
    except OSError:
        return ""
    if head.startswith(b"\x7fELF"):
        return "dynamic loader"
    if not head.startswith(b"#!"):
        return ""
    name = head[2:].partition(b"\n")[0].replace(b"\t", b" ").strip(b" ").partition(b" ")[0]
    return f"interpreter {visible(os.fsdecode(name))}"
