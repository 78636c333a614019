"""Commands and options of other programs, and what slicer has for them."""

from __future__ import annotations

from slicer.config.property_names import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

COMMANDS = {
    "submit sbatch gbatch add enqueue exec tsp": (
        "slicer run -d -- COMMAND runs a job in the background, slicer queue FILE the jobs in a file"
    ),
    "srun start launch": "slicer run -- COMMAND runs it; slicer resume JOB lets a paused job go on",
    "salloc lock acquire": "slicer hold --gpus 1 takes a GPU for a shell or a program",
    "ps ls list jobs job queues squeue gqueue": "slicer status lists the jobs, slicer queue the queues",
    "gpus gpu sinfo ginfo stats htop watch monitor": "slicer top shows GPUs, jobs and who waits",
    "info inspect describe scontrol gjob": "slicer show JOB; slicer set JOB changes its limits",
    "update edit": "slicer set JOB MemoryMax=8G changes its limits; a jobs file can be edited",
    "scancel gcancel cancel kill rm remove delete send": "slicer stop JOB; with --signal USR1 by that signal",
    "suspend freeze hold-job": "slicer pause JOB",
    "continue unpause unfreeze": "slicer resume JOB",
    "sacct past ended results": "slicer history shows how jobs ended, slicer history JOB one of them",
    "log tail follow attach output cat": "slicer logs -f JOB follows a job, slicer queue FILE a queue",
    "retry restart requeue rerun": "slicer queue retry FILE makes the failed jobs of a queue pending again",
    "sweep array parallel param": "slicer queue add FILE --param lr=1,2 -- COMMAND {lr}; slicer queue FILE",
    "stash delay at cron": "slicer run -d --begin 22:00 -- COMMAND; --after JOB starts it behind another one",
    "clean clear reset prune": "there is nothing to clean up: a lease ends with its job",
    "group groups partition": "[slots] in the configuration; slicer queue FILE -j N runs N jobs at a time",
    "proxy": "slicer serve gives a server a GPU only while it has requests",
    "background daemon": "slicer run -d and slicer queue FILE -d run in the background",
    "config": "slicer profiles shows the configuration and where each value comes from",
}
_DIRECTORY = "it runs in this directory: cd first; a line of a jobs file has [cwd=DIR]"
_ENVIRON = "it gets this environment: env NAME=VALUE slicer run …; in a jobs file [env.NAME=VALUE]"
_BACKGROUND = "slicer run --detach runs it in the background; start slicer hold and route in tmux"
OPTIONS = {
    "--mem --memory --mem-per-cpu": "--set MemoryMax=8G limits main memory; --vram 8G requests GPU memory",
    "--gpu-memory --gpu-mem": "--vram 8G",
    "--cpus --cpus-per-task -c --cores": "--set CPUQuota=400% is 4 CPUs; --cpu-slots N counts CPU jobs",
    "--env --setenv -e -E --export": _ENVIRON,
    "--cwd --chdir --working-directory --workdir -w -D": _DIRECTORY,
    "--background --daemon -b --detach": _BACKGROUND,
    "--gres --gpus-per-node --gpus-per-task --ngpus": "--gpus N",
    "--device --devices --gpu-id": "--gpu 0,1",
    "-J --job-name -n --label --unit -u -L": "--name NAME",
    "--dependency --depends --depends-on -a": "--after JOB",
    "--time -t --time-limit --max-time": "--timeout 2h",
    "--array --param": "slicer queue add FILE --param i=1..9 -- COMMAND {i}, then slicer queue FILE",
    "--retries --requeue --restart": "--retry any:2, with --detach or before a line of a jobs file",
    "--out -o --error": "> FILE behind the command; with --detach: --output FILE",
    "--property": "--set MemoryMax=8G",
    "--delay --at --start --from": "--begin 22:00",
    "--nice": "--set CPUWeight=50",
    "--scope --slice": "each job has a scope; slice = in a profile chooses gpu.slice or cpu.slice",
    "--immediate -I": "--no-wait",
    "--watch --follow -f": "slicer top stays, and shows each change",
    "--tail --last": "-n N",
    "--all -a": "--mine of slicer stop: all jobs of this user",
    "--port": "--listen HOST:PORT",
    "--explain --check": "--dry-run",
    "--undo": "--remove",
}
# What is typed in place of the FILE of ``slicer queue``.
_QUEUE = {
    "-": "slicer queue /dev/stdin",
    "list ls status show": "slicer queue lists your queues, slicer queue FILE shows one",
    "run start": "slicer queue FILE",
    "kill cancel": "slicer queue stop FILE",
    "log logs": "slicer logs FILE#7",
}

_TYPO = 0.75  # how much of a mistyped word is right
_LEAST = 3  # letters by which a word is known


def _nearest(word: str, known: Collection[str]) -> str:
    longer = [name for name in known if name.startswith(word) and len(word.lstrip("-")) >= _LEAST]
    return longer[0] if len(longer) == 1 else nearest(word, known, cutoff=_TYPO)


def _said(table: Mapping[str, str], word: str) -> str:
    return next((says for words, says in table.items() if word in words.split()), "")


def queue_word(word: str) -> str:
    """What was meant by a word in place of a jobs file; "": who knows."""
    return _said(_QUEUE, word)


def command(word: str, known: Collection[str]) -> str:
    """What was meant by a command that is not one of those ``known``; "": who knows."""
    close = _nearest(word, known)
    return _said(COMMANDS, word) or (f"did you mean slicer {close}?" if close else "")


def option(name: str, known: Collection[str]) -> str:
    """The same for an option. An answer that is an option is not given to a command that lacks it."""
    meant = _said(OPTIONS, name)
    if meant and (meant[0] != "-" or meant.split()[0] in known):
        return f"here: {meant}" if meant[0] == "-" else meant
    close = _nearest(name, known)
    return f"did you mean {close}?" if close else ""
