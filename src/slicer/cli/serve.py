"""``slicer serve``: proxies that hold GPUs only while somebody asks the servers behind them."""

from __future__ import annotations

import os

import click

from slicer.cli import complete, output, say
from slicer.cli.serve_check import lines, problems_of
from slicer.cli.serve_look import aiohttp_version, look
from slicer.columns import Line
from slicer.config import profiles
from slicer.config import serve as configured
from slicer.config.profiles import Config
from slicer.config.serve import Server
from slicer.errors import EX_OK, UsageError

_EX_PROBLEM = 1
NO_SERVERS = "no server is configured"
_HINT = "a configuration file describes one as [serve.NAME], see slicer.toml(5) and docs/serve.md"


@click.command(
    "serve",
    short_help="Give a server such as Ollama a GPU only while it is asked.",
    epilog="""\
\b
Examples:
  slicer serve ollama --check     what it would do, and what is in its way
  slicer serve ollama             serve until Ctrl-C
  slicer serve                    all servers of the configuration
  slicer install --user --serve ollama
                                  at each login, started by the first request

\b
The configuration says what a server is:
  [serve.ollama]
  kind = "ollama"                 or openai, llamacpp, comfyui, raw
  command = ["ollama", "serve"]   left out: it runs already
  idle = "5m"

\b
The first request that needs a GPU asks for a lease, starts the server as a
job, and waits until it is ready. After the last request and `idle` the server
is stopped, or its models are unloaded, and the lease ends once the memory has
come back. While it is idle and another job waits for a GPU, that is at once.
Clients keep their address: slicer listens where they ask. All keys are in
slicer.toml(5), and `slicer status` shows how each server stands.

\b
Ctrl-C (or SIGTERM) takes no more requests, lets those that go on end, gives
the GPUs back, and leaves.

\b
Exit codes:
    0  ended by a signal, or left because it was idle (started by its socket)
    1  --check found a problem
    2  the command line cannot be right
  125  slicer itself failed: an address is taken, the configuration is wrong""",
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete.servers)
@click.option("--check", "checks", is_flag=True, help="Say what each would do, and what is wrong.")
def command(names: tuple[str, ...], checks: bool) -> int:
    """Serve [serve.NAME] of the configuration, or all of them, in the foreground."""
    config = profiles.load(os.environ, profiles.host())
    for warning in config.warnings:
        say.line(warning)
    servers = tuple(configured.load(config).values())
    if names:
        servers = tuple(configured.find(config, name) for name in dict.fromkeys(names))
    if checks:
        return _check(config, servers)
    if not servers:
        raise UsageError(NO_SERVERS, hint=_HINT)
    aiohttp_version()
    import asyncio

    from slicer.serve.serving import run

    return asyncio.run(run(servers, os.environ, say.line))


def _check(config: Config, servers: tuple[Server, ...]) -> int:
    if not servers:
        output.show([Line(f"{NO_SERVERS[:1].upper()}{NO_SERVERS[1:]}: {_HINT}")], cuts=False)
    everyone = tuple(configured.load(config).values())
    found = [look(each, everyone, config, os.environ) for each in servers]
    for number, each in enumerate(found):
        output.show([*([Line("")] if number else []), *lines(each)], cuts=False)
    return _EX_PROBLEM if any(map(problems_of, found)) else EX_OK
