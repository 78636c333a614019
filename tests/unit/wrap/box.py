"""A directory with a program in it, a stand-in for slicer, and records of its own.

As a pytest plugin (``pytest_plugins = ["tests.unit.wrap.box"]``) it offers the fixture ``box``.

PYTEST_DONT_REWRITE: tests import names from here before pytest loads it as a plugin.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from slicer.kernel import SYSROOT
from slicer.wrap import dpkg, wrapping
from slicer.wrap.terms import NOBODY, Wrap, WrapPlan

# What `slicer route` does in the end: ``route NAME --program PROGRAM -- ARGV0 ARGUMENTS``.
STAND_IN = f"""\
#!{sys.executable} -IS
import os, sys
route, name, option, program, dashes, *argv = map(os.fsencode, sys.argv[1:])
assert (route, option, dashes) == (b"route", b"--program", b"--"), sys.argv
if b"ROUTE_LOG" in os.environb:
    with open(os.environb[b"ROUTE_LOG"], "ab") as log:
        log.write(name + b"\\n")
os.execv(program, argv)
"""


class Box:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.program = self.bin / "whisper"
        self.real = self.bin / "whisper-real"
        self.slicer = root / "slicer"
        self.slicer.write_text(STAND_IN)
        self.slicer.chmod(0o755)
        state = root / "host" / "var" / "lib"  # where root's records are, too
        self.records = state / "slicer" / "wraps"
        self.environ = {"HOME": str(root), "XDG_STATE_HOME": str(state)}
        self.put("first")

    def put(self, said: str, path: Path | None = None) -> Path:
        """A program that says so, in place of what is there: as an upgrade brings it."""
        path = path or self.program
        draft = path.with_name("draft")
        draft.write_text(f"#!/bin/sh\necho {said}\n")
        draft.chmod(0o755)
        draft.rename(path)
        return path

    def install(self, path: Path | None = None, *, route: str = "small", **changes: Any) -> WrapPlan:
        asked = {"slicer": str(self.slicer), **changes}
        return wrapping.install(str(path or self.program), route, self.environ, **asked)

    def remove(self, path: Path | None = None, keep: str | None = None) -> WrapPlan:
        return wrapping.remove(str(path or self.program), self.environ, keep)  # type: ignore[arg-type]

    def mend(self) -> None:
        """What ``slicer wrap check --fix`` does."""
        assert wrapping.mend(str(self.program), self.environ, str(self.slicer)) == ""

    def state(self) -> str:
        """The state of the only wrap, "" for none."""
        found = wrapping.statuses(self.environ, ("small",))
        return found[0].state if found else ""

    def record(self) -> Wrap:
        (status,) = wrapping.statuses(self.environ, None)
        return status.wrap

    def names(self) -> list[str]:
        return sorted(os.listdir(self.bin))


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr(dpkg, "owner", lambda path: NOBODY)  # it takes its time
    monkeypatch.setenv(SYSROOT, str(tmp_path / "host"))
    return Box(tmp_path)

