"""Calls of dpkg: which package owns a file, and diversions, which tell dpkg to put a file elsewhere.

Diversions use ``--no-rename``, because dpkg's own renaming leaves the program without its name for a moment.
slicer renames it instead, in steps that never remove the name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from slicer.wrap.terms import NOBODY, SUFFIX, Diversion, PackageOwner, WrapError

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # not the caller's, because root runs these programs
_LIST = "/var/lib/dpkg/diversions"
_MOST_BYTES = 16 << 20
_TIMEOUT_S = 60.0
_NOT_FOUND = 1  # dpkg-query's exit code
_GLOB = re.compile(r"([\\*?\[])")
_OF_DIVERSIONS = ("diversion by ", "local diversion ")


def owner(path: str) -> PackageOwner:
    """The package that owns a file, if dpkg is installed and knows it. Raises WrapError."""
    names = aliases(path)
    patterns = [_GLOB.sub(r"\\\1", name) for name in names]
    code, out, err = _run("dpkg-query", "--search", "--", *patterns)
    if code is None:
        return NOBODY
    if code not in (0, _NOT_FOUND):
        raise WrapError(f"dpkg-query failed: {err}", where=path)
    return parse(out, names)


def parse(out: str, names: tuple[str, ...]) -> PackageOwner:
    """The owner in dpkg-query's output: ``package, other:amd64: /usr/bin/x``. Pure."""
    for line in out.splitlines():
        if line.startswith(_OF_DIVERSIONS):
            continue
        packages, colon, name = line.partition(": ")
        if colon and name in names:
            return PackageOwner(packages, name)
    return NOBODY


def aliases(path: str) -> tuple[str, ...]:
    """The file's names if /bin is a link to /usr/bin, and the like; the canonical one first."""
    found = [path]
    top, _, rest = path.removeprefix("/usr/").partition("/")
    if path.startswith("/usr/") and rest and os.path.realpath(f"/{top}") == f"/usr/{top}":
        found.append(f"/{top}/{rest}")
    return tuple(found)


def diversions(names: tuple[str, ...] | None = None) -> tuple[Diversion, ...]:
    """All diversions, or those of the names; none without dpkg."""
    try:
        with open(_LIST, "rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return ()
    return tuple(each for each in parse_list(data) if names is None or each.path in names)


def parse_list(data: bytes) -> tuple[Diversion, ...]:
    """Parse dpkg's list: three lines for each diversion; the last is a package or ":". Pure."""
    lines = os.fsdecode(data).split("\n")
    whole = zip(lines[0::3], lines[1::3], lines[2::3], strict=False)
    return tuple(Diversion(path, to, "" if by == ":" else by) for path, to, by in whole)


def divert(path: str) -> None:
    """Make dpkg put the package's file at REAL from now on. Safe to repeat. Raises WrapError."""
    _must("--local", "--no-rename", "--divert", f"{path}{SUFFIX}", "--add", path)


def undivert(path: str) -> None:
    """Undo the diversion. Safe to repeat. Raises WrapError."""
    _must("--local", "--no-rename", "--divert", f"{path}{SUFFIX}", "--remove", path)


def _must(*arguments: str) -> None:
    code, _, err = _run("dpkg-divert", "--quiet", *arguments)
    if code is None:
        raise WrapError("dpkg-divert is not installed", where=arguments[-1], hint=f"searched in {_PATH}")
    if code:
        raise WrapError(f"dpkg-divert failed: {err}", where=arguments[-1])


def _run(name: str, *arguments: str) -> tuple[int | None, str, str]:
    """Exit code, stdout, and stderr on one line; None if the program is not installed."""
    program = shutil.which(name, path=_PATH)
    if program is None:
        return None, "", ""
    try:
        done = subprocess.run(
            [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=_TIMEOUT_S, env={**os.environ, "LC_ALL": "C", "PATH": _PATH},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise WrapError(f"{name} did not answer within {_TIMEOUT_S:.0f} s", where=arguments[-1]) from error
    said = " ".join(os.fsdecode(done.stderr).split())
    return done.returncode, os.fsdecode(done.stdout), said
