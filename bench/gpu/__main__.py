"""``python -m bench.gpu``: build, check and measure what only a GPU can show, and write it down.

Each check runs in a process of its own, with a limit: one that crashes or hangs costs itself only. After
each one DIR/results.json and DIR/results.md are written anew.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from bench.gpu import (  # noqa: E402
    driver_checks,
    experiment_checks,
    framework_checks,
    frameworks,
    library,
    report,
    risk_checks,
)
from bench.gpu.check import CHECKS, Check, Failed, Finding, Skip  # noqa: E402
from bench.gpu.place import Place  # noqa: E402

LOADED = (driver_checks, experiment_checks, framework_checks, risk_checks)  # they register their checks
FIRST = "risk-"  # what is riskiest goes first, and by itself fills the first hour
BUDGET_S = 570.0
END_S = 10.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    option = parser.add_argument
    option("--out", type=Path, default=ROOT / "bench" / "results" / "gpu", help="where results go")
    option("--only", default="", help="checks, separated by commas; a beginning of names will do")
    option("--list", action="store_true", help="print the checks, and leave")
    option("--brief", action="store_true", help="measure shorter: a try, whose figures are no figures")
    option("--budget", type=float, default=BUDGET_S, metavar="S", help="end after so long")
    option("--python", default=sys.executable, help="the Python that has PyTorch, CuPy, JAX …")
    option("--backend", default="auto", help="of slicer run")
    option("--check", default="", help=argparse.SUPPRESS)
    said = parser.parse_args(argv)
    checks = sorted(CHECKS.values(), key=lambda each: not each.name.startswith(FIRST))
    if said.list:
        print("\n".join(f"{each.name:16} {each.what}: {each.expected}" for each in checks))
        return 0
    said.out.mkdir(parents=True, exist_ok=True)
    place = Place(said.out.resolve(), said.python, said.backend, brief=said.brief)
    if said.check:
        return one(CHECKS[said.check], place)
    prefixes = tuple(filter(None, said.only.split(",")))
    chosen = [each for each in checks if not prefixes or each.name.startswith(prefixes)]
    if not chosen:
        parser.error(f"no check is called {said.only!r}; see --list")
    return run(place, chosen, said)


def one(check: Check, place: Place) -> int:
    """Run one check in this process; its finding is the last line."""
    try:
        missing = check.needs and frameworks.missing(place.python, check.needs)
        finding = Finding("skip", missing) if missing else check.run(place)
    except Skip as why:
        finding = Finding("skip", str(why))
    except Failed as why:
        finding = Finding("fail", str(why))
    print(json.dumps({"state": finding.state, "found": finding.found, "data": finding.data}))
    return 0


def run(place: Place, chosen: Sequence[Check], said: argparse.Namespace) -> int:
    """All of them, one after another; returns 1 if one failed."""
    began = time.monotonic()
    found: dict[str, Any] = {"about": about(place, said), "checks": {}}
    print(f"{found['about']['gpu'].get('name')}: {len(chosen)} checks", file=sys.stderr)
    for check in chosen:
        left_s = said.budget - (time.monotonic() - began)
        if left_s < min(check.limit_s, 20):
            why = f"no time was left: --only {check.name}"
            finding: dict[str, Any] = {"state": "skip", "found": why, "data": {}}
        else:
            finding = isolated(check, place, said, min(check.limit_s, left_s))
        found["checks"][check.name] = {"what": check.what, "expected": check.expected, **finding}
        print(f"{finding['state']:5} {check.name}: {finding['found']}", file=sys.stderr)
        report.write(place.out, found)
    print(report.markdown(found))
    return int(any(each["state"] == "fail" for each in found["checks"].values()))


def about(place: Place, said: argparse.Namespace) -> dict[str, Any]:
    """The machine; the library is built if it has to be."""
    gpu: dict[str, Any]
    try:
        gpu = place.facts()
    except Failed as error:
        raise SystemExit(f"no GPU can be used: {error}") from error
    built = library.build()
    if why := place.why_not_slicer():
        raise SystemExit(f"slicer run cannot be used: {why}")
    return {
        "gpu": gpu,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "is_fake": str(gpu["name"]).startswith("Fake GPU"),
        "is_brief": place.brief,
        "library": built,
        "machine": library.machine(),
        "frameworks": frameworks.versions(place.python),
    }


def isolated(check: Check, place: Place, said: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """A check in a session of its own, all of which is killed when the time is over."""
    command = [sys.executable, "-m", "bench.gpu", "--check", check.name, "--out", str(place.out)]
    command += ["--python", place.python, "--backend", place.backend, *(["--brief"] if place.brief else [])]
    began = time.monotonic()
    log = place.out / f"{check.name}.log"
    with log.open("wb") as err:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err, cwd=ROOT, start_new_session=True, env=place.environ
        )
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            out = ended(process)
    if not log.stat().st_size:
        log.unlink()
    took_s = round(time.monotonic() - began, 1)
    lines = out.decode(errors="replace").splitlines()
    try:
        finding: dict[str, Any] = json.loads(lines[-1])
    except (ValueError, IndexError):
        why = f"it did not end in {limit_s:.0f} s" if took_s >= limit_s else f"it crashed; see {log.name}"
        finding = {"state": "fail", "found": why, "data": {}}
    return {**finding, "took_s": took_s}


def ended(process: subprocess.Popen[bytes]) -> bytes:
    """End a check and the jobs that it started: slicer run ends what is in its job when it is told to end."""
    for signo in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, signo)
        try:
            process.communicate(timeout=END_S)
            time.sleep(END_S / 10)  # its jobs get the signal, too, and end by themselves
        except subprocess.TimeoutExpired:
            continue
    return b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
