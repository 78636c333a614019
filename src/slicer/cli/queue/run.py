"""``slicer queue``: run the jobs of a file."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any

import click

from slicer.cli import complete, say
from slicer.cli.queue import parameters
from slicer.errors import UsageError
from slicer.queue.file import jobs_file
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.file.live_file import is_pipe
from slicer.queue.model import Options
from slicer.state.simulated import spec_of
from slicer.text import counted

_SUBCOMMANDS = ("add", "retry", "suggest")  # modules of this package with a ``command``


def _subcommand(name: str) -> click.Command:
    found: click.Command = importlib.import_module(f"slicer.cli.queue.{name}").command
    return found


class _Queue(click.Command):
    """``slicer queue FILE``; a subcommand in place of FILE; without either, the list of queues."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args in ([], ["--json"]) and not extra.get("resilient_parsing"):
            return _subcommand("list").make_context(info_name, args, parent, **extra)
        if args[0] in _SUBCOMMANDS:
            return _subcommand(args[0]).make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As click's groups have it, for the manual pages."""
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The same."""
        return _subcommand(cmd_name)


@click.command(
    "queue",
    cls=_Queue,
    short_help="Run the jobs of a file as GPUs become free.",
    epilog="""\
\b
Commands, in place of FILE; without FILE, this user's queues are listed:
  add      Append jobs to FILE, also one for each combination of parameters.
  retry    Have failed jobs run again.
  suggest  Print FILE with the memory that its jobs were seen to use.

\b
The jobs file, a shell command a line (edit it while the queue runs):
  python prepare.py                    nothing declared: alone on an idle GPU
  [vram=18G] python train.py --seed 1  shares a GPU where 18 GiB are free
  [vram=30G gpus=2 timeout=2h] torchrun train.py
                                       on each of 2 GPUs, for 2 hours at most
  [vram=8G retries=2] python sweep.py  again, declaring more, after CUDA OOM
  [profile=heavy] make -j8             a CPU job, with limits of that profile
  [name=a] ./a.sh                      has a name, for
  [after=a cwd=out env.X=1] ./b.sh     another that starts once it ended well
  [cancel] python train.py             not to be started, or ended if it runs

\b
Examples:
  slicer queue jobs.txt
      Run them all; started again after Ctrl-C or a crash, go on from there.
  slicer queue jobs.txt --gpus 0,1 --detach
      On two of the GPUs, in the background; it outlives the session.
  slicer queue jobs.txt --watch --oom-retries 2
      Wait for more lines, and give jobs that ran out of memory more of it.
  slicer queue jobs.txt --sim 2
      Try it out: two simulated GPUs of 24 GiB.
  slicer queue suggest jobs.txt --in-place
      Write into the file what its jobs were seen to use.

