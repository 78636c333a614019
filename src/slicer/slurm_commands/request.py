"""From what a submission asks for to ``slicer run``: times, sizes, GPUs, arrays, names of files. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from slicer.errors import UsageError
from slicer.quantity import parse_size
from slicer.record import record
from slicer.slurm_commands.options import Values

MOST_TASKS = 1000  # of an array, as Slurm by default; each that waits is a process
_CONDITIONS = {"afterok": "ok", "afterany": "any", "afternotok": "failed"}
# With --export=NONE: a job is still its user's, and slicer looks where its user's other commands do.
_BASE = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TERM", "TMPDIR")
_PREFIXES = ("SLICER_", "XDG_", "DBUS_", "LC_")
_LEASE = ("SLICER_LEASE", "SLICER_GPU_INDICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPU_LOCK_HELD")
_CONSTANT = {
    "CLUSTER_NAME": "slicer", "JOB_PARTITION": "slicer", **dict.fromkeys(("NNODES", "JOB_NUM_NODES"), 1),
    **dict.fromkeys(("NODEID", "PROCID", "LOCALID"), 0),
}  # fmt: skip


@record
class TaskArray:
    """``indices`` in their order; ``most`` of them run at a time (0: all)."""

    indices: tuple[int, ...]
    most: int


@record
class NodeNeeds:
    """What a job asks for; None: nothing."""

    gpus: int | None
    cpus: int | None  # of all tasks
    tasks: int
    memory_mib: int | None
    limit_s: int | None


def _matched(pattern: str, text: str, expected: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text.strip())
    if match is None:
        raise UsageError(f"expected {expected}, not {text!r:.40}")
    return match


def seconds(text: str) -> int | None:
    """A time limit: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].

    None: there is none. Raises UsageError.
    """
    if text.upper() in ("", "0", "-1", "UNLIMITED", "INFINITE"):
        return None
    pattern = r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?"
    days, *clock = _matched(pattern, text, "--time as in 30, 2:00:00 or 1-12").groups()
    numbers = [int(part) for part in clock if part is not None]
    units = (3600, 60, 1) if days or len(numbers) == 3 else (60, 1)
    return 86_400 * int(days or 0) + sum(n * unit for n, unit in zip(numbers, units, strict=False))


def count(text: str, option: str) -> int:
    """A whole number; of a range as in ``1-4`` the first. Raises UsageError."""
    return int(_matched(r"(\d{1,6})(?:-\d+)?", text, f"a number for --{option}")[1])


def _mib(text: str) -> int:
    """A size in MiB, in which it is without a unit. Raises QuantityError."""
    word = text.strip().upper().removesuffix("B")
    return -(-parse_size(f"{word}M" if word.isdigit() else word) >> 20)


def _gpus(values: Values, tasks: int) -> int | None:
    """How many, whatever their type."""
    for option, each in (("gpus", 1), ("gpus-per-node", 1), ("gpus-per-task", tasks)):
        if option in values:
            kinds = values[option].split(",")
            return each * sum(count(kind.rpartition(":")[2], option) for kind in kinds)
    kinds = re.findall(r"(?:^|,)(?:gres[:/])?gpu(?![^:,(])(?::([^,(]*))?", values.get("gres", ""))
    return sum(count(kind.rpartition(":")[2] or "1", "gres") for kind in kinds) if kinds else None


def needs(values: Values) -> NodeNeeds:
    """Raises UsageError, also for more than one node, QuantityError."""
    if count(values.get("nodes", "1"), "nodes") > 1:
        raise UsageError("there is one node: this machine", where="--nodes")
    each = next((name for name in ("ntasks", "ntasks-per-node") if name in values), "tasks-per-node")
    tasks = max(1, count(values.get(each, "1"), each))
    gpus, cpus = _gpus(values, tasks), None
    if "cpus-per-task" in values or tasks > 1:
        cpus = tasks * count(values.get("cpus-per-task", "1"), "cpus-per-task")
    elif "cpus-per-gpu" in values:
        cpus = (gpus or 1) * count(values["cpus-per-gpu"], "cpus-per-gpu")
    asked = (("mem", 1), ("mem-per-cpu", cpus or 1), ("mem-per-gpu", gpus or 1))
    memory = [_mib(values[option]) * times for option, times in asked if option in values]
    return NodeNeeds(gpus, cpus, tasks, max(memory, default=0) or None, seconds(values.get("time", "")))


def array(text: str) -> TaskArray:
    """As in ``0-9:2,12%4``. Raises UsageError."""
    said, percent, most = text.partition("%")
    expected = f"--array of 1 to {MOST_TASKS} tasks, as in 0-9 or 1,3,5-7%2"
    found: dict[int, None] = {}
    for part in said.split(","):
        first, last, step = _matched(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?", part, expected).groups()
        found |= dict.fromkeys(range(int(first), int(last or first) + 1, int(step or 1))[: MOST_TASKS + 1])
    if not 0 < len(found) <= MOST_TASKS:
        raise UsageError(f"expected {expected}")
    return TaskArray(tuple(found), count(most, "array") if percent else 0)


def dependencies(text: str) -> list[tuple[str, str]]:
    """The jobs to follow, each with how it has to end. Raises UsageError."""
    found = []
    for word in filter(None, text.split(",")):
        expected = f"--dependency {', '.join(_CONDITIONS)} with jobs"
        kind, jobs = _matched(rf"({'|'.join(_CONDITIONS)}):([\w:]+)", word, expected).groups()
        found += [(job, _CONDITIONS[kind]) for job in jobs.split(":")]
    return found


def warning(text: str) -> tuple[str, int, bool]:
    """``--signal``: the signal, how long before the time limit, and whether the script alone gets it."""
    match = _matched(r"([BR]{1,2}:)?(\w+)(?:@(\d{1,6}))?", text, "--signal=SIGNAL@SECONDS")
    return match[2], int(match[3] or 60), "B" in (match[1] or "")


def filled(pattern: str, environ: Mapping[str, str], user: str, step: str = "0") -> str:
    """A file's name, with what ``%j`` and the like stand for; ``%4j`` has leading zeros.

    ``environ``: as in the job.
    """
    number, name = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_NAME", "")
    found = {
        **dict.fromkeys("jJ", number), "A": environ.get("SLURM_ARRAY_JOB_ID", number), "s": step,
        "a": environ.get("SLURM_ARRAY_TASK_ID", "4294967294"), "x": name.replace("/", "_"), "u": user,
        "N": environ.get("SLURM_JOB_NODELIST", ""), **dict.fromkeys("nt", "0"), "%": "%",
    }  # fmt: skip

    def fill(match: re.Match[str]) -> str:
        value = found.get(match[2], match[0])
        return value.zfill(min(10, int(match[1] or 0))) if value.isdigit() else value

    return re.sub(r"%(\d{0,3})([a-zA-Z%])", fill, pattern)


def exported(environ: Mapping[str, str], export: str) -> dict[str, str]:
    """The variables that a job gets of its caller's, by ``--export``. It is no part of a job around that."""
    lost = _LEASE if _LEASE[0] in environ else ()
    found = {n: v for n, v in environ.items() if n not in lost and not n.startswith(("SLURM_", "SBATCH_"))}
    words = [word for word in export.split(",") if word]
    if "NONE" in words or (words and "ALL" not in words):
        kept = (*_BASE, *words)
        found = {n: v for n, v in found.items() if n in kept or n.startswith(_PREFIXES)}
    return {**found, **dict(word.split("=", 1) for word in words if "=" in word)}


