"""``make soak``: minutes of it, with the seed that makes it the same again."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.fake_nvml import FakeNvml, build
from tests.process.harness import Box
from tests.soak.soak import Broken, Options, Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--jobs", type=int, default=200, help="at once (default 200)")
    parser.add_argument("--burst", type=int, default=1000, help="at the same instant first (default 1000)")
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--actions", type=float, default=10.0, help="things done to jobs in a second")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--no-gpus", action="store_true", help="CPU slots only")
    chosen = parser.parse_args()
    options = Options(chosen.seconds, chosen.jobs, chosen.slots, chosen.seed, chosen.actions, chosen.burst)
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slicer-soak-")))
        box = Box(_made(base / "box"), options.slots)
        stack.callback(box.close)
        fake = None
        if not chosen.no_gpus and shutil.which("cc"):
            fake = FakeNvml(build(base / "nvml"), base / "nvml-state")
        print(f"soaking for {options.seconds:.0f} s: --seed {options.seed}", file=sys.stderr, flush=True)
        try:
            print(Soak(box, options, fake).run())
        except Broken as broken:
            print(f"BROKEN (--seed {options.seed} --jobs {options.jobs} --burst {options.burst}): {broken}")
            return 1
    return 0


def _made(path: Path) -> Path:
    path.mkdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
