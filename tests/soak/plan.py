"""What the soak's jobs are, and what is done to them: chosen by a seed, so that a run can be had again."""

from __future__ import annotations

import random
from dataclasses import dataclass

GPU_GIB = 24
"""Of each simulated GPU; a unit of its witness is 1 GiB."""
UUIDS = ("GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b")
NVML = "".join(
    f"gpu {place} {uuid} {GPU_GIB << 10} 00000000:0{place + 1}:00.0 {place} 0 NVIDIA L4\n"
    for place, uuid in enumerate(UUIDS)
)

SLOTS = {"license-x": 1, "w": 2, **{f"{letter * 59}.slot": 2 for letter in "abc"}}
"""Named slots, and how many there are. The names of the last, all together, are too long for a ticket's."""

LONG_MS = 250

ACTIONS = {
    "kill waiter": 4, "kill outer": 4, "kill keeper": 3, "kill command": 3, "kill halves": 3, "kill tree": 2,
    "term": 2, "interrupt": 2, "term command": 1, "stop": 5,
    "shut down": 0.2, "stop pattern": 1, "stop all": 0.2,
}  # fmt: skip
"""What is done to a job, and how often compared with the others. "Shut down" and "stop all" mean all of them,
"stop pattern" those whose number ends with the same digit."""


@dataclass(frozen=True)
class Spec:
    """One job: how it is asked for, what its witness must get, and how it will end if it is left alone."""

    number: int
    options: tuple[str, ...]  # for slicer run
    cpu: int  # slots
    slots: dict[str, int]  # of other names
    gpus: int
    gib: int  # on each of the GPUs
    hold_ms: int
    child_ms: int  # beyond its start, how long a child of the command lives on; 0: there is none
    code: int
    may_give_up: bool  # it has a --max-wait, and so may end with 75

    @property
    def is_long(self) -> bool:
        """Whether it goes on for a while when both halves of its supervisor are killed."""
        return max(self.hold_ms, self.child_ms) >= LONG_MS

    @property
    def name(self) -> str:
        return f"soak-{self.number}"


@dataclass(frozen=True)
class Abilities:
    """What this slicer and this machine offer to ask for."""

    slots: int
    options: frozenset[str]  # of `slicer run`
    gpus: bool  # a simulated NVML is there


def spec(seed: int, number: int, can: Abilities) -> Spec:
    """The job of that number: the same for the same seed and abilities."""
    dice = random.Random(f"{seed}:{number}")
    options: list[str] = []
    cpu, gpus, gib = _needs(dice, can, options)
    slots = _named_slots(dice, can)
    options += [word for name, count in slots.items() for word in ("--slot", f"{name}={count}")]
    if "--priority" in can.options and dice.random() < 0.3:
        options += ["--priority", str(dice.choice((-50, -1, 1, 7, 100)))]
    may_give_up = "--max-wait" in can.options and dice.random() < 0.15
    if may_give_up:
        # Never "run": such a job takes what others hold, and says so.
        options += ["--max-wait", f"{dice.choice((0, 50, 500, 3000))}ms", "--then", "fail"]
    hold_ms = dice.choice((0, 0, *(dice.randrange(10, most) for most in (60, 60, 300, 300, 900))))
    child_ms = 0
    if dice.random() < 0.25:
        child_ms = hold_ms + dice.randrange(20, 600)
        options += ["--linger"] if dice.random() < 0.3 else []
    return Spec(
        number,
        tuple(options),
        cpu,
        slots,
        gpus,
        gib,
        hold_ms,
        child_ms,
        dice.choice((0, 0, 0, 1, 3, 99)),
        may_give_up,
    )


def _needs(dice: random.Random, can: Abilities, options: list[str]) -> tuple[int, int, int]:
    """Slots, GPUs and GiB on each, and the options that ask for them."""
    kind = dice.choices(("cpu", "wide", "gpu", "gpus", "vram", "both", "none"), (6, 1, 2, 1, 4, 1, 2))[0]
    if kind == "none":  # but perhaps named slots
        return 0, 0, 0
    if kind == "wide" and "--cpu-slots" in can.options:
        cpu = dice.randrange(1, can.slots + 1)
        options += ["-p", "heavy", "--cpu-slots", str(cpu)]
        return cpu, 0, 0
    if kind in ("cpu", "wide") or not can.gpus:
        options += ["-p", "heavy"]
        return 1, 0, 0
    if kind == "vram" and "--vram" in can.options:
        gib, gpus = dice.choice((1, 3, 5, 8, 12, 20)), dice.choice((1, 1, 1, 2))
        options += ["--gpus", str(gpus), "--vram", f"{gib}G", "--margin", "0"]
        return 0, gpus, gib
    if kind == "both":
        options += ["-p", "heavy", "--gpus", "1"]
        return 1, 1, GPU_GIB
    gpus = 2 if kind == "gpus" else 1
    options += ["--gpus", str(gpus)]
    return 0, gpus, GPU_GIB


def _named_slots(dice: random.Random, can: Abilities) -> dict[str, int]:
    if "--slot" not in can.options or dice.random() < 0.5:
        return {}
    names = dice.sample(list(SLOTS), dice.choice((1, 1, 1, 2, 5)))
    return {name: dice.randint(1, SLOTS[name]) for name in names}


@dataclass(frozen=True)
class Action:
    """``pick`` and ``part`` in [0, 1) choose the job among those it can be done to, and what of it."""

    kind: str
    pick: float
    part: float
    pause_s: float  # until the next one
    stop_s: float  # how long a stopped process stays stopped


class Actions:
    """The sequence of actions of a seed."""

    def __init__(self, seed: int, per_s: float) -> None:
        self._dice = random.Random(f"{seed}:actions")
        self._per_s = per_s

    def next(self) -> Action:
        dice = self._dice
        kind = dice.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        return Action(
            kind, dice.random(), dice.random(), dice.expovariate(self._per_s), dice.uniform(0.02, 0.5)
        )
