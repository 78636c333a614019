"""``slicer hold`` as click sees it, for ``--help`` and completion."""

from __future__ import annotations

from slicer.cli.run_help import fast_command

_HELP = """\
Hold a lease while a command or a shell runs.

What `slicer run` does, without a scope: the lease on GPUs and slots is the same, others wait for it just
as long, but no limit is put on the command and its environment gets only what the lease says about GPUs. Of
a profile its needs are taken, not its limits. Without COMMAND your shell ($SHELL) is started; leaving it
gives everything back.
"""

_EPILOG = """\
\b
Examples:
  slicer hold --gpus 1
      A shell that has a GPU to itself until you leave it.
  slicer hold --vram 8G --expect 30m --name notebook -- jupyter lab
      A share of one GPU; others see who holds it, and for how long.
  slicer hold --cpu-slots 1 --max-wait 10m -- ./build.sh
      A CPU slot; after ten minutes of waiting it is built without.

\b
Exit codes: as of slicer run; see slicer run --help.
"""

command = fast_command(
    "hold", _HELP, "Hold a lease while a command or a shell runs.", _EPILOG, "[COMMAND [ARGUMENT]...]"
)
