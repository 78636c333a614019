"""Commands that start their work elsewhere, or with another environment, beyond the lease's reach. Pure."""

from __future__ import annotations

from slicer.model import LEASE_VARIABLE
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLES = "CUDA_VISIBLE_DEVICES,CUDA_DEVICE_ORDER,SLICER_LEASE"

_SUDO = (
    "drops CUDA_VISIBLE_DEVICES, so that the command sees every GPU",
    f"sudo --preserve-env={_VARIABLES} keeps it; or put slicer behind it: sudo slicer run …",
)
_ANOTHER_USER = (_SUDO[0], "put slicer behind it, to run as that user")
_CONTAINER = (
    "runs the command outside of this job, without its CUDA_VISIBLE_DEVICES and limits",
    'sh -c \'docker run --gpus "\\"device=$CUDA_VISIBLE_DEVICES\\"" …\' gives it the job\'s GPUs',
)
_SERVER = (
    "hands the command to a server outside of this job, and the lease may end before it",
    "run slicer inside it",
)
_COMPOSE = (_CONTAINER[0], "--docker; in the compose file: cgroup_parent: ${SLICER_SLICE:-}, device ids")
_EMPTIED = (_SUDO[0], 'env -i CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES" … keeps it')
_CLEAN = (_SUDO[0], "--env CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES in a sh -c '…' keeps it")
_SLURM = (_SERVER[0].replace("a server", "Slurm"), "srun slicer run …, or slicer queue --engine slurm")
_UNIT = (_SERVER[0].replace("a server", "systemd"), "give slicer the command itself, and limits by --set")
_REMOTE = (
    "runs the command on another machine, where this lease holds nothing",
    "run slicer there: ssh HOST slicer run …",
)

_KNOWN = {
    "sudo": _SUDO,
    **dict.fromkeys(("doas", "pkexec", "su"), _ANOTHER_USER),
    **dict.fromkeys(("docker", "nerdctl"), _CONTAINER),
    "docker-compose": _COMPOSE,
    "env": _EMPTIED,
    **dict.fromkeys(("apptainer", "singularity"), _CLEAN),
    **dict.fromkeys(("srun", "sbatch", "salloc"), _SLURM),
    **dict.fromkeys(("tmux", "screen", "at", "batch"), _SERVER),
    "systemd-run": _UNIT,
    **dict.fromkeys(("ssh", "mosh"), _REMOTE),
}
# Programs that lose something with these options alone.
_ONLY_WITH = {
    "su": frozenset(("-", "-l", "--login")),
    "env": frozenset(("-", "-i", "--ignore-environment")),
    **dict.fromkeys(("apptainer", "singularity"), frozenset(("-e", "--cleanenv", "-C", "--containall"))),
}
_THROUGH = ("nice", "nohup", "setsid", "time")  # they become, or start, the program behind them
_KEEPS = ("--preserve-env", "-E")


def what_is_lost(command: tuple[str, ...]) -> str:
    """The warning for a command beyond the reach of a GPU lease, with a remedy; "" for any other."""
    while command[0] in _THROUGH and command[1:]:
        command = command[1:]
    program = command[0].rpartition("/")[2]
    if program not in _KNOWN:
        return ""
    if any(word.startswith(_KEEPS) or "_VISIBLE_DEVICES" in word for word in command[1:]):
        return ""  # the user has handled it
    if program in _ONLY_WITH and not _ONLY_WITH[program] & _options(program, command[1:]):
        return ""  # it keeps the environment
    lost, instead = _KNOWN[program]
    return f"{program} {lost} ({instead})"


def what_is_replaced(environ: Mapping[str, str]) -> str:
    """The warning for a choice of GPUs in slicer's environment, unless it is slicer's own; "" without one.

    Its numbers may be CUDA's, which are not those of nvidia-smi and slicer. So it is no choice for a lease.
    """
    said = environ.get("CUDA_VISIBLE_DEVICES")
    if said is None or LEASE_VARIABLE in environ:
        return ""
    instead = "--gpu LIST chooses them" if said[:1].isalnum() else "a job without GPUs sees none"
    return f"CUDA_VISIBLE_DEVICES={visible(said):.60} is replaced by the lease's GPUs ({instead})"


def _options(program: str, words: tuple[str, ...]) -> set[str]:
    """The words that are the program's own options. Those of the command behind it are not."""
    if program == "su":
        return set(words)
    own = words[1:] if program in ("apptainer", "singularity") else words  # after the subcommand
    return set(own[: next((i for i, word in enumerate(own) if not word.startswith("-")), None)])
