"""What the machines need from the host: root rights, a few tools, and one door for subprocesses."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

# The tool that a step calls → the Debian package that has it.
BUILD_TOOLS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "gpgv": "gpgv"}
NAMESPACE_TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
NIX_TOOLS = {"nix-instantiate": "nix-bin"}  # no machine needs it, but tests/unit/nix
SANDBOX_TOOLS = {"bwrap": "bubblewrap"}  # nor this, but tests/process/test_nix_build.py
MEDIA_TOOLS = {"ffmpeg": "ffmpeg", "ffprobe": "ffmpeg"}  # nor these, but tests of routes (tests/media.py)
BROWSER_TOOLS = {"chromium": "chromium"}  # nor this, but tests of pages (tests/browser.py)
PROMETHEUS_TOOLS = {"promtool": "prometheus"}  # nor this, but tests/unit/web/test_metrics.py
QEMU_TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs"}

# mke2fs and friends live in sbin, which a user's PATH may lack.
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

# For every process that a machine's thread starts. Without it exec(2) gets the C library's own array, and
# fails with EFAULT while a test in the first thread sets a variable.
ENVIRON = {**os.environ, "PATH": _PATH}


class MachineError(Exception):
    """A machine that should work broke: it did not boot, crashed, or went silent."""


class Unavailable(MachineError):
    """A machine cannot be had on this host (no root, a tool is missing, …); the text is the reason."""


def tool(name: str) -> str | None:
    """The path of an executable, sbin included, or None."""
    return shutil.which(name, path=_PATH)


def need_tools(tools: Mapping[str, str]) -> None:
    """Raise Unavailable, naming the packages, unless all tools are there."""
    missing = sorted({package for name, package in tools.items() if tool(name) is None})
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)} (`make test` installs it)")


@functools.cache
def root_prefix() -> tuple[str, ...]:
    """What to put before a command that needs root: nothing for root, else `sudo -n`.

    Raises Unavailable where neither works; it never asks for a password.
    """
    if os.geteuid() == 0:
        return ()
    if tool("sudo") is None:
        raise Unavailable("needs root, and there is no sudo")
    if subprocess.run(["sudo", "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True).returncode != 0:
        raise Unavailable("needs root: run it as root, or `sudo -v` first")
    return ("sudo", "-n")


def as_root(argv: Iterable[str | Path]) -> list[str]:
    """The command that runs argv as root."""
    return [*root_prefix(), *map(str, argv)]


def check(argv: Sequence[str | Path], *, log: Path | None = None, cwd: Path | None = None) -> None:
    """Run a host command to its end; on failure raise MachineError with the end of its output.

    With `log`, the output is appended there as it comes, so that a long build can be watched.
    """
    words = [str(word) for word in argv]
    with log.open("a+") if log is not None else tempfile.TemporaryFile("w+") as out:
        start = out.seek(0, os.SEEK_END)
        done = subprocess.run(
            words,
            cwd=cwd,
            env=ENVIRON,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        out.seek(start)
        output = out.read()
    if done.returncode != 0:
        raise MachineError(f"`{shlex.join(words)}` ended with {done.returncode}:\n{tail(output)}")


def tail(text: str, lines: int = 60) -> str:
    """The last lines of a text."""
    return "\n".join(text.splitlines()[-lines:])


def install_packages(tools: Mapping[str, str]) -> None:
    """Install by apt what is missing of the tools. Raises Unavailable or MachineError."""
    missing = sorted({package for name, package in tools.items() if tool(name) is None})
    if not missing:
        return
    if tool("apt-get") is None:
        raise Unavailable(f"not installed, and no apt-get here: {', '.join(missing)}")
    print(f"installing {', '.join(missing)}", flush=True)
    apt = as_root(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"])
    check([*apt, "update"])
    check([*apt, "install", "-y", "--no-install-recommends", *missing, "debian-archive-keyring"])
