"""Which modules ``slicer run`` and ``route`` import, from start to end, in both halves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Protocol

from tests.patience import until


class Place(Protocol):
    """Where a run takes place."""

    prefix: tuple[str, ...]
    env: Mapping[str, str]


# Each of these costs a good part of what a whole run may take over systemd-run.
BANNED = {
    "asyncio", "click", "collections", "contextlib", "ctypes", "dataclasses", "enum", "functools", "inspect",
    "json", "logging", "lxml", "pathlib", "psutil", "pynvml", "pystemd", "random", "re", "shutil",
    "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "tomllib", "traceback", "typing",
    "uuid",
}  # fmt: skip

# Written in C alone; which of them are built into the interpreter differs from build to build.
_C = {"_ctypes", "errno", "fcntl", "marshal", "math", "posix", "resource", "select", "time", "zlib"}

# What the C module of sqlite3 imports, for an lru_cache, when the outcome goes into the history: 1 ms.
SQLITE = {"collections", "collections.abc", "functools", "keyword", "operator", "reprlib", "types"}

PLAIN = _C | SQLITE
SYSTEMD = PLAIN | {"pystemd.dbusexc", "pystemd.dbuslib"}

_CODE = "from slicer.__main__ import main; main()"


# A job that runs for a second is sampled from then on, and on a busy machine ``true`` is one.
_LATER = "slicer.job.sampling"


def imported(place: Place, *arguments: str, program: str = "run") -> set[str]:
    """The modules that ``slicer PROGRAM ARGUMENTS`` imports for a short job, beyond an idle interpreter's."""

    def found() -> set[str] | None:
        modules = _trace(place, _CODE, program, *arguments)
        return modules if _LATER not in modules else None

    return until(found, "the job is over within a second") - _trace(place, "pass")


def imported_with_cache(place: Place, *arguments: str, program: str = "run") -> set[str]:
    """The same, once the configuration is in the cache, which a file that is only just written is not."""

    def found() -> set[str] | None:
        modules = imported(place, *arguments, program=program)
        return modules if "tomllib" not in modules else None

    return until(found, "the configuration is in the cache")


def surplus(found: set[str], allowed: set[str]) -> set[str]:
    """What is neither slicer's, nor built in, nor allowed. Extension modules (_x) cost next to nothing."""
    return {
        name
        for name in found
        if name.partition(".")[0] != "slicer" and name not in sys.builtin_module_names and name not in allowed
        and not name.startswith("_")
    }  # fmt: skip


def _trace(place: Place, code: str, *arguments: str) -> set[str]:
    command = [*place.prefix, sys.executable, "-X", "importtime", "-c", code, *arguments]
    # The keeper inherits stderr, so its imports are in there too.
    done = subprocess.run(
        command, env=place.env, capture_output=True, text=True, check=True, errors="replace"
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}
