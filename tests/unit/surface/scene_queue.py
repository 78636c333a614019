"""Queues: their events, their journal, what lies in the log directory, and what is said to people."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from slicer.kernel import proc
from tests.patience import until
from tests.unit.surface.box import SIMULATED, Box, Running
from tests.unit.surface.shape import Shape
from tests.unit.surface.words import settled, tree

_QUEUE = ("queue", "--backend", "plain", "--sim", "2", "--poll", "0.1", "--verbose", "--log-dir", "logs")
_OOM = "CUDA out of memory. Tried to allocate 20.00 MiB"
_MANY = f"""\
[vram=2G] true
[name=bad vram=2G] echo out; exit 3
[after=bad] echo after
[vram=99G] echo large
[cancel] echo never
[vram=2G retries=1] echo "{_OOM}" >&2; exit 1
[vram=2G timeout=0.1s] sleep 98
[vram=1G] simjob --vram 4G --ramp 0 --hold 0.3
[name=held vram=1G] sleep 99
"""


def queue(box: Box) -> dict[str, str | Shape]:
    """Everything about queues."""
    simjob = box.root / "bin" / "simjob"
    simjob.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m slicer simjob \"$@\"\n")
    simjob.chmod(0o755)
    found: dict[str, str | Shape] = {}
    events = [*_changed(box), *_stopped(box), *_crashed(box, found), *_rebooted(box), *_held_up(box)]
    _write(box, "text.txt", "[name=first] true\n[after=first] echo out; exit 3\n")
    for name, words in _WORDS.items():
        done = box.run(*words)
        found[name] = settled(f"{done.out}{done.err}") + f"exit code {done.code}"
    journals = [path.read_text() for path in box.work.glob("*/journal.jsonl")]
    records = [_unlooked(json.loads(line)) for text in journals for line in text.splitlines()]
    found["the log directory"] = tree(box.work / "logs")
    found["a job of an event"] = Shape([job for event in events for job in _take_jobs(event)], is_loose=True)
    return found | _by_kind("event", events) | _by_kind("record of the journal", records)


_WORDS = {
    "slicer queue": (*_QUEUE, "text.txt", "--log-dir", "text"),
    "slicer queue suggest": ("queue", "suggest", "many.txt", "--log-dir", "logs"),
    "slicer queue retry": ("queue", "retry", "many.txt", "--log-dir", "logs"),
}


def _take_jobs(event: Any) -> list[Any]:
    """The jobs that an event tells of, which are all alike; their numbers take their places."""
    jobs = []
    if event["job"] is not None:
        jobs.append(event["job"])
        event["job"] = event["job"]["no"]
    for name in ("failed", "earlier", "under", "over"):
        if isinstance(event.get(name), list):
            jobs += event[name]
            event[name] = [job["no"] for job in event[name]]
    return jobs


def _by_kind(what: str, samples: list[Any]) -> dict[str, str | Shape]:
    kinds = sorted({each["event"] for each in samples} - {"warning"})  # which tells of a slow machine, too
    found: dict[str, str | Shape] = {}
    for kind in kinds:
        some = [each for each in samples if each["event"] == kind]
        found[f"{what}: {kind}"] = Shape(some, is_loose=True)
    return found


def _write(box: Box, name: str, text: str) -> None:
    new = box.work / "new"
    new.write_text(text)
    new.rename(box.work / name)


def _events(running: Running) -> list[Any]:
    return [json.loads(line) for line in running.out.read_text().rpartition("\n")[0].splitlines()]


def _await(running: Running, *kinds: str) -> None:
    def look() -> bool:
        seen = {event["event"] for event in _events(running)}
        assert "summary" not in seen, "it has ended"
        assert not running.err.read_text(), "it has failed"
        return set(kinds) <= seen

    try:
        until(look, f"the events {kinds}")
    except AssertionError as error:
        error.add_note(f"{running.out.read_text()}\n{running.err.read_text()}")
        raise


def _changed(box: Box) -> list[Any]:
    """A queue whose file is changed, and broken for a while, as it runs."""
    _write(box, "many.txt", _MANY)
    queue = box.start(*_QUEUE, "many.txt", "--json")
    _await(queue, "exceeds", "retry", "infeasible", "unrunnable", "cancelled")
    _write(box, "many.txt", f"{_MANY}[vram=x] true\n")
    _await(queue, "file-kept")
    _write(box, "many.txt", _MANY.replace("[name=held", "[cancel name=held") + "echo more\n")
    _await(queue, "file-good", "file-changed", "cancelling")
    box.wait(queue)
    return _events(queue)


def _stopped(box: Box) -> list[Any]:
    """A queue that has nothing to do, gets something, and is stopped twice; its journal is gone meanwhile."""
    queue = box.start(*_QUEUE, "many.txt", "--json", "--watch")
    _await(queue, "skipped", "drained")
    _write(box, "many.txt", f"{_MANY}[vram=1G] sleep 97\n[gpus=2] true\n")
    _await(queue, "started")
    (box.work / "logs" / "journal.jsonl").unlink()
    os.kill(queue.pid, signal.SIGINT)
    _await(queue, "stopping")
    os.kill(queue.pid, signal.SIGINT)
    box.wait(queue)
    return _events(queue)


def _crashed(box: Box, found: dict[str, str | Shape]) -> list[Any]:
    """A queue that is killed: one of its jobs goes on, the other one's processes are killed, too."""
    kept, lost = "echo it runs; sleep 0.3", "echo $$ >pid; exec sleep 96"
    _write(box, "plain.txt", f"[vram=1G name=kept] {kept}\n[vram=1G name=lost] {lost}\n")
    line = (*_QUEUE, "plain.txt", "--json", "--log-dir", "killed")
    first = box.start(*line)
    _await(first, "started")
    pid = box.work / "pid"
    until(lambda: len(_keepers(box)) == 2 and all(_attempts(box)) and pid.exists(), "both jobs run")
    os.kill(first.pid, signal.SIGKILL)
    box.wait(first)
    keeper = _keepers(box)["lost"]
    for each in (proc.parent(keeper), keeper):
        os.kill(each, signal.SIGKILL)
    found["an attempt file of a job that runs"] = settled(min(_attempts(box), key=len))
    ended = until(lambda: [text for text in _attempts(box) if text.count("\n") > 1], "a job has ended")
    found["an attempt file of a job that has ended"] = Shape(_outcomes(ended), is_loose=True)
    second = box.start(*line)
    _await(second, "adopted")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    box.wait(second)
    return [*_events(first), *_events(second)]