\b
Detached, it is a service, UNIT (root's is without --user):
  systemctl --user kill --kill-who=main UNIT   as Ctrl-C, once or twice
  systemctl --user stop UNIT                   as Ctrl-C once, until the end
  journalctl --user -u UNIT                    its exit code

\b
Exit codes:
  The largest of the jobs that failed (124 timeout, 128+N signal N), and
    0  all jobs ended well
    2  the command line or the file cannot be right
   75  another queue uses LOG_DIR, and its board cannot be shown
  125  slicer itself failed
  130  interrupted before all had started (143 by SIGTERM)""",
)
@parameters.jobs_file
@click.option(
    "--gpus", metavar="LIST", callback=parameters.gpus, help="Use only these, as in 0,1,3 (or UUIDs)."
)
@click.option(
    "--idle-threshold", "idle_threshold_mib", metavar="MIB", callback=parameters.mib,
    help="A GPU counts as idle up to this use, for jobs that declare nothing.  [default: 200]",
)  # fmt: skip
@click.option(
    "--margin", "margin_mib", metavar="MIB", callback=parameters.mib,
    help="Kept free on a GPU beyond what a job declares.  [default: 512]",
)  # fmt: skip
@parameters.tolerance("Report jobs whose memory differs from vram= by more than this.")
@click.option(
    "--spike-buffer", metavar="FRAC", type=float, callback=parameters.fraction,
    help="Spare room beside GPU users that declare nothing or too little.  [default: 0.1]",
)  # fmt: skip
@click.option(
    "--poll", "poll_s", metavar="SEC", default="5", show_default=True, callback=parameters.seconds,
    help="How often to look at GPU memory, and for changes to FILE that no event tells of (NFS).",
)  # fmt: skip
@click.option("--exclusive", is_flag=True, help="Never two of these jobs on one GPU, though they would fit.")
@click.option("--watch", is_flag=True, help="Stay when all is done, for lines that are added.")
@click.option(
    "--oom-retries", metavar="N", type=click.IntRange(0), default=0, show_default=True,
    help="How often to run a job again after CUDA OOM; [retries=N] overrides.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Forget what was done, and run all again; its logs are kept.")
@parameters.log_dir("For the jobs' output, the journal and status.txt.")
@click.option(
    "-p", "--profile", metavar="NAME", default="gpu", show_default=True, shell_complete=complete.profiles,
    help="Of jobs that name none.",
)  # fmt: skip
@click.option(
    "-j", "--jobs", "at_a_time", metavar="N", type=click.IntRange(1),
    help="At most N jobs at a time, whatever is free.",
)  # fmt: skip
@click.option("--trust-file", is_flag=True, help="As root: run FILE though other users may change it.")
@click.option("--sim", metavar="N", type=int, help="Use N simulated GPUs; see `slicer simjob`.")
@click.option("--sim-vram", metavar="SIZES", help="Their memory, as in 24G or 24G,24G,80G.  [default: 24G]")
@click.option("--backend", type=click.Choice(["auto", "systemd", "plain"]), default="auto", hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line.")
@click.option("-q", "--quiet", is_flag=True, help="Print only what is wrong.")
@click.option("-v", "--verbose", is_flag=True, help="Tell how the jobs' GPU memory grows.")
@click.option("--detach", "detaches", is_flag=True, help="Go on in the background, also after logout.")
def command(
    file: str, sim: int | None, sim_vram: str | None, as_json: bool, quiet: bool, detaches: bool, **said: Any
) -> int:
    """Run each line of FILE as a job, as soon as the GPUs have room for it.

    Jobs compete for the same GPUs as every `slicer run`. FILE may be changed at any time: lines that are not
    started yet can be added, removed, edited and moved. What was done is remembered in LOG_DIR: started
    again, the queue goes on where it was, also after a crash, and finds the jobs that still run.

    If the queue runs already, a terminal shows its board until q or Ctrl-C, and the queue goes on.
    `slicer status` shows who else holds and waits for GPUs.

    Ctrl-C once: nothing new is started, and what runs is waited for. Twice: it is ended.
    """
    if sim is None and sim_vram is not None:
        raise UsageError("there are no simulated GPUs", where="--sim-vram", hint="add --sim N")
    if sim is not None:  # for this process and the jobs
        os.environ["SLICER_SIM"] = spec_of(sim, sim_vram)
    environ = dict(os.environ)
    options = Options(jobs_file=file, **said)
    _say_doubts(file)
    if detaches:
        from slicer.cli.queue.detach import detach

        return detach(options, environ, as_json=as_json, quiet=quiet)
    if not (as_json or quiet or options.fresh):
        from slicer.cli.queue.attach import attach

        code = attach(options, environ)
        if code is not None:
            return code
    return _run(options, environ, as_json=as_json, quiet=quiet)


def _say_doubts(file: str) -> None:
    """Warn of what is most likely not meant; a file that cannot be used is an error of the queue's."""
    if is_pipe(file):
        return
    try:
        found = jobs_file.doubts(jobs_file.read(file), file)
    except JobsFileError:
        return
    if found:
        more = f" (and {counted(len(found) - 1, 'line')} more)" if found[1:] else ""
        say.line(f"{found[0]}{more}")


def _run(options: Options, environ: dict[str, str], *, as_json: bool, quiet: bool) -> int:
    gc.disable()  # until Queue.run(): no object made before is garbage
    from slicer.cli.queue.show import choose
    from slicer.queue.loop import Queue

    renderer = choose(as_json=as_json, verbose=options.verbose, quiet=quiet, stdout=sys.stdout)
    queue = Queue(options, environ, renderer)
    summary = None
    try:
        code = queue.run()
        summary = queue.summary()
    finally:
        queue.close()
        renderer.end(summary)
    return code
