"""What runs inside the machine: measures, and prints the figures as JSON on stdout. Standard library only.

Every row of a table is measured in the same run, one launch of each in turn, so that a slow moment of the
machine meets all alike. Seconds throughout.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from bench.tools import SCOPE, SLICER

LAUNCHES = {
    "flock L systemd-run --scope": ["flock", "/tmp/bench.lock", *SCOPE, "true"],
    "systemd-run --scope": [*SCOPE, "true"],
    "slicer run --profile heavy": [*SLICER, "--", "true"],
    "slicer run --profile heavy --exec": [*SLICER, "--exec", "--", "true"],
    "slicer run": ["slicer", "run", "-q", "--", "true"],
    "python -c pass (no more than that)": [sys.executable, "-c", "pass"],
}
# A command typed on an idle machine, and a loop that does nothing else. The kernel moves a process between
# cgroups under a lock that is cheap again within some 20 ms of its last use and takes an RCU grace period
# (8 to 16 ms) otherwise, so the two differ for everybody.
PAUSES_S = {"on an idle machine": 0.1, "one after another": 0.0}
ROUNDS = 60
WARM_UP = 3


def timed(command: list[str]) -> float:
    """Wall time of one launch, from fork to the end of the wait."""
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


def launch() -> dict[str, Any]:
    """Launch overhead: the whole of a command that does nothing."""
    found: dict[str, Any] = {}
    for where, pause_s in PAUSES_S.items():
        samples: dict[str, list[float]] = {name: [] for name in LAUNCHES}
        for turn in range(WARM_UP + ROUNDS):
            for name, command in LAUNCHES.items():
                time.sleep(pause_s)
                took = timed(command)
                if turn >= WARM_UP:
                    samples[name].append(took)
        found[where] = samples
    return found


def main(argv: Sequence[str]) -> None:
    """Measure the named sections, and print the figures."""
    figures: dict[str, Any] = {
        "machine": {
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        }
    }
    for section in argv:  # the broker's is the last one: until it is done, slicer goes through the broker
        measure = launch if section == "launch" else import_module(f"bench.{section}").measure
        figures[section] = measure()
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
