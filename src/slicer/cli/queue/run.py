"""``slicer queue``: runs the jobs of a file."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from slicer.cli import complete, say
from slicer.cli.commands import TwoPages, named
from slicer.cli.common import check_directory
from slicer.cli.queue import parameters
from slicer.errors import StateError, UsageError
from slicer.queue.file import attributes
from slicer.queue.file.live_file import is_pipe
from slicer.queue.model import QueueOptions
from slicer.state.named_file import names_open_file
from slicer.state.simulated import spec_of

# Each with its place in this package.
_SUBCOMMANDS = {
    "add": "add", "retry": "retry", "stop": "stop", "pause": "stop:pause_command",
    "resume": "stop:resume_command", "restore": "detach:restore", "suggest": "suggest",
}  # fmt: skip


def _subcommand(name: str) -> click.Command:
    found: click.Command = named(f"queue.{_SUBCOMMANDS.get(name, name)}")
    return found


_GROUPS = {
    "Where and how many at a time": ("--gpu", "--jobs", "--exclusive", "--engine", "--sim", "--sim-vram"),
    "GPU memory": ("--margin", "--idle-threshold", "--spike-buffer", "--tolerance", "--poll"),
    "Its jobs": ("--profile", "--shell", "--oom-retries", "--retry", "--hold-back", "--trust-file"),
    "The queue itself": ("--watch", "--detach", "--fresh", "--log-dir", "--notify"),
    "What it prints": ("--json", "--quiet", "--verbose", "-h", "--help"),
}


def _words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The subcommands, and files."""
    found = [name for name in _SUBCOMMANDS if name.startswith(incomplete)]
    items = [CompletionItem(name, help=_subcommand(name).short_help) for name in found]
    return [*items, CompletionItem(incomplete, type="file")]


class _Queue(TwoPages):
    """``slicer queue FILE``, or a subcommand that the first word names; without words, a list."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args in ([], ["--json"]) and not extra.get("resilient_parsing"):
            return _subcommand("list").make_context(info_name, args, parent, **extra)
        if args and args[0] in _SUBCOMMANDS:
            return _subcommand(args[0]).make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        if args and not extra.get("resilient_parsing") and not os.path.lexists(args[0]):
            from slicer.cli import elsewhere

            if hint := elsewhere.queue_word(args[0]):
                raise UsageError("no such file, and no such command", where=f"queue {args[0]}", hint=hint)
        return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The subcommands, as click's groups list them, for the manual pages."""
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A subcommand, as in click's groups."""
        return _subcommand(cmd_name)


@click.command(
    "queue",
    cls=_Queue,
    usual="--gpu --jobs --profile --oom-retries --watch --detach --fresh --log-dir --engine --sim -h --help",
    groups=_GROUPS,
    epilog="""\
\b
Commands, in place of FILE; without FILE, your queues are listed:
  add      Append jobs to FILE, one for each combination of parameters.
  retry    Make failed jobs pending again.
  stop     End the queue of FILE, with its running jobs.
  pause    Let it start nothing new, until resume.
  restore  Resume detached queues after a boot.
  suggest  Print FILE with the memory that its jobs used.

\b
The jobs file has one shell command a line (edit it while the queue runs):
  python prepare.py                    nothing declared: alone on an idle GPU
  [vram=18G] python train.py --seed 1  shares a GPU that has 18 GiB free
  [vram=30G gpus=2 timeout=2h] torchrun train.py
                                       on each of 2 GPUs, for 2 hours at most
  [vram=8G retries=2] python sweep.py  after CUDA OOM: again, declaring more
  [retry=any:2] python fetch.py        after any failure: again, after a pause
  [profile=heavy] make -j8             a CPU job, with that profile's limits
  [preemptible] python sweep.py        gives way to other jobs, and runs again
  [snapshot] python train.py           with the code as it is now
  [name=a] ./a.sh                      a name for other lines to use
  [after=a cwd=out env.X=1] ./b.sh     starts once job a has succeeded
  [cancel] python train.py             do not start it, or end it if it runs

\b
Examples:
  slicer queue jobs.txt
      Run them all; started again after Ctrl-C or a crash, it resumes.
  slicer queue jobs.txt --gpu 0,1 --detach
      On two of the GPUs, in the background, beyond the end of the session.
  slicer queue jobs.txt --watch --oom-retries 2
      Wait for more lines; run jobs that ran out of memory again, with more.
  slicer queue jobs.txt --sim 2
      Try it out with two simulated GPUs of 24 GiB.
  slicer queue suggest jobs.txt --in-place
      Write the memory that the jobs used into the file.

\b
A detached queue is a service, UNIT (for root, leave out --user):
  systemctl --user kill --kill-who=main UNIT   like Ctrl-C, once or twice
  systemctl --user stop UNIT                   like Ctrl-C once; waits
  journalctl --user -u UNIT                    its exit code

\b
Exit codes:
  The largest of the failed jobs (124 timeout, 128+N signal N), or
    0  all jobs succeeded
    2  the command line or the file is wrong
   75  another queue uses LOG_DIR, and its board cannot be shown
  125  slicer itself failed
  130  interrupted before all jobs had started (143 by SIGTERM)""",
)
@click.argument("file", type=click.Path(), shell_complete=_words)
@click.option(
    "--gpu", "gpus", metavar="LIST", callback=parameters.gpus,
    help="Use only these GPUs, as in 0,1,3 (or UUIDs).",
)  # fmt: skip
@click.option(
    "--idle-threshold", "idle_threshold_mib", metavar="SIZE", callback=parameters.mib,
    help="Memory in use up to which a GPU counts as idle, for jobs that declare nothing.  [default: 200M]",
)  # fmt: skip
@click.option(
    "--margin", "margin_mib", metavar="SIZE", callback=parameters.mib,
    help="Memory to keep free on a GPU beyond what jobs declare.  [default: 512M]",
)  # fmt: skip
@parameters.tolerance("Report jobs whose memory differs from vram= by more than this.")
@click.option(
    "--spike-buffer", metavar="FRAC", type=float, callback=parameters.fraction,
    help="Spare room next to GPU users that declare nothing or too little.  [default: 0.1]",
)  # fmt: skip
@click.option(
    "--poll", "poll_s", metavar="DURATION", default="5", show_default=True, callback=parameters.seconds,
    help="How often to check GPU memory, and FILE if it reports no changes (NFS).",
)  # fmt: skip
@click.option("--exclusive", is_flag=True, help="Never run two of these jobs on one GPU, even if they fit.")
@click.option("--watch", is_flag=True, help="When all jobs are done, wait for new lines.")
@click.option(
    "--oom-retries", metavar="N", type=click.IntRange(0), default=0, show_default=True,
    help="How often to run a job again after CUDA OOM; [retries=N] overrides.",
)  # fmt: skip
@click.option(
    "--retry", metavar="WHEN:N", show_default="the profile's, else any:0,gpu:3",
    callback=lambda ctx, param, value: None if value is None else attributes.retry(value),
    help="How often to run a job again, with pauses: after any failure, and after one of its GPU.",
)  # fmt: skip
@click.option(
    "--hold-back", metavar="N/DURATION", default="5/1m", show_default=True, callback=parameters.hold_back,
    help="Start no more of a command after N failures in a row, each within DURATION of its start; or off.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Forget earlier runs and run all jobs; logs are kept.")
