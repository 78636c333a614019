"""The frameworks that unmodified programs are written in: which are there."""

from __future__ import annotations

import json
import subprocess

from bench.gpu.place import tail

IMPORTED = ("torch", "torchvision", "triton", "cupy", "jax")
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
