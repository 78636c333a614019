"""``slicer route`` as click sees it, for ``--help`` and completion."""

from __future__ import annotations

from slicer.cli import complete
from slicer.cli.run_help import fast_command

_HELP = """\
Run a command on the GPU or on the CPU, as its input decides.

NAME is a [routes.NAME] of the configuration. What the route's probe measures of the command's input is
compared with its threshold; so the job gets a destination, with the arguments, the profile and the limit on
jobs at a time that belong to it. One line on stderr says why. If the destination is busy the job is blocked:
it does not wait, unless the route says so.

Options stand before or after NAME. Inside a job of the same route COMMAND is executed at once.
"""

_EPILOG = """\
\b
Examples:
  slicer route whisper -- whisper talk.mp4
      The route's decision, in one line, and the job.
  slicer route whisper --explain -- whisper talk.mp4
      The decision alone, and whether its destination is free now.
  slicer route whisper --on-busy wait --max-wait 1h -- whisper talk.mp4
      By hand: waits where the route says to fail.
  slicer route whisper -- whisper talk.mp4 || handle $?
      75 (or the route's exit_code) when blocked, with one line of JSON on
      stderr about the holder.

\b
Exit codes: as of slicer run (see slicer run --help), and
    2  the job is too large for all destinations, or there is no such route
   75  blocked; exit_code in the route chooses another
  125  the input could not be found or measured
"""

command = fast_command(
    "route",
    _HELP,
    "Run a command on the GPU or the CPU, by its input.",
    _EPILOG,
    "NAME [--] COMMAND [ARGUMENT]...",
    options_metavar="[OPTIONS]",
    completes=complete.route_line,
)
