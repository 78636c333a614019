"""Programs that use the CUDA driver, a command at a time (see ``client.c``)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent

WAYS = ("dlsym", "proc", "ptsz", "cudart", "linked", "ctypes")
"""How a client finds the driver's functions: the first argument of ``command``."""


def build(directory: Path, driver: Path, *flags: str) -> Path:
    """Compile the clients into ``directory``, against the driver in ``driver``; return ``directory``.

    ``flags``: more for the compiler (a sanitizer). Raises CalledProcessError with the compiler's words.
    """
    directory.mkdir(parents=True, exist_ok=True)
    cc = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-g", "-fPIC", "-D_GNU_SOURCE", *flags]
    cc += ["-Wall", "-Wextra", "-Werror"]

    def run(*words: str) -> None:
        subprocess.run([*cc, *words], check=True, cwd=directory)

    sources = {
        name: str(HERE / f"{name}.c") for name in ("client", "commands", "driver", "memory", "loader", "next")
    }
    run("-c", *(sources[name] for name in ("client", "commands", "driver", "memory")))
    run("-c", "-DLINKED", sources["driver"], "-o", "driver-linked.o")
    common = ("client.o", "commands.o", "memory.o", "-ldl", "-lpthread")
    run("driver.o", *common, "-o", "client")
    run("driver.o", *common, "-shared", "-o", "client.so")
    run("driver-linked.o", *common, f"-L{driver}", "-l:libcuda.so.1", "-o", "client-linked")
    run(sources["loader"], "-ldl", "-o", "loader")
    run(sources["next"], "-shared", "-ldl", "-o", "next.so")
    return directory


def command(directory: Path, way: str, python: Sequence[str]) -> list[str]:
    """The command line of a client that finds the driver in this way (one of ``WAYS``)."""
    if way == "ctypes":
        return [*python, str(HERE / "ctypes_client.py")]
    return [str(directory / ("client-linked" if way == "linked" else "client")), way]
