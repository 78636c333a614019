"""Boot the namespace machine, measure in it, print the tables and keep the figures as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.report import tables
from tests.machines import host, recipe
from tests.machines.host import MachineError
from tests.machines.machine import Machine, run
from tests.machines.namespace import NamespaceMachine

RESULTS = Path(__file__).parent / "results"
PYTHON = "/opt/slicer/bin/python"


def memory(machine: Machine) -> dict[str, dict[str, dict[str, int]]]:
    """KiB of every process that stays beside a job, by how it was started."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, options in {"slicer run": [], "slicer run --exec": ["--exec"]}.items():
        lines = run(machine, ["sh", "bench/memory.sh", *options]).checked().stdout.splitlines()
        words = [line.split() for line in lines]
        found[name] = {process: {"pss": int(pss), "private": int(private)} for process, pss, private in words}
    return found


def main() -> int:
    """Measure everything."""
    try:
        host.install_packages({**host.BUILD_TOOLS, **host.NAMESPACE_TOOLS})
        with NamespaceMachine(recipe.SUITES["trixie"]) as machine:
            print("measuring: a minute or two …", file=sys.stderr)
            figures = json.loads(
                run(machine, [PYTHON, "-m", "bench.inside"], timeout_s=1800).checked().stdout
            )
            figures["memory"] = memory(machine)
    except MachineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(tables(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
