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
from collections.abc import Callable
from typing import Any

LIMITS = ["-p", "CPUQuota=100%", "-p", "MemoryMax=1G"]
LAUNCHES = {
    "flock L systemd-run --scope": [
        "flock",
        "/tmp/bench.lock",
        "systemd-run",
        "--scope",
        "-q",
        *LIMITS,
        "true",
    ],
    "systemd-run --scope": ["systemd-run", "--scope", "-q", *LIMITS, "true"],
    "slicer run --profile heavy": ["slicer", "run", "-q", "--profile", "heavy", "--", "true"],
    "slicer run --profile heavy --exec": [
        "slicer",
        "run",
        "-q",
        "--profile",
        "heavy",
        "--exec",
        "--",
        "true",
    ],
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


def pss_kib(pid: int) -> dict[str, int]:
    """Proportional and private memory of a process, in KiB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        lines = dict(line.split(":", 1) for line in file if line.endswith("kB\n"))
    kib = {key: int(value.split()[0]) for key, value in lines.items()}
    return {"pss": kib["Pss"], "private": kib["Private_Clean"] + kib["Private_Dirty"]}


def descendants(pid: int) -> list[int]:
    """The process and all below it."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [pid, *(found for child in children.stdout.split() for found in descendants(int(child)))]


def named(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def memory() -> dict[str, Any]:
    """What stays resident beside a running job: both halves of the supervisor, and with --exec nothing."""
    found: dict[str, Any] = {}
    for name, options in {"slicer run": [], "slicer run --exec": ["--exec"]}.items():
        command = ["slicer", "run", "-q", "--profile", "heavy", *options, "--", "sleep", "600"]
        job = subprocess.Popen(command)
        try:
            deadline = time.monotonic() + 30
            while "sleep" not in [named(pid) for pid in descendants(job.pid)]:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{command} did not start")
                time.sleep(0.05)
            time.sleep(0.3)  # let it settle into its wait
            beside = [pid for pid in descendants(job.pid) if named(pid) != "sleep"]
            found[name] = {named(pid): pss_kib(pid) for pid in beside}
        finally:
            subprocess.run(["systemctl", "stop", "slicer-*.scope"], check=False)
            job.wait()
    return found


BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {"launch": launch, "memory": memory}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    figures: dict[str, Any] = {
        "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()}
    }
    for name in names or BENCHMARKS:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        figures[name] = BENCHMARKS[name]()
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