@parameters.log_dir("The directory for the jobs' output, the journal and status.txt.")
@click.option(
    "-p", "--profile", metavar="NAME", default="gpu", show_default=True, shell_complete=complete.profiles,
    help="For jobs that name none.",
)  # fmt: skip
@click.option(
    "--shell", metavar="SHELL",
    help="Run the lines in it, as in bash.  [default: /bin/sh, or as configured]",
)  # fmt: skip
@click.option(
    "-j", "--jobs", "at_a_time", metavar="N", type=click.IntRange(1),
    help="At most N jobs at a time, whatever is free.",
)  # fmt: skip
@click.option(
    "--notify", metavar="WHAT",
    help="Notify about done, failed, oom, held-back, queue-done; desktop: there; or off.",
)  # fmt: skip
@click.option("--trust-file", is_flag=True, help="As root: run FILE even if other users may change it.")
@click.option("--sim", metavar="N", type=int, help="Use N simulated GPUs; see `slicer simjob`.")
@click.option("--sim-vram", metavar="SIZES", help="Their memory, as in 24G or 24G,24G,80G.  [default: 24G]")
@click.option(
    "--engine", metavar="local|slurm|auto", type=click.Choice(["local", "slurm", "auto"]), default="local",
    show_default=True,
    help="Run jobs on this machine, hand them to Slurm, or only those that do not fit here now.",
)  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "systemd", "plain"]), default="auto", hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Also report how the jobs' GPU memory grows.")
@click.option("-d", "--detach", "detaches", is_flag=True, help="Run in the background, even after logout.")
def command(
    file: str, sim: int | None, sim_vram: str | None, as_json: bool, quiet: bool, detaches: bool, **said: Any
) -> int:
    """Run each line of FILE as a job, as soon as the GPUs have room for it.

    Its jobs compete for the same GPUs as every `slicer run`. You may change FILE at any time: add,
    remove, edit and move lines that have not started. LOG_DIR records what was done. Started again, even
    after a crash, the queue resumes where it was, and finds the jobs that still run. LOG_DIR/status.txt
    shows the board, for `watch cat`; `slicer status` shows who else holds and waits for GPUs.

    If the queue is running already, a terminal shows its board until q or Ctrl-C; the queue continues.

    After Ctrl-C the queue starts no new jobs and waits for the running ones. A second Ctrl-C ends those.
    """
    check_directory()
    if sim is None and sim_vram is not None:
        raise UsageError("there are no simulated GPUs", where="--sim-vram", hint="add --sim N")
    if sim is not None:  # for this process and the jobs
        os.environ["SLICER_SIM"] = spec_of(sim, sim_vram)
    environ = dict(os.environ)
    options = QueueOptions(jobs_file=file, **said)
    if detaches:
        from slicer.cli.queue.detach import detach

        return detach(options, environ, as_json=as_json, quiet=quiet)
    if not (as_json or quiet or options.fresh):
        from slicer.cli.queue.attach import attach

        code = attach(options, environ)
        if code is not None:
            return code
    return _run(options, environ, as_json=as_json, quiet=quiet)


def _run(options: QueueOptions, environ: dict[str, str], *, as_json: bool, quiet: bool) -> int:
    gc.disable()  # until Queue.run(): no object made so far is garbage
    from slicer.cli.queue.show import choose
    from slicer.queue.loop import Queue

    renderer = choose(as_json=as_json, verbose=options.verbose, quiet=quiet, stdout=sys.stdout)
    queue = Queue(options, environ, renderer)
    _note(options)
    summary = None
    try:
        code = queue.run()
        summary = queue.summary()
    finally:
        queue.close()
        renderer.end(summary)
    return code


def _note(options: QueueOptions) -> None:
    """For the list of queues, once this one has ended."""
    from slicer.queue.state import recent

    if is_pipe(options.jobs_file) or names_open_file(options.jobs_file):
        return  # nobody can read it later
    try:
        recent.note(os.environ, options.jobs_file, options.log_dir)
    except StateError as error:
        say.line(str(error))