def environment(needs: NodeNeeds, node: str, array: TaskArray | None, **more: object) -> dict[str, str]:
    """Slurm's variables in a job. Never SLURMD_NODENAME: with it, slicer would obey an allocation of Slurm's.

    ``more``: what differs from job to job.
    """
    found: dict[str, object] = {
        **_CONSTANT, **dict.fromkeys(("JOB_NODELIST", "NODELIST", "SUBMIT_HOST"), node),
        **dict.fromkeys(("NTASKS", "NPROCS", "TASKS_PER_NODE"), needs.tasks), "GPUS": needs.gpus or None,
        **dict.fromkeys(("CPUS_ON_NODE", "JOB_CPUS_PER_NODE"), needs.cpus), "MEM_PER_NODE": needs.memory_mib,
        "CPUS_PER_TASK": needs.cpus and needs.cpus // needs.tasks, **more,
    }  # fmt: skip
    if array is not None:
        found |= {"ARRAY_TASK_COUNT": len(array.indices)}
        found |= {"ARRAY_TASK_MIN": min(array.indices), "ARRAY_TASK_MAX": max(array.indices)}
    return {f"SLURM_{key}": str(value) for key, value in found.items() if value is not None}


def run_options(values: Values, needs: NodeNeeds, after: Sequence[str]) -> list[str]:
    """The options of ``slicer run``. ``after``: as for its ``--after``."""
    asked = {
        "--begin": _begin(values["begin"]) if "begin" in values else None,
        "--gpus": needs.gpus,
        "--timeout": needs.limit_s and f"{needs.limit_s}s",
        "--set=MemoryMax": needs.memory_mib and f"{needs.memory_mib}M",
        "--set=CPUQuota": needs.cpus and f"{needs.cpus * 100}%",
    }
    chosen = [f"{option}={value}" for option, value in asked.items() if value is not None]
    return [*(f"--after={each}" for each in after), *chosen]


def _begin(text: str) -> str:
    """As slicer writes it: ``now+1hour`` is 1hour, ``now+60`` is 60s."""
    word = text.removeprefix("now+")
    return "1s" if text == "now" else f"{word}s" if word.isdigit() else word
