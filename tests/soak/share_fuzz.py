"""Feeds broken job files and arenas to the library that is preloaded into sharing jobs.

``python -m tests.soak.share_fuzz`` (a part of ``make soak``) does so for a while, thousands a second, with
the library built for the address and undefined-behaviour sanitizers. A round is its seed: ``--seed`` with the
one that failed makes it the same again. The library must refuse a file or go on with it; it must not crash,
hang, or touch memory that is not its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PRELOAD = HERE.parents[1] / "src" / "slicer" / "share" / "preload"
ROUNDS = 5000
FLAGS = ("-std=c11", "-O1", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{PRELOAD}")
SANITIZERS = ("-fsanitize=address,undefined,bounds-strict", "-fno-sanitize-recover=all")


def build(directory: Path) -> Path:
    """Compile the program. Raises CalledProcessError with the compiler's words."""
    program = directory / "share-fuzz"
    sources = [str(HERE / "share_fuzz.c"), *map(str, sorted(PRELOAD.glob("*.c")))]
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, *FLAGS, *SANITIZERS, "-o", program, *sources, "-ldl", "-lpthread"], check=True)
    return program


def run(program: Path, directory: Path, seed: int, rounds: int) -> int:
    """How many of ``rounds`` job files were accepted. Exits with the seed of the round that failed."""
    told = directory / "round"
    env = {
        **os.environ,
        "SLICER_SHARE_FILE": str(directory / "job"),
        "SLICER_SHARE": "both",
        # It is linked with what it preloads elsewhere, so the sanitizer cannot come first.
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
    }
    command = [program, str(seed), str(rounds)]
    with told.open("wb") as output:
        code = subprocess.run(command, stdout=output, env=env, check=False).returncode
    number = int(told.read_text() or seed)
    if code:
        again = f"python -m tests.soak.share_fuzz --seed {number}"
        sys.exit(f"share_fuzz: round {number} ended with {code}; again: {again}")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="the first round; else the time")
    arguments = parser.parse_args()
    if shutil.which(os.environ.get("CC", "cc")) is None:
        sys.exit("share_fuzz: no C compiler")
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    first, accepted = seed, 0
    with tempfile.TemporaryDirectory(prefix="slicer-share-fuzz-") as name:
        directory = Path(name)
        program = build(directory)
        began = time.monotonic()
        while time.monotonic() - began < arguments.seconds:
            accepted += run(program, directory, seed, ROUNDS)
            seed += ROUNDS
        took = time.monotonic() - began
    what = f"{seed - first} job files and arenas in {took:.0f} s, from seed {first}"
    print(f"share_fuzz: {what}: {accepted} job files accepted, none did harm")


if __name__ == "__main__":
    main()
