r"""Scenes whose script is their golden copy: its titles are run in their order.

    ==== slicer status --bogus   # W14     that command line; what follows "#" is a remark, a promise's ID
    ==== SLICER_SIM=1 slicer status        with that variable; "env: SLICER_SIM=1" is for all lines below
    ==== file jobs.txt                     what stands below is written there first
    ==== complete: slicer run -p ''         what completion offers for the last word
    ==== toml: [slots]\ncpu = 0             what is said of such a file; also routes:, serve:, policy:, jobs:
    ==== python: slicer.acquire(gpus=0)    which error that raises
    ==== sh: ls ../bin                     any line of a shell's

BOX is the box's directory; commands start in BOX/work. Without an exit code a line has ended with 0.
To add a case, add its title, write the copy anew and read it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable

from tests.patience import LONGEST_S
from tests.unit.surface import golden
from tests.unit.surface.box import Box, Done
from tests.unit.surface.shape import Shape
from tests.unit.surface.words import settled

Scene = Callable[[Box], dict[str, str | Shape]]

_SINCE = re.compile(r'(?<="since": )[\d.]+')
# What tells of the mistakes in a file, which is FILE or the configuration.
_OF_A_FILE = {
    "toml:": ("profiles",), "routes:": ("routes",), "serve:": ("serve", "--dry-run"),
    "policy:": ("policy", "check", "FILE"), "jobs:": ("queue", "--backend", "plain", "FILE"),
}  # fmt: skip
_ESCAPED = {"n": "\n", "t": "\t", "0": "\0"}
_CATCH, _CAUGHT = "import slicer\ntry:\n    ", "except ValueError as error:\n    print(error)\n"
NAMES = ("wrong-lines", "configuration", "routes", "wrap", "install", "completion", "mistakes")


def scene(name: str) -> Scene:
    """The scene that the golden copy of that name tells."""

    def play(box: Box) -> dict[str, str | Shape]:
        env: dict[str, str] = {}
        return {title: _played(box, env, title, lines) for title, lines in golden.read(name).items()}

    return play


def _played(box: Box, env: dict[str, str], title: str, lines: list[str]) -> str:
    line = title.replace("BOX", str(box.root))
    kind, _, rest = line.partition(" ")
    if kind == "file":
        path = box.work / rest.partition(" #")[0].strip()
        path.write_text("".join(f"{text}\n" for text in lines).replace("BOX", str(box.root)))
        path.chmod(0o644)
        return "\n".join(lines)
    if kind == "sh:":
        return told(_in_shell(box, rest))
    if kind in _OF_A_FILE:
        path = box.work / "mistake"
        path.write_text(re.sub(r"\\(.)", lambda found: _ESCAPED.get(found[1], found[1]), rest) + "\n")
        path.chmod(0o644)
        words = [str(path) if word == "FILE" else word for word in _OF_A_FILE[kind]]
        named = {} if "FILE" in _OF_A_FILE[kind] else {"SLICER_CONFIG": str(path)}
        return told(box.run(*words, env={**env, **named}))
    if kind == "python:":
        return told(box.run(script=f"{_CATCH}{rest}\n{_CAUGHT}", env=env))
    words = shlex.split(line, comments=True)
    if kind == "complete:":
        typed = "".join(f"{word}\n" for word in words[1:])
        asked = {"_SLICER_COMPLETE": "bash_words", "_SLICER_WORDS": typed}
        return told(box.run(env={**env, **asked}))
    start = words.index("slicer") if "slicer" in words else len(words)
    more = dict(word.split("=", 1) for word in words[kind == "env:" : start])
    if kind == "env:":
        env.update(more)
        return ""
    return told(box.run(*words[start + 1 :], env={**env, **more}))


def _in_shell(box: Box, line: str) -> Done:
    done = subprocess.run(
        [*box.as_user, "sh", "-c", line], env=box.env, cwd=box.work, capture_output=True, text=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip
    return Done(done.returncode, box.plain(done.stdout), box.plain(done.stderr))


def told(done: Done) -> str:
    """Output and exit code as text; 0 goes without saying. The width of a column of paths is chance."""
    out = re.sub(r"(?<=\S) {2,}", "  ", done.out) if "BOX" in done.out else done.out
    shown = [_SINCE.sub("#", out.rstrip("\n"))] if out else []
    shown += [f"2> {settled(line) if ' · CPU ' in line else line}" for line in done.err.splitlines()]
    return "\n".join([*shown, *([f"exit code {done.code}"] if done.code else [])])
