"""A burst: a thousand ``slicer run`` started at once, as by a shell's loop, and ``slicer status`` meanwhile.

Standard library only; runs inside the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.markdown import bar, figures, table
from bench.tools import QUIET

JOBS = 1000
LIMIT_S = 600.0
LOOK_S = 1.0  # from one status to the next
POLL_S = 0.1
ALL_DONE_BAR_S = 60.0
STATUS_BAR_S = 2.0


def measure(jobs: int = JOBS) -> dict[str, Any]:
    """How long all took together, what became of them, and how long each status took. Seconds."""
    with tempfile.TemporaryDirectory(prefix="slicer-burst-") as directory:
        base = Path(directory)
        (base / "state").mkdir(mode=0o700)
        env = {**os.environ, "SLICER_STATE_DIR": f"{base}/state", "XDG_STATE_HOME": f"{base}/history"}
        env["XDG_CONFIG_HOME"] = f"{base}/config"
        done = base / "done"
        done.touch()
        command = ["slicer", "run", "-q", "--backend", "plain", "--", "sh", "-c", f"echo >>{done}"]
        status: list[float] = []
        python: list[float] = []  # how long anything takes that needs the CPU then
        is_over = threading.Event()
        looks = threading.Thread(target=_look, args=(env, status, python, is_over))
        looks.start()
        begin = time.monotonic()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(jobs):
                processes.append(subprocess.Popen(command, env=env, **QUIET))  # type: ignore[call-overload]
            started_s = time.monotonic() - begin
            while any([process.poll() is None for process in processes]):
                if time.monotonic() - begin > LIMIT_S:
                    break
                time.sleep(POLL_S)
            took_s = time.monotonic() - begin
            codes = [process.poll() for process in processes]
        finally:
            is_over.set()
            looks.join()
            for process in processes:
                process.kill()
                process.wait()
        ran = len(done.read_text())
    failed = sum(code != 0 for code in codes)
    return {
        "jobs": jobs, "started": started_s, "took": took_s, "ran": ran, "failed": failed, "status": status,
        "python": python,
    }  # fmt: skip


def _look(env: dict[str, str], status: list[float], python: list[float], is_over: threading.Event) -> None:
    """Run each again and again, and note how long it takes, while jobs are started and run."""
    while True:
        for argv, times in ((["slicer", "status"], status), ([sys.executable, "-c", "pass"], python)):
            looked = time.monotonic()
            subprocess.run(argv, env=env, check=True, **QUIET)  # type: ignore[call-overload]
            times.append(time.monotonic() - looked)
        if is_over.wait(LOOK_S):
            return


def tables(found: dict[str, Any]) -> str:
    """The table as Markdown."""
    status = found["status"]
    times = figures([found["started"], found["took"]])
    slowest = figures([max(status), max(found["python"])])
    is_served = found["ran"] == found["jobs"] and not found["failed"]
    return table(
        f"### A burst of {found['jobs']} jobs",
        ["", "s to start them", "s until all were done", "ran", "failed", "longest `slicer status`, s",
         "longest `python -c pass`, s"],
        [["slicer run --backend plain", *times, found["ran"], found["failed"], *slowest]],
        [
            bar(
                f"all done within {ALL_DONE_BAR_S:.0f} s",
                is_served and found["took"] <= ALL_DONE_BAR_S,
                f"{found['took']:.0f} s",
            ),
            bar(
                f"`slicer status` meanwhile under {STATUS_BAR_S:.0f} s",
                max(status) < STATUS_BAR_S,
                f"{max(status):.1f} s",
            ),
        ],
    )
