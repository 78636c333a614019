"""Jobs that run, wait and end: ``status``, ``history``, outcomes, the state directory, the journal."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from typing import Any

from tests.patience import until
from tests.unit.surface.box import SIMULATED, Box, Done, Running
from tests.unit.surface.shape import Shape
from tests.unit.surface.words import journal, keys, settled, tree

_RUN = ("run", "--backend", "plain")
_EAT = "(head -c 100000000 /dev/zero; sleep 99) | tail >/dev/null"
# Each ends in another way, and is told of in another way.
_ENDED: tuple[tuple[str, ...], ...] = (
    ("--name", "ok", "--", "true"),
    ("-q", "--", "sh", "-c", "exit 3"),
    ("--", "sh", "-c", "kill -TERM $$"),
    ("--timeout", "50ms", "--", "sleep", "9"),
    ("--", "sh", "-c", "sleep 99 & exit 0"),
    ("-p", "heavy", "-v", "--expect", "1h", "--", "true"),
    ("--vram", "2G", "--name", "shares", "--", "sleep", "0.4"),
    ("--set", "MemoryMax=50M", "--name", "eats", "--", "sh", "-c", _EAT),
    ("--", "/"),
    ("--", "no-such-command"),
    ("--gpus", "3", "--", "true"),
    ("--vram", "99G", "--", "true"),
)


def jobs(box: Box) -> dict[str, str | Shape]:
    """Everything about jobs."""
    found: dict[str, str | Shape] = {}
    outcomes = []
    for number, line in enumerate(_ENDED):
        path = box.work / f"{number}.json"
        done = box.run(*_RUN, "--outcome", str(path), *line, env=SIMULATED)
        found[f"slicer run {' '.join(line)}"] = _told(done)
        outcomes += [json.loads(path.read_text())] if path.exists() else []
    found |= _together(box, outcomes)
    found["slicer run --outcome"] = Shape(outcomes, is_loose=True)
    found |= _history(box)
    found |= _environment(box)
    # How many processes of it outlived the first that was killed depends on the moment.
    eats = f"slicer run {' '.join(_ENDED[7])}"
    found[eats] = re.sub(r" · # leftover process(es)? ended", "", str(found[eats]))
    events = [
        each for each in box.events() if (each["SLICER_NAME"], each["SLICER_EVENT"]) != ("eats", "stopped")
    ]
    return found | journal(events)


def _told(done: Done) -> str:
    return settled(f"{done.out}{done.err}").strip() + f"\nexit code {done.code}"


def _together(box: Box, outcomes: list[Any]) -> dict[str, str | Shape]:
    """Jobs that hold, share and wait, and one process of nobody's."""
    found: dict[str, str | Shape] = {}
    foreign = box.start("simjob", "--vram", "1G", "--ramp", "0", "--hold", "99",
                        env={**SIMULATED, "CUDA_VISIBLE_DEVICES": "1"})  # fmt: skip
    until(lambda: box.files("usage"), "GPU 1 is in use by nobody's process")
    holder = _start(box, "leases", "--name", "holder", "-p", "heavy", "--gpu", "0", "--expect", "1h")
    shares = ("--name", "sharer", "--gpu", "1", "--vram", "4G", "--timeout", "2h")
    sharer = _start(box, "leases", *shares, command=("tail", "-f", "/dev/null"))
    waiter = _start(box, "tickets", "--name", "waiter", "--gpus", "1", "--priority", "5", command=("true",))
    waits = ("--name", "other", "-p", "heavy", "--gpu", "0", "--vram", "1G")
    waits += ("--max-wait", "1h", "--expect", "5m")
    other = _start(box, "tickets", *waits)
    seen = until(lambda: _looked_at(box), "the GPUs were looked at")
    watch = box.start("top", "--json", env=SIMULATED)
    told = until(lambda: watch.out.read_text().rpartition("\n")[0], "status --watch says something")
    found["slicer status --json, also with --watch"] = Shape([seen, *map(json.loads, told.splitlines())])
    _end(box, watch)
    found["slicer status"] = _told(box.run("status", env=SIMULATED))
    for name in ("leases", "tickets", "usage"):
        found[f"a file in {name}"] = "\n\n".join(sorted({keys(path) for path in box.files(name)}))
    found["the state directory"] = tree(box.state)
    found["the file version"] = (box.state / "sim-2x24G" / "version").read_text()
    busy = box.run(*_RUN, "--no-wait", "--gpus", "1", "--", "true", env=SIMULATED)
    found["slicer run --no-wait, a GPU is busy"] = Shape([json.loads(busy.err.splitlines()[-1])])
    for line in (
        ("--no-wait", "-p", "heavy", "--", "true"),
        ("--max-wait", "50ms", "--gpus", "1", "--", "true"),
        ("--max-wait", "50ms", "--then", "run", "--gpus", "1", "--outcome", "last.json", "--", "true"),
        ("--dry-run", "--gpus", "1", "--", "/bin/true"),
    ):
        shown = _told(box.run(*_RUN, *line, env=SIMULATED))
        found[f"slicer run {' '.join(line)}, all is held"] = shown
    outcomes.append(json.loads((box.work / "last.json").read_text()))
    for name in ("other", "holder", "sharer"):
        if name == "sharer":
            waited = _told(box.wait(waiter))  # it has the holder's GPU: so it is in history before the sharer
        found[f"slicer stop {name}"] = _told(box.run("stop", name, env=SIMULATED))
    found["what waiter said"] = waited
    for name, one in (("other", other), ("holder", holder), ("sharer", sharer)):
        found[f"what {name} said"] = _told(box.wait(one))
    _end(box, foreign)
    return found


