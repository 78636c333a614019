"""The preloaded library: built with this machine's compiler, if it is not there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from typing import Any

from bench.gpu.place import LIBRARY, ROOT, tail

_PLAIN = (
    "-std=c11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-ftls-model=initial-exec",
    "-D_GNU_SOURCE",
)  # fmt: skip


def build() -> dict[str, Any]:
    """Build it as setup.py does, by the compiler alone, unless it is there. Ends the program if it cannot."""
    sources = [*(LIBRARY.parent / "preload").glob("*.[ch]")]
    if LIBRARY.exists() and max(each.stat().st_mtime for each in sources) <= LIBRARY.stat().st_mtime:
        return {"path": str(LIBRARY.relative_to(ROOT)), "built_by": "was there"}
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("there is no C compiler: install gcc")
    units = sorted(str(each) for each in sources if each.suffix == ".c")
    command = [compiler, *_PLAIN, "-o", str(LIBRARY), *units, "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the library cannot be built: {tail(done.stderr)}")
    return {"path": str(LIBRARY.relative_to(ROOT)), "built_by": compiler}


def machine() -> dict[str, Any]:
    """What else matters of the machine."""
    return {
        "cpus": os.cpu_count(), "kernel": platform.release(), "arch": platform.machine(),
        "python": platform.python_version(), "glibc": platform.libc_ver()[1],
        "gcc": _first_line(["gcc", "--version"]), "nvcc": _first_line(["nvcc", "--version"], -1),
        "driver": _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
    }  # fmt: skip


def _first_line(command: list[str], which: int = 0) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    lines = done.stdout.strip().splitlines()
    return lines[which] if lines else None
