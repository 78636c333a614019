"""The scripts that run on a node. Pure.

A *batch* is an array's script: it chooses the attempt of its task, and claims it by renaming its order. So an
attempt begins once at most, whatever Slurm repeats. An *order* is the script of one attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from slicer.job.plan import Plan

NO_SLICER = 78  # the exit code of an order on a node without slicer
_IDS = "# attempts: "

_BATCH = """\
#!/bin/sh
{ids}
cd {directory} || exit 76
trap : TERM
set -- {words}
shift "$SLURM_ARRAY_TASK_ID"
mv -- "$1.order" "$1.begun" || exit 77
echo "$SLURMD_NODENAME $SLURM_JOB_GPUS" > "$1.node"
(. "./$1.begun")
code=$?
tries={tries}
while [ ! -e "$1.end" ] && [ -e "$1.begun" ] && [ $((tries -= 1)) -ge 0 ]; do
    {{ echo "$code" > "$1.tmp" && mv -- "$1.tmp" "$1.end"; }} 2> /dev/null || sleep 1
done
exit "$code"
"""
_TRIES = 300  # a second apart, to write the end where a disk is full
_ORDER = """\
exec < /dev/null > {log} 2>&1
trap : TERM
command -v {slicer} > /dev/null || {{
    echo "slicer: there is no {slicer} on $SLURMD_NODENAME"
    exit {no_slicer}
}}
cd {directory} || exit 126
{words}
"""


def batch(directory: str, jobs: Sequence[str]) -> str:
    """The script of an array whose tasks are these attempts. ``directory`` has their orders."""
    words = " ".join(jobs)
    return _BATCH.format(ids=f"{_IDS}{words}", directory=quote(directory), words=words, tries=_TRIES)


def jobs_of(text: str) -> list[str]:
    """The attempts of a batch, in their order."""
    line = next((line for line in text.splitlines() if line.startswith(_IDS)), "")
    return line.removeprefix(_IDS).split()


def order(
    plan: Plan, job: str, *, slicer: str, directory: str, log: str, exchange: str,
    env: Sequence[tuple[str, str]],
) -> str:  # fmt: skip
    """The script of one attempt: ``slicer run`` in its directory, with the outcome beside the order.

    Slurm has placed it. So it takes its GPUs whatever else is on them, in the ledger of its allocation.
    """
    profile = plan.profile
    words = [slicer, "run", "--quiet", "--job", job, "--profile", profile.name]
    words += ["--name", plan.invocation.name, "--gpus", str(profile.gpus), "--max-wait", "0", "--then", "run"]
    if profile.vram_mib is not None:
        words += ["--vram", f"{profile.vram_mib}M", "--margin", "0M"]
    if profile.timeout_s is not None:
        words += ["--timeout", f"{profile.timeout_s}s"]
    variables = ["env", *(f"{name}={value}" for name, value in env)] if env else []
    words += ["--outcome", f"{exchange}/{job}.end", "--", *variables, *plan.invocation.command]
    return _ORDER.format(
        log=quote(log), slicer=quote(slicer), no_slicer=NO_SLICER, directory=quote(directory),
        words=" ".join(map(quote, words)),
    )  # fmt: skip