def _start(box: Box, folder: str, *options: str, command: tuple[str, ...] = ("sleep", "99")) -> Running:
    """Start a job and wait until it has its lease, or its ticket."""
    before = box.files(folder)
    made = box.start(*_RUN, *options, "--", *command, env=SIMULATED)

    def is_there() -> bool:
        new = [path.read_text() for path in box.files(folder) if path not in before]
        return any(folder == "tickets" or "\nKEEPER=0\n" not in text for text in new)

    until(is_there, f"{options} has its place in {folder}")
    return made


def _looked_at(box: Box) -> Any:
    """The status, once all is known that a look at the GPUs tells."""
    found = json.loads(box.run("status", "--json", env=SIMULATED).out)
    peaks = [gpu["peak_mib"] for job in found["jobs"] for gpu in job["gpus"]]
    foreign = [one for gpu in found["gpus"]["all"] for one in gpu["foreign"]]
    return found if foreign and None not in peaks else None


def _end(box: Box, running: Running) -> None:
    os.kill(running.pid, signal.SIGTERM)
    box.wait(running)


def _history(box: Box) -> dict[str, str | Shape]:
    found: dict[str, str | Shape] = {}
    found["slicer history --json"] = Shape([json.loads(box.run("history", "--json").out)], is_loose=True)
    # What a short job used of memory, and whether a job waited at all, is known by chance.
    lines = settled(box.run("history").out).replace("  -", "  #").splitlines()
    found["slicer history"] = "\n".join(sorted(lines))
    one = _told(box.run("history", "-n", "1", "--name", "*e*"))
    found["slicer history -n 1 --name *e*"] = one.replace("  -", "  #")
    found["slicer history shares"] = "\n".join(
        line.split("  ")[0] for line in box.run("history", "shares").out.splitlines()
    )
    database = sqlite3.connect(box.history)
    schema = "\n".join(
        text for (text,) in database.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name")
    )
    (version,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    found["history.db"] = f"user_version {version}\n{schema}"
    found["the history's directory"] = tree(box.history.parent)
    return found


def _environment(box: Box) -> dict[str, str | Shape]:
    """The variables that a command finds and slicer did not."""
    found: dict[str, str | Shape] = {}
    for program in (_RUN, ("hold",)):
        said = box.run(*program, "-q", "--gpus", "1", "--", "env", env=SIMULATED).out
        names = {line.partition("=")[0] for line in said.splitlines()}
        more = names - box.env.keys() - SIMULATED.keys() - {"_", "PWD", "SHLVL"}
        found[f"variables of slicer {program[0]}"] = "\n".join(sorted(more))
    return found
