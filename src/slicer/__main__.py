"""The entry point. ``slicer run``, ``hold`` and ``route`` go the fast way, most others through click.

None waits for Python to tear itself down, which takes 3 ms, and 6 with click. Python may run without ``site``
(``-S``), which takes milliseconds, more with each package: the fast way looks elsewhere than beside slicer
only for what it does not find there.
"""

from __future__ import annotations

import gc
import os
import sys

from slicer.kernel.signals import block_interrupts, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Run the command line in sys.argv and exit with its code."""
    _hold_standard_descriptors()
    # Ignored by a caller (trap '' CHLD), it is inherited, and the kernel reaps our children unseen.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    arguments = sys.argv[1:]
    if sys.flags.no_site:
        sys.meta_path.append(_LateSite)
    if arguments[:1] in (["run"], ["hold"], ["route"]):
        block_interrupts()
        gc.disable()  # a job makes no garbage here worth collecting, and forks share more memory
        os._exit(_fast(arguments[0], arguments[1:]))  # nothing is buffered
    gc.disable()
    if arguments[:1] == ["slurm-commands"]:  # by a shim of slicer install --slurm-commands
        from slicer.slurm_commands.main import main as other
    elif arguments in (["status"], ["status", "--json"]) and "_SLICER_COMPLETE" not in os.environ:
        from slicer.cli.status_shown import main as other  # click would take as long as all the rest
    else:
        if _LateSite in sys.meta_path:
            _LateSite.look()
        from slicer.cli.app import main as other

    gc.freeze()  # modules are no garbage, and need not be looked through again and again
    gc.enable()
    # Those that were closed lead nowhere now.
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")
    code = other(arguments)
    try:
        sys.stdout.flush()  # what was printed before something went wrong
    except OSError:
        pass  # and that was this
    os._exit(code)


def _fast(program: str, arguments: list[str]) -> int:
    """Run the command line after ``slicer PROGRAM`` without click. Returns slicer's exit code."""
    from slicer.cli import runoptions
    from slicer.errors import SlicerError

    if program == "run":
        from slicer.cli.run import perform
    elif program == "hold":
        from slicer.cli.hold import perform
    else:
        from slicer.cli.route import perform
    try:
        options, command = runoptions.parse(arguments, program)
    except SlicerError as failure:
        from slicer.cli import say

        return say.error(failure)
    return perform(options, command)


class _LateSite:
    """The last that Python asks for a module. From then on Python looks wherever ``site`` has it look."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> Any:
        """The module's spec; None: there is no such module."""
        if path is not None:  # in a package, whose place is known
            return None
        cls.look()
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)  # type: ignore[arg-type]
        return next((spec for spec in found if spec is not None), None)

    @classmethod
    def look(cls) -> None:
        sys.meta_path.remove(cls)
        import site

        site.main()


def _hold_standard_descriptors() -> None:
    """If a caller closed 0, 1 or 2, keep our own files from getting the number: messages are written there.

    The placeholders close on exec, so that the command finds what the caller left it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: fd


if __name__ == "__main__":
    main()
