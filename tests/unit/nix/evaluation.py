"""Evaluating Nix expressions without a store, with a part of nixpkgs: its lib."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.machines import host
from tests.machines.host import REPO
from tests.machines.settings import ci

HERE = Path(__file__).resolve().parent
NIX = REPO / "nix"
FILES = (REPO / "flake.nix", *sorted(NIX.glob("*.nix")), *sorted(HERE.glob("*.nix")))
TIMEOUT_S = 120


class Refused(Exception):
    """Nix did not evaluate it; the text is what it said."""


def instantiate() -> str:
    """The path of nix-instantiate. Without it the test is skipped, and fails in CI."""
    found = host.tool("nix-instantiate")
    if found is None:
        reason = "nix-instantiate is not installed (Debian's nix-bin; `make test` installs it)"
        if ci():
            pytest.fail(f"{reason} (CI=true, so this is no skip)")
        pytest.skip(reason)
    return found


@functools.cache
def _nixpkgs_lib() -> Path | None:
    named = os.environ.get("NIXPKGS_LIB")
    places = (Path(named), Path(named, "lib")) if named else ()
    return next((found.resolve() for found in places if (found / "default.nix").is_file()), None)


def nixpkgs_lib() -> Path:
    """The folder of nixpkgs' lib; without it the test is skipped, in CI too: no package has it."""
    found = _nixpkgs_lib()
    if found is None:
        pytest.skip("nixpkgs' lib is not here: name its folder in NIXPKGS_LIB")
    return found


def run(*arguments: str | Path) -> str:
    """What nix-instantiate prints. Raises Refused."""
    done = subprocess.run(
        [instantiate(), *map(str, arguments)],
        # Nothing is made outside of the evaluation, neither a store nor a cache.
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "NIX_REMOTE": "dummy://"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def evaluate(file: str, *, given: object = None, expression: str = "") -> Any:
    """The value of a function in a file of this folder, called with nixpkgs' lib and with ``given``.

    That is data, or else what an ``expression`` of the Nix language says. Raises Refused.
    """
    argument = expression or f"builtins.fromJSON {_quoted(given)}"
    call = f"import {HERE / file} {{ lib = import {nixpkgs_lib()}; given = {argument}; }}"
    return json.loads(run("--eval", "--strict", "--json", "--expr", call))


def _quoted(given: object) -> str:
    """Data as a string of the Nix language."""
    text = json.dumps(given)
    for character in ("\\", '"', "$"):
        text = text.replace(character, f"\\{character}")
    return f'"{text}"'
