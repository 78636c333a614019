"""What is looked at: each scene runs slicer in a box, and gives the sections of one golden file.

A section is text, which has to be the same letter for letter, or the :class:`Shape` of data.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.unit.surface import scene_api, scene_jobs, scene_queue, scene_route, transcripts
from tests.unit.surface.box import Box
from tests.unit.surface.shape import Shape
from tools.manpages.tree import all_commands

Section = str | Shape

HOST = {"SURFACE_HOST": "1"}

# Every key of a configuration file; the values do not matter, only that they are taken and shown.
CONFIG = """\
default_profile = "mine"
compat_gpu_lock = "/tmp/gpu.lock"
[slots]
cpu = 2
[gpu]
idle_threshold = "100M"
margin = "256M"
spike_buffer = "20%"
[waiting]
reserve_after = "1m"
[profiles.mine]
description = "all there is"
inherits = "gpu"
slice = "gpu"
gpus = 1
gpu = [0, 1]
vram = "8G"
margin = "1G"
cpu_slots = 1
priority = 10
max_wait = "2h"
then = "run"
threads = 4
timeout = "12h"
linger = true
env = { ONE = "1", TWO = false }
cpu_quota_period = "10ms"
allowed_cpus = "0-3"
memory_swap_max = "1G"
tasks_max = 100
device_allow = ["/dev/null rw"]
"""


def help_texts(box: Box) -> dict[str, Section]:
    """``--help`` of every command."""
    found: dict[str, Section] = {}
    for words in ("slicer", *(command.words for command in all_commands())):
        done = box.run(*words.split()[1:], "--help")
        # click before 8.2 writes the first.
        shown = done.out.replace(" COMMAND [ARGS]...", " [COMMAND] [ARGS]...", 1)
        found[f"{words} --help"] = _told(done.code, shown, done.err)
    for text in ("run -h", "queue -h", "help units", "help exit-codes", "help nothing", "help run x"):
        done = box.run(*text.split())
        found[f"slicer {text}"] = _told(done.code, done.out, done.err)
    assert box.run("help", "run") == box.run("run", "--gpus", "1", "--help", "--", "true")
    assert box.run("help") == box.run("-h")
    for line in (("--version",), ("version",)):
        found[" ".join(("slicer", *line))] = re.sub(r"\d\S*", "VERSION", box.run(*line).out)
    return found


def profiles(box: Box) -> dict[str, Section]:
    """The built-in profiles on a machine of 8 CPUs and 32 GiB, and every key of a configuration file."""
    own = box.root / "own.toml"
    own.write_text(CONFIG)
    mine = {**HOST, "SLICER_CONFIG": str(own), "SLICER_SIM": "2x24G"}
    lines: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (("profiles",), HOST),
        (("profiles", "--json"), HOST),
        (("profiles", "show", "light"), HOST),
        (("profiles", "show", "heavy"), HOST),
        (("profiles",), mine),
        (("profiles", "show"), mine),
        (("run", "--backend", "plain", "--dry-run", "--", "/bin/true"), HOST),
        (("run", "--backend", "plain", "--dry-run", "--name", "a", "--gpus", "1", "--", "/bin/true"), mine),
    ]
    found: dict[str, Section] = {}
    for line, env in lines:
        done = box.run(*line, env={**env, "CPU_RUN_SLOTS": ""})
        where = " (with own.toml)" if env is mine else ""
        found[" ".join(("slicer", *line)) + where] = _told(*done)
    done = box.run("profiles", "init", "--user", env=HOST)
    written = (box.root / "config" / "slicer" / "config.toml").read_text()
    found["slicer profiles init --user"] = _told(*done) + "\n" + written
    return found


def _told(code: int, out: str, err: str) -> str:
    """Exit code and output as text."""
    shown = [out.rstrip("\n")] if out else []
    shown += [f"2> {line}" for line in err.splitlines()]
    return "\n".join([*shown, f"exit code {code}"])


SCENES: dict[str, Callable[[Box], dict[str, Section]]] = {
    "help": help_texts,
    "profiles": profiles,
    "jobs": scene_jobs.jobs,
    "queue": scene_queue.queue,
    "route": scene_route.route,
    "api": scene_api.api,
    **{name: transcripts.scene(name) for name in transcripts.NAMES},
}