def _outcomes(attempts: list[str]) -> list[Any]:
    found = [json.loads(text.splitlines()[-1]) for text in attempts]
    return [{**each, "vram_peak_mib": []} for each in found]  # whether a look came in time varies


def _unlooked(record: dict[str, Any]) -> dict[str, Any]:
    """Without what only a look at the GPUs in time tells."""
    if record["event"] == "ended":
        return {**record, "utilisation": None, "vram_peak_mib": []}
    return {key: value for key, value in record.items() if key != "utilisation"}


def _attempts(box: Box) -> list[str]:
    files = (box.work / "killed" / "attempts").iterdir()
    return [path.read_bytes().strip(b"\0").decode() for path in files]


def _keepers(box: Box) -> dict[str, int]:
    """The keeper of each job whose command has begun, by the job's name."""
    leases = [dict(line.split("=", 1) for line in p.read_text().splitlines()) for p in box.files("leases")]
    return {lease["NAME"]: int(lease["KEEPER"]) for lease in leases if lease["KEEPER"] != "0"}


def _rebooted(box: Box) -> list[Any]:
    """A queue whose journal says that a job was running when the machine was booted."""
    _write(box, "short.txt", "[vram=1G] echo short\n")
    line = (*_QUEUE, "short.txt", "--json", "--log-dir", "rebooted")
    box.run(*line)
    journal = box.work / "rebooted" / "journal.jsonl"
    kept = [json.loads(text) for text in journal.read_text().splitlines() if '"event":"ended"' not in text]
    for record in kept:
        if "boot_id" in record:
            record["boot_id"] = record["boot_id"][::-1]
    journal.write_text("".join(f"{json.dumps(record)}\n" for record in kept))
    again = box.start(*line)
    box.wait(again)
    return _events(again)


def _held_up(box: Box) -> list[Any]:
    """A queue that finds all GPUs held."""
    holder = box.start("hold", "-q", "--gpus", "2", "--", "sleep", "95", env=SIMULATED)
    until(lambda: _keepers(box), "the GPUs are held")
    _write(box, "short.txt", "true\n")
    queue = box.start(*_QUEUE, "short.txt", "--json", "--log-dir", "waited")
    _await(queue, "waiting")
    os.kill(holder.pid, signal.SIGTERM)
    box.wait(holder)
    box.wait(queue)
    return _events(queue)
