"""``slicer mcp``: tools for coding agents, by the Model Context Protocol, on stdin and stdout."""

from __future__ import annotations

import click

from slicer.cli.common import NoLibrary


@click.command(
    "mcp",
    epilog="""\
\b
Examples:
  claude mcp add slicer -- slicer mcp
      For Claude Code; others take the same command line.
  slicer mcp --read-only
      It shows, and changes nothing.
  slicer client --skill > ~/.claude/skills/slicer/SKILL.md
      Tells an agent when to use which tool.

\b
Tools: status, why, show, logs, history, doctor, wait and preview; submit,
queue_add and stop act. Needs the library mcp, 2.3 or later. docs/agents.md
tells how to keep an agent's other commands off the GPUs.""",
)
@click.option("--read-only", is_flag=True, help="Only the tools that change nothing.")
@click.option(
    "--max-jobs", type=click.IntRange(min=1), metavar="N", default=20, show_default=True,
    help="Submit no job while so many of agents run or wait.",
)  # fmt: skip
@click.option("--require-timeout", is_flag=True, help="Submit no job without a time limit.")
def command(read_only: bool, max_jobs: int, require_timeout: bool) -> None:
    """Serve tools for a coding agent, which starts this command by itself.

    The agent gets what you get: your jobs, with your rights. Its jobs are named agent-…, run in the
    background, and are the only ones that it can stop. It can add lines to the file of a running queue.
    """
    try:
        from slicer.cli import mcp_tools
    except ImportError as error:
        missing = NoLibrary("mcp", f"slicer mcp needs mcp 2.3 or later ({error})")
        missing.hint = "pip install 'mcp>=2.3,<3' in slicer's environment"  # Debian has none
        raise missing from error
    mcp_tools.serve(read_only=read_only, max_jobs=max_jobs, require_timeout=require_timeout)
