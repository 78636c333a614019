"""``slicer route``: what it says, its JSON, what the journal and the history have of it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from tests.patience import until
from tests.unit.surface.box import SIMULATED, Box, Done
from tests.unit.surface.shape import Shape
from tests.unit.surface.words import journal, settled

_CONFIG = """\
[routes.whisper]
probe = "size"
threshold = "1K"
on_gpu_oom = "cpu"
[routes.whisper.gpu]
args = ["--device", "cuda"]
vram = "2G"
max_jobs = 1
[routes.whisper.cpu]
memory = "1G"
[routes.gpu-only]
probe = "size"
threshold = "1K"
[routes.gpu-only.gpu]
"""
_FAILS = '[ -z "$CUDA_VISIBLE_DEVICES" ] || { echo "CUDA out of memory" >&2; exit 3; }'
_SLEEPS = ("sh", "-c", "exec sleep 99", "sh", "small")
_ENDED: tuple[tuple[str, ...], ...] = (
    ("whisper", "--", "echo", "small"),
    ("whisper", "-v", "--", "echo", "large"),
    ("whisper", "--name", "falls-back", "--", "sh", "-c", _FAILS, "sh", "small"),
    ("gpu-only", "--", "echo", "large"),
    ("gpu-only", "--json", "--", "echo", "large"),
    ("whisper", "--", "echo", "nothing"),
    ("whisper", "--json", "--", "echo", "nothing"),
    ("whisper", "--dry-run", "--", "echo", "small"),
    ("whisper", "--dry-run", "--on-busy", "other", "--", "echo", "small"),
)


def route(box: Box) -> dict[str, str | Shape]:
    """Every way that a job of a route can go."""
    config = box.work / "routes.toml"
    config.write_text(_CONFIG)
    for name, size in (("small", 100), ("large", 5000)):
        (box.work / name).write_bytes(b"x" * size)
    env = {**SIMULATED, "SLICER_CONFIG": str(config)}
    words = ("route", "--backend", "plain")
    found: dict[str, str | Shape] = {}
    for line in _ENDED:
        found[f"slicer route {' '.join(line)}"] = _told(box.run(*words, *line, env=env))
    explain = ("whisper", "--dry-run", "--json", "--", "echo", "small")
    free = json.loads(box.run(*words, *explain, env=env).out)
    holder = box.start(*words, "whisper", "-q", "--name", "holder", "--", *_SLEEPS, env=env)
    until(lambda: box.files("leases"), "the holder has its lease")
    found["slicer route --dry-run --json"] = Shape([free, json.loads(box.run(*words, *explain, env=env).out)])
    blocked = box.run(*words, "whisper", "--", "echo", "small", env=env)
    found["slicer route, blocked"] = Shape([json.loads(blocked.err)])
    for line in (
        ("whisper", "--dry-run", "--", "echo", "small"),
        ("whisper", "--on-busy", "other", "--", "echo", "small"),
        ("whisper", "--on-busy", "wait", "--max-wait", "50ms", "--", "echo", "small"),
    ):
        done = box.run(*words, *line, env=env)
        said = [text for text in done.err.splitlines() if not text.startswith("{")]
        found[f"slicer route {' '.join(line)}, the GPU is held"] = _told(done._replace(err="\n".join(said)))
    box.run("stop", "holder", env=SIMULATED)
    box.wait(holder)
    with closing(sqlite3.connect(box.history)) as history:
        columns = [row[1] for row in history.execute("PRAGMA table_info(decisions)")]
    found["the table of decisions"] = "\n".join(columns)
    return found | journal([each for each in box.events() if each["SLICER_EVENT"] == "routed"])


def _told(done: Done) -> str:
    return settled(f"{done.out}{done.err}").strip() + f"\nexit code {done.code}"
