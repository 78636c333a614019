"""The pictures of docs/web.md and docs/report.md: ``python -m tests.pictures`` makes them, with Chromium.

The GPUs are simulated, and their past is made up. All the rest is real: jobs that run, wait and fail, the
board, the report.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from slicer.gpu.sim.driver import simulated_gpus
from slicer.outcome import history, samples
from tests.browser import Browser, Page
from tests.machines import host
from tests.process.harness import Box
from tests.unit import made_up
from tests.unit.report.jobs import series

GPUS, GIB, HOUR = 4, 1024, 3600.0
# slicer, where the machine and the user have these names.
_NAMED = """\
import os, socket
from slicer.kernel import users
words = list(os.uname())
os.uname = lambda: os.uname_result([words[0], "gpu-server", *words[2:]])
socket.gethostname = lambda: "gpu-server"
users.user_name = lambda uid: "ada"
from slicer.__main__ import main
main()
"""
# Jobs of the past: name, profile, GiB declared (0: a whole GPU) and used, most hours, the part that fails.
_PAST = (
    ("base", "gpu", 0, 19.5, 9.0, 0.2), ("jobs.txt#{}", "gpu", 8, 3.1, 2.0, 0.1),
    ("eval", "light", 8, 6.2, 0.5, 0.0), ("notebook", "notebook", 12, 5.0, 5.0, 0.0),
)  # fmt: skip
_NOW = (
    "--name lr-0.1 -p light -- false", "--name lr-0.01 -p light -- false",
    "--name train --gpus 1 --expect 9h -- slicer simjob --vram 20G --hold 2h",
    "--name eval --vram 8G --expect 20m -- slicer simjob --vram 6G --hold 2h",
    "--name infer --vram 8G -- slicer simjob --vram 5G --hold 2h --utilisation 35",
    "--name big --gpus 4 -- true", "--name publish --after train -- true",
)  # fmt: skip


def remember(box: Box, hours: float, now: float) -> None:
    """Write the past of the box's GPUs: so many hours, with nights that nobody used."""
    simulated, chance, number = simulated_gpus((24 * GIB,) * GPUS), random.Random(3), 0
    for index in range(GPUS):
        at = now - hours * HOUR * (1 - 0.02 * index)
        while at < now - 0.02 * hours * HOUR:
            name, profile, declared, used, longest, fails = chance.choice(_PAST)
            lane = 1 if declared == 0 else 2
            length = min(longest, hours / 5) * HOUR * chance.uniform(0.2, 1.0)
            for _ in range(lane):
                number += 1
                began = at + chance.uniform(0.0, 0.1) * length
                wall_s = min(length * chance.uniform(0.7, 1.0), now - began)
                peak = round(used * GIB * chance.uniform(0.8, 1.0))
                has_failed = chance.random() < fails
                outcome = made_up.outcome(
                    job=f"{number:012x}", name=name.format(number), profile=profile, gpu_indices=(index,),
                    gpus=(simulated[index].uuid,), vram_mib=declared * GIB or None, vram_peak_mib=(peak,),
                    started_at=began, wall_s=wall_s, exit_code=int(has_failed), reason="exited",
                    waited_s=chance.expovariate(0.01) if chance.random() < 0.6 else 0.1,
                )  # fmt: skip
                history.append(outcome, box.history)
                busy = tuple(chance.uniform(60.0, 98.0) for _ in range(40))
                mib = tuple(peak * min(1.0, place / 4) for place in range(40))
                found = series(began, wall_s / 40, busy=busy, mib=mib, cpu=tuple(each / 25 for each in busy))
                samples.keep(box.history, {outcome.job: found}, busy_timeout_s=5.0)
            at += length * 1.1 + (chance.uniform(2.0, 9.0) * HOUR if chance.random() < hours / 300 else 0.0)


def named(box: Box, *words: str) -> list[str]:
    return [sys.executable, "-c", _NAMED, *words]


@contextlib.contextmanager
def box_of(hours: float) -> Iterator[Box]:
    """A box with four GPUs, a past of so many hours, and jobs that run and wait."""
    with tempfile.TemporaryDirectory(prefix="slicer-pictures-") as root:
        box = Box(Path(root) / "box", slots=8)
        box.env |= {"SLICER_SIM": f"{GPUS}x24G", "PATH": f"{Path(sys.executable).parent}:{box.env['PATH']}"}
        try:
            remember(box, hours, time.time())
            for words in _NOW:
                line = named(box, "run", "--detach", *words.split())
                subprocess.run(line, env=box.env, cwd=box.root, capture_output=True, check=True)
            yield box
        finally:
            box.close()


def report(box: Box, page: Page) -> None:
    """Show its report."""
    subprocess.run(named(box, "report"), env=box.env, cwd=box.root, stdout=subprocess.DEVNULL, check=True)
    page.go(f"file://{box.root}/report.html")


@contextlib.contextmanager
def board(box: Box, page: Page) -> Iterator[None]:
    """Show its board."""
    line = named(box, "web", "--listen", "127.0.0.1:0")
    with subprocess.Popen(line, env=box.env, cwd=box.root, stdout=subprocess.PIPE, text=True) as process:
        box.adopt(process)
        assert process.stdout is not None
        page.go(next(word for word in process.stdout.readline().split() if word.startswith("http")))
        page.until("document.querySelectorAll('#timeline rect').length > 10")
        page.until("document.querySelectorAll('#jobs tr').length === 3")
        page.until("document.getElementById('gpus').innerText.includes('6.0G')")
        yield
        process.terminate()


def main() -> None:
    docs = Path(host.REPO, "docs")
    path = host.tool("chromium")
    assert path is not None, "chromium is not installed (make test installs it)"
    with tempfile.TemporaryDirectory() as profile, box_of(hours=5.5 * 24) as box:
        browser = Browser(path, Path(profile))
        try:
            page = browser.page(width=1100, height=930)
            report(box, page)
            page.screenshot(docs / "report.png")
            with board(box, page):
                page.screenshot(docs / "web.png", whole=True)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
