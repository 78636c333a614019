"""The preloaded library: built with this machine's compiler, if it is not there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from bench.gpu.place import LIBRARY, ROOT, tail

_PLAIN = (
    "-std=c11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-ftls-model=initial-exec",
    "-D_GNU_SOURCE",
)  # fmt: skip


def build() -> dict[str, Any]:
    """Build it as the package does; without setuptools, by the compiler alone. Else the program ends."""
    how = "was there"
    if _is_stale():
        LIBRARY.unlink(missing_ok=True)
        packaged = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(packaged, cwd=ROOT, capture_output=True, text=True, check=False)
        how = "setup.py"
        if not LIBRARY.exists():
            done, how = _plain(), "compiler alone"
        if not LIBRARY.exists():
            raise SystemExit(f"the library cannot be built: {tail(done.stderr)}")
    return {"path": str(LIBRARY.relative_to(ROOT)), "built_by": how, "bytes": LIBRARY.stat().st_size}


def _is_stale() -> bool:
    """Whether it is missing, or older than what it is made of."""
    if not LIBRARY.exists():
        return True
    sources = [*(LIBRARY.parent / "preload").glob("*.[ch]")]
    return max(each.stat().st_mtime for each in sources) > LIBRARY.stat().st_mtime


def _plain() -> subprocess.CompletedProcess[str]:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("there is no C compiler: install gcc")
    sources = sorted(map(str, (LIBRARY.parent / "preload").glob("*.c")))
    command = [compiler, *_PLAIN, "-o", str(LIBRARY), *sources, "-ldl", "-lpthread"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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
