"""A program with a hostile name is wrapped. What else is said of wraps: the golden surface, wrap."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

ROUTES = '[routes.small]\nprobe = "duration"\nthreshold = "1h"\n[routes.small.gpu]\n[routes.small.cpu]\n'


def test_a_name_that_talks_to_the_terminal_is_shown_and_not_obeyed(cli: Cli) -> None:  # C5
    (cli.root / "config" / "slicer").mkdir(parents=True)
    (cli.root / "config" / "slicer" / "config.toml").write_text(ROUTES)
    odd, slicer = Path(cli.root, "a\x1b[31m\nb"), Path(cli.root, "slicer")
    for path in (odd, slicer):
        shutil.copy(shutil.which("true") or "", path)
    done = cli.run("wrap", "install", str(odd), "--route", "small", "--slicer", str(slicer))
    said = [done.stdout + done.stderr, cli.run("wrap").stdout, cli.run("wrap", "check").stdout]
    odd.with_name(f"{odd.name}-real").unlink()
    said += [cli.run("wrap", "check", code=1).stdout, cli.run("wrap", "remove", str(odd)).stdout]
    assert all("\x1b" not in text and "\\x1b[31m\\nb" in text for text in said)
