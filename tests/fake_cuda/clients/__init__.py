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
    """Compile the clients into ``directory``, against the driver in the directory ``driver``; return ``directory``.

    ``flags``: more for the compiler (a sanitizer). Raises CalledProcessError with the compiler's words.
    """
    directory.mkdir(parents=True, exist_ok=True)
    cc = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", *flags]
    sources = [str(HERE / f"{name}.c") for name in ("client", "commands", "driver", "memory")]
    linked = ["-DLINKED", f"-L{driver}", "-l:libcuda.so.1"]
    for name, more in (("client", []), ("client-linked", linked), ("client.so", ["-DNO_MAIN", "-shared", "-fPIC"])):
        libraries = [word for word in more if word.startswith(("-L", "-l"))]
        options = [word for word in more if word not in libraries]
        subprocess.run([*cc, *options, "-o", str(directory / name), *sources, *libraries, "-ldl", "-lpthread"], check=True)
    for name in ("next.so", "loader"):
        shared = ["-shared", "-fPIC"] if name.endswith(".so") else []
        source = str(HERE / f"{name.removesuffix('.so')}.c")
        subprocess.run([*cc, *shared, "-o", str(directory / name), source, "-ldl"], check=True)
    return directory


def command(directory: Path, way: str, python: Sequence[str]) -> list[str]:
    """The command line of a client that finds the driver in this way (one of ``WAYS``)."""
    if way == "ctypes":
        return [*python, str(HERE / "ctypes_client.py")]
    return [str(directory / ("client-linked" if way == "linked" else "client")), way]
