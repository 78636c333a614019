"""A place to run slicer in for a look at its surface: directories of its own, and no trace on the machine."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import slicer
from tests.patience import DEADLINE_S
from tests.shield import variables

SRC = str(Path(slicer.__file__).parents[1])
SERVER = str(Path(__file__).with_name("server.py"))
SIMULATED = {"SLICER_SIM": "2x24G"}
# Root's history is not below its home, and root sees other paths: what root runs here is another user's.
USER = 12345
# The checkout and its Python may lie below a directory that is closed to others.
_KEEP = "-all,+dac_read_search"
_AS_USER = (
    "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", f"--inh-caps={_KEEP}",
    f"--ambient-caps={_KEEP}", "--",
)  # fmt: skip


class Done(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str


class Running(NamedTuple):
    """A command line that runs."""

    pid: int
    out: Path
    err: Path


class Box:
    """slicer for a user with nothing of his own but this directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.work = root / "work"
        self.history = root / "xdg-state" / "slicer" / "history.db"
        self._journal = root / "journald"
        self._count = 0
        self._uid = os.geteuid() or USER
        self._user = re.compile(rf"\b{re.escape(_name_of(self._uid))}\b")
        self.env = {
            "PATH": f"{root}/bin:{os.environ['PATH']}", "HOME": str(root), "LANG": "C.UTF-8", "TZ": "UTC",
            "COLUMNS": "100", "PYTHONPATH": ":".join(filter(None, (SRC, os.getenv("PYTHONPATH")))),
            "CPU_RUN_SLOTS": "1",
            "SLICER_STATE_DIR": str(self.state), "XDG_STATE_HOME": str(root / "xdg-state"),
            "XDG_CONFIG_HOME": str(root / "config"), "XDG_CACHE_HOME": str(root / "cache"),
            "SURFACE_JOURNAL": str(self._journal), **variables(root),
        }  # fmt: skip
        for directory in (root, self.work, root / "bin", root / "out"):
            directory.mkdir(exist_ok=True)
            if os.geteuid() == 0:
                os.chown(directory, USER, USER)
        self.as_user = _AS_USER if os.geteuid() == 0 else ()
        self._server = subprocess.Popen(
            [*self.as_user, sys.executable, "-P", SERVER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env, cwd=self.work, text=True,
        )  # fmt: skip

    # -- running ----------------------------------------------------------------------------------------

    def start(self, *arguments: str, env: dict[str, str] | None = None, script: str = "") -> Running:
        """Start ``slicer ARGUMENTS``, or that text as a program of Python's."""
        self._count += 1
        out, err = (self.root / "out" / f"{self._count}.{name}" for name in ("out", "err"))
        for path in (out, err):
            path.touch()
            path.chmod(0o666)
        ask: dict[str, Any] = {"arguments": arguments, "env": env or {}, "out": str(out), "err": str(err)}
        if script:
            ask["script"] = script
        return Running(self._ask(ask), out, err)

    def wait(self, running: Running) -> Done:
        """The end of what was started."""
        code = self._ask({"wait": running.pid})
        return Done(code, *(self.plain(path.read_text()) for path in (running.out, running.err)))

    def run(self, *arguments: str, env: dict[str, str] | None = None, script: str = "") -> Done:
        """Run a command line from start to end."""
        return self.wait(self.start(*arguments, env=env, script=script))

    def _ask(self, ask: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(ask)}\n")
        self._server.stdin.flush()
        ready, _, _ = select.select([self._server.stdout], [], [], DEADLINE_S)
        assert ready, f"no answer to {ask}"
        return int(self._server.stdout.readline())

    # -- looking ----------------------------------------------------------------------------------------

    def plain(self, text: str) -> str:
        """Text without this box's place, and with the number of its user for the name."""
        return self._user.sub(str(self._uid), text.replace(str(self.root), "BOX"))

    def events(self) -> list[dict[str, str]]:
        """What was told to journald: the fields of each entry."""
        told = [bytes.fromhex(line).decode() for line in self._journal.read_text().splitlines()]
        # No field that is sent here has several lines.
        return [dict(line.split("=", 1) for line in self.plain(entry).splitlines()) for entry in told]

    def files(self, folder: str) -> list[Path]:
        """The whole files in a folder of the simulated machine's state."""
        found = (self.state / "sim-2x24G" / folder).glob("*")
        return sorted(path for path in found if path.is_fifo() or _ends_well(path))

    # -- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End whatever still runs."""
        mark = f"SURFACE_JOURNAL={self._journal}".encode()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if pid != self._server.pid and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)
        with self._server:
            self._server.kill()


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _ends_well(path: Path) -> bool:
    try:
        return path.read_bytes().endswith(b"\nEND=\n")
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def made() -> Iterator[Box]:
    """A box that leaves nothing behind."""
    with TemporaryDirectory(prefix="slicer-surface-") as directory:
        box = Box(Path(directory))
        try:
            yield box
        finally:
            box.close()
