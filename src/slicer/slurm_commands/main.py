"""The beginning of all of them: which one is meant, and what it says of what went wrong."""

from __future__ import annotations

import sys

from slicer.errors import EX_PROBLEM, SlicerError
from slicer.quantity import QuantityError
from slicer.slurm_commands import options
from slicer.text import visible
from slicer.version import __version__


def main(arguments: list[str]) -> int:
    """Perform a command: ``slurm-commands``, its name, its arguments. Returns its exit code, 1 for errors."""
    name = arguments[1] if arguments[1:] else ""
    try:
        code = _perform(name, arguments[2:])
        sys.stdout.flush()
        return code
    except (SlicerError, QuantityError) as error:
        wrong = str(error)
    except OSError as error:
        wrong = f"{error.filename or ''}: {error.strerror}".removeprefix(": ")
    print(f"{name}: error: {visible(wrong)}", file=sys.stderr)
    return EX_PROBLEM


def _perform(name: str, words: list[str]) -> int:
    if words[:1] == ["--help"]:
        print(f"{name} takes {options.listed(name)}; see docs/slurm-commands.md")
        return 0
    if words[:1] in (["-V"], ["--version"]):
        print(f"slurm 24.05.0 (slicer {__version__})")
        return 0
    if name in ("sbatch", "srun"):
        from slicer.slurm_commands import submit

        return submit.sbatch(words) if name == "sbatch" else submit.srun(words)
    from slicer.slurm_commands import show

    return show.perform(name, words)
