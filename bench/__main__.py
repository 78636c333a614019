"""Boot the namespace machine, measure in it, print the tables and keep the figures as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.report import tables
from tests.machines import host, recipe
from tests.machines.host import MachineError
from tests.machines.machine import run
from tests.machines.namespace import NamespaceMachine

RESULTS = Path(__file__).parent / "results"
PYTHON = "/opt/slicer/bin/python"


def main(arguments: list[str]) -> int:
    """``python -m bench [NAME…]``: all benchmarks, or those named (launch, memory)."""
    try:
        host.install_packages({**host.BUILD_TOOLS, **host.NAMESPACE_TOOLS})
        with NamespaceMachine(recipe.SUITES["trixie"]) as machine:
            result = run(machine, [PYTHON, "-B", "-m", "bench.inside", *arguments], timeout_s=1800)
    except MachineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sys.stderr.write(result.stderr)
    if result.returncode:
        return 1
    figures = json.loads(result.stdout)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(tables(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
