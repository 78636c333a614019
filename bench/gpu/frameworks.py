"""The frameworks that unmodified programs are written in: which are there, and how they are installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.place import tail

# What is imported, and what pip installs for it.
PACKAGES = {
    "torch": ("torch", "torchvision", "numpy"),  # brings Triton, and NCCL
    "cupy": ("cupy-cuda12x",),
    "cupy13": ("cupy-cuda13x",),
    "jax": ("jax[cuda12]",),
    "jax13": ("jax[cuda13]",),
}
IMPORTED = ("torch", "torchvision", "triton", "cupy", "jax")
_INSTALL_S = 420.0
_LOOK = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        found[name] = str(getattr(module, "__version__", "?"))
    except Exception as error:
        found[name] = ""
        print(f"{name}: {error}", file=sys.stderr)
print(json.dumps(found))
"""


def versions(python: str) -> dict[str, str]:
    """The version of each that can be imported; "" for the others."""
    try:
        done = subprocess.run(
            [python, "-c", _LOOK, *IMPORTED], capture_output=True, text=True, check=False, timeout=120
        )
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return dict.fromkeys(IMPORTED, "")
    return found


def missing(python: str, name: str) -> str:
    """Why a package cannot be imported; "": it can."""
    done = subprocess.run([python, "-c", f"import {name}"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{name} cannot be imported: {tail(done.stderr)}"


def install(folder: Path, names: Sequence[str]) -> str:
    """Install them into a virtual environment, which sees what is installed already; its Python.

    What cannot be installed is said, and its checks are not tried.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        command = [sys.executable, "-m", "venv", "--system-site-packages", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
    pip = [str(python), "-m", "pip", "install", "-q", "--retries", "1", "--timeout", "10"]
    for name in names:
        packages = PACKAGES.get(name, (name,))
        try:
            command = [*pip, *packages]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
            why = tail(done.stderr) if done.returncode else ""
        except subprocess.TimeoutExpired:
            why = f"pip did not end in {_INSTALL_S:.0f} s"
        if why:
            print(f"{name} cannot be installed: {why}", file=sys.stderr)
    return str(python)


def nvcc() -> str | None:
    """The compiler of the CUDA toolkit, if there is one."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
