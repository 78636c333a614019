"""``make bench``: slicer beside its peers, in one run, in the namespace machine.

``python -m bench [launch|handoff|memory|queue|burst|packing|serve|slurm|broker …]`` measures
what is named, or all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report import tables
from tests.machines import host, recipe
from tests.machines.host import MachineError
from tests.machines.machine import Machine, run
from tests.machines.namespace import NamespaceMachine

RESULTS = Path(__file__).parent / "results"
PYTHON = "/opt/slicer/bin/python"
INSIDE = ("launch", "handoff", "queue", "burst", "packing", "serve", "slurm", "broker")
"""What `bench.inside` measures; the rest is measured from here."""
SECTIONS = (*INSIDE, "memory")
QUIET_FOR_S = 10
BUSY_FOR_S = 5
LIMIT_S = 3600.0


def supervisors(machine: Machine) -> dict[str, dict[str, dict[str, int]]]:
    """KiB of every process that stays beside a job, by how it was started."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, options in {"slicer run": [], "slicer run --exec": ["--exec"]}.items():
        lines = run(machine, ["sh", "bench/memory.sh", *options]).checked().stdout.splitlines()
        words = [line.split() for line in lines]
        found[name] = {process: {"pss": int(pss), "private": int(private)} for process, pss, private in words}
    return found


def waiters(machine: Machine) -> dict[str, dict[str, dict[str, int]]]:
    """KiB and wake-ups of waiting processes, by how many wait and by their place in line."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for number in (1, 50):
        command = ["sh", "bench/waiting.sh", str(number), str(QUIET_FOR_S)]
        words = [line.split() for line in run(machine, command, timeout_s=300).checked().stdout.splitlines()]
        found[f"{number} waiting"] = {
            place: {"pss": int(pss), "private": int(private), "switches": int(switches)}
            for place, pss, private, switches in words
        }
    return found


def queue_jobs(machine: Machine) -> dict[str, dict[str, list[dict[str, int]]]]:
    """KiB of the keepers and supervisors of a queue's jobs, and of the queue, by how many jobs run."""
    found: dict[str, dict[str, list[dict[str, int]]]] = {}
    for number in (1, 10, 50):
        command = ["sh", "bench/queue_memory.sh", str(number), str(BUSY_FOR_S)]
        at = found[str(number)] = {"keeper": [], "supervisor": [], "queue": []}
        for line in run(machine, command).checked().stdout.splitlines():
            process, pss, private = line.split()
            at[process].append({"pss": int(pss), "private": int(private)})
    return found


def measure(machine: Machine, sections: Sequence[str]) -> dict[str, Any]:
    """The figures of the sections."""
    inside = [section for section in INSIDE if section in sections]
    words = run(machine, [PYTHON, "-m", "bench.inside", *inside], timeout_s=LIMIT_S).checked()
    sys.stderr.write(words.stderr)
    figures: dict[str, Any] = json.loads(words.stdout)
    if "memory" in sections:
        figures["memory"] = supervisors(machine)
        figures["waiting"] = {"seconds": QUIET_FOR_S, "processes": waiters(machine)}
    if "queue" in sections:
        figures["queue"]["memory"] = queue_jobs(machine)
    return figures


def main(argv: Sequence[str]) -> int:
    """Measure, print the tables, and keep the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; default: all")
    sections = parser.parse_args(argv).section or list(SECTIONS)
    if unknown := sorted(set(sections) - set(SECTIONS)):
        parser.error(f"no section {unknown[0]!r}, there are {', '.join(SECTIONS)}")
    try:
        host.install_packages({**host.BUILD_TOOLS, **host.NAMESPACE_TOOLS})
        suite = recipe.SUITES["trixie"]
        with NamespaceMachine(suite) as machine:
            print(f"measuring {', '.join(sections)}: minutes …", file=sys.stderr)
            figures = measure(machine, sections)
    except MachineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    RESULTS.mkdir(exist_ok=True)
    name = "latest" if set(sections) == set(SECTIONS) else "-".join(sections)
    (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(tables(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
