"""Reads what Slurm's commands print. Pure.

Formats of columns are older than ``--json``, which needs a plugin, and a hundredth as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

NODE_FORMAT = "%R|%G|%c|%m"
JOB_FORMAT = "%F|%K|%U|%j|%T|%r|%N|%k"

_ACTIVE = (
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT",
    "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SPECIAL_EXIT",
)  # fmt: skip
# Errors of sbatch that the same request would meet again.
_REFUSED = (
    "invalid partition", "node configuration is not available", "invalid feature", "invalid qos",
    "invalid account", "invalid generic resource", "user's group not permitted", "unrecognized option",
    "invalid option", "memory specification can not be satisfied", "invalid gres", "access/permission denied",
)  # fmt: skip


class Node(NamedTuple):
    """Nodes of one kind in one partition, as configured."""

    partition: str
    gpus: int
    shards_each: int  # of one of its GPUs
    cpus: int
    memory_mib: int


class SlurmTask(NamedTuple):
    array: str  # the array's own number in Slurm
    position: int  # in the array
    state: str
    reason: str
    node: str

    @property
    def is_active(self) -> bool:
        return self.state in _ACTIVE

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for somebody to release it, because its node could not start it."""
        return self.state == "PENDING" and "requeued held" in self.reason


def nodes(text: str) -> tuple[Node, ...]:
    """The nodes that sinfo printed in NODE_FORMAT. Unreadable lines are left out."""
    found = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != 4:
            continue
        counts = _gres(words[1])
        gpus, shards = counts.get("gpu", 0), counts.get("shard", 0)
        found.append(
            Node(words[0], gpus, shards // gpus if gpus else 0, _number(words[2]), _number(words[3]))
        )
    return tuple(found)


def _gres(text: str) -> dict[str, int]:
    """As in "gpu:a100:4(S:0-1),shard:a100:48": the counts of all types of each name."""
    found: dict[str, int] = {}
    for word in re.sub(r"\([^)]*\)", "", text).split(","):
        name, _, rest = word.strip().partition(":")
        found[name] = found.get(name, 0) + _number(rest.rpartition(":")[2])
    return found


def _number(text: str) -> int:
    """The number at the text's beginning, as in "32+"."""
    match = re.match(r"\d{1,9}", text.strip())
    return int(match[0]) if match else 0


def tasks(text: str, uid: int) -> dict[tuple[str, int], SlurmTask]:
    """The tasks of this user's arrays that squeue printed in JOB_FORMAT, by batch and position.

    A job's name is anybody's: only tasks of this very user count, whose name and comment name the same batch.
    """
    found: dict[tuple[str, int], SlurmTask] = {}
    for line in text.splitlines():
        words = line.split("|", 7)
        if len(words) != 8 or words[2] != str(uid) or not words[1].isdecimal():
            continue
        array, index, _, name, state, reason, node, comment = words
        if name == f"slicer-{comment}" and array.isdecimal():
            found[comment, int(index)] = SlurmTask(array, int(index), state, reason, node)
    return found


def numbers(tasks: Iterable[SlurmTask]) -> list[str]:
    """The tasks as scancel takes them, one word for each array: it asks the controller once a word."""
    positions: dict[str, list[int]] = {}
    for task in tasks:
        positions.setdefault(task.array, []).append(task.position)
    return [f"{array}_[{','.join(map(str, sorted(found)))}]" for array, found in positions.items()]


def array_of(text: str) -> str:
    """The number that ``sbatch --parsable`` printed; "" for anything else."""
    number = text.strip().partition(";")[0]
    return number if number.isdecimal() else ""


def is_refusal(text: str) -> bool:
    """Whether sbatch refused this very request, so that repeating it would not help."""
    return any(words in text.lower() for words in _REFUSED)


def last_words(text: str) -> str:
    """The last line of an error, without the command's name."""
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return re.sub(r"^\w+: (?:error|fatal): (?:Batch job submission failed: )?", "", line.strip())
