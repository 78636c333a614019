"""``slicer serve``: proxies that hold GPUs only while the servers behind them are in use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from slicer.cli import common, complete, output, say
from slicer.cli.serve_look import Address, ServerCheck, look, need_aiohttp
from slicer.columns import BAD, GOOD, WARNING, Line
from slicer.config import serve as configured
from slicer.config.profiles import Config
from slicer.config.serve import Server, is_public
from slicer.errors import EX_OK, EX_PROBLEM, UsageError
from slicer.quantity import format_duration, format_mib
from slicer.serve.kinds import KINDS
from slicer.text import command_text, counted, quote

NO_SERVERS = "no server is configured"
_HINT = "describe one as [serve.NAME] in a configuration file; see slicer.toml(5) and docs/serve.md"


@click.command(
    "serve",
    epilog="""\
\b
Examples:
  slicer serve ollama --dry-run   what it would do, and what prevents it
  slicer serve ollama             serve until Ctrl-C
  slicer serve                    all servers in the configuration
  slicer install --user --serve ollama
                                  at each login; the first request starts it

\b
The configuration describes a server:
  [serve.ollama]
  kind = "ollama"                 or openai, llamacpp, comfyui, raw
  command = ["ollama", "serve"]   leave out if the server runs on its own
  idle = "5m"

\b
The first request that needs a GPU asks for a lease, starts the server as a
job, and waits until it is ready. Once the server has been unused for `idle`,
slicer stops it or unloads its models. The lease ends when the GPU's memory is
free again. If another job waits for a GPU, an idle server gives way at once.
Clients keep their address, because slicer listens there. slicer.toml(5) has
all keys, and `slicer status` shows the state of each server.

\b
After Ctrl-C (or SIGTERM) slicer accepts no more requests, lets the current
ones finish, gives the GPUs back, and exits.

\b
Exit codes:
    0  ended by a signal, or exited when idle (if started by its socket)
    1  --dry-run found a problem
    2  the command line is wrong
  125  slicer itself failed: an address in use, a wrong configuration""",
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete.servers)
@click.option("--dry-run", "checks", is_flag=True, help="Show what each server would do, and any problems.")
def command(names: tuple[str, ...], checks: bool) -> int:
    """Serve the given [serve.NAME] sections of the configuration, or all of them, in the foreground."""
    config = common.config()
    servers = tuple(configured.load(config).values())
    if names:
        servers = tuple(configured.find(config, name) for name in dict.fromkeys(names))
    if checks:
        return _check(config, servers)
    if not servers:
        raise UsageError(NO_SERVERS, hint=_HINT)
    need_aiohttp()
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
    return EX_PROBLEM if any(map(problems_of, found)) else EX_OK


def problems_of(seen: ServerCheck) -> list[str]:
    """What prevents serving, in the order in which to fix it. The configuration has no mistakes."""
    server = seen.server
    found = [seen.aiohttp] if seen.aiohttp else []
    for each in seen.addresses:
        is_systemds = seen.socket and (not each.pid or each.name == "systemd")  # as far as we can see
        if each.error and not seen.proxy_pid and not is_systemds:
            found.append(_taken(each, server))
    if seen.command:
        found.append(f"command: {seen.command}")
    if seen.profile:
        found.append(f"profile: {seen.profile}")
    elif seen.gpus == 0:
        found.append(f"profile {server.profile} requests no GPU: use one that does, or add gpus = 1 or vram")
    return found


def _taken(each: Address, server: Server) -> str:
    if not each.pid:
        return f"{each.text}: {each.error}"
    taken = f"{each.text} is in use by pid {each.pid} ({each.name})"
    if server.command and each.name and each.name in server.command[0]:
        return f"{taken}, which slicer would start itself: stop and disable it"
    if not server.command:
        return f"{taken}: move that server to the address in upstream, because slicer listens here"
    return f"{taken}: stop it, or choose another address with listen"


def warnings_of(seen: ServerCheck) -> list[str]:
    """What may surprise users of a server that works."""
    server, found = seen.server, []
    if seen.proxy_pid:
        found.append(f"pid {seen.proxy_pid} already serves it; the following applies once that has ended")
    found += [
        f"{address}: everybody who can reach it may use the GPU; slicer asks for no password "
        "(docs/serve.md shows a reverse proxy in front of it)"
        for address in filter(is_public, server.listen)
    ]
    if seen.upstream:
        found.append(f"no server answers at {server.upstream} now ({seen.upstream})")
    if seen.beside and not (server.models or server.path or server.default):
        names = ", ".join(each.name for each in seen.beside)
        found.append(
            f"no request is for it, because {names} has the same address: "
            "give it models = […], a path, or default = true"
        )
    return found


def lines(seen: ServerCheck) -> list[Line]:
    problems, warnings = problems_of(seen), warnings_of(seen)
    told = counted(len(problems), "problem") if problems else "ready to serve"
    made = [Line(f"{seen.server.name}: {told}", BAD if problems else GOOD)]
    rows = [(word, _sourced(seen.server, key, text) if key else text) for word, key, text in _rows(seen)]
    made += output.indented(output.rows(rows))
    made += [Line(f"  problem: {text}", BAD) for text in problems]
    return made + [Line(f"  warning: {text}", WARNING) for text in warnings]


def _rows(seen: ServerCheck) -> Iterator[tuple[str, str, str]]:
    """A label, the key in the configuration ("" for none), and a description."""
    server = seen.server
    yield "kind", "kind", server.kind
    yield "listens at", "listen", ", ".join(server.listen)
    if server.hosts:
        yield "answers to", "hosts", f"its addresses, and {', '.join(server.hosts)}"
    if seen.socket:
        yield "", "", f"through {seen.socket}; the first request starts it"
    yield from _start_rows(server)
    yield "takes", "", _takes(seen)
    wait = f"at most {format_duration(server.max_wait_s)}" if server.max_wait_s else "not at all: 503 at once"
    yield "waits for it", "max_wait", wait
    path = server.ready_path or KINDS[server.kind].ready_path
    how = _sourced(server, "ready_path", f"GET {path} answers" if path else "its port accepts a connection")
    yield "is ready when", "ready_timeout", f"{how}, within {format_duration(server.ready_timeout_s)}"
    yield "gives back", "idle", f"{format_duration(server.idle_s)} after the last request"
    if server.give_way:
        yield "", "give_way", "at once if it is idle and others wait for a GPU"
    if seen.beside:
        names = ", ".join(each.name for each in seen.beside)
        kept = f"{format_duration(server.min_hold_s)} after it got the GPU, if {names} is requested"
        yield "", "min_hold", kept
    yield from _release_rows(server)
    if server.models:
        yield "for models", "models", ", ".join(server.models)
    if server.path:
        yield "for paths", "path", f"{server.path}*"
    if server.default:
        yield "", "default", "and what is for no other server at its address"
    words = {"routes_gpu": "takes a GPU", "routes_free": "takes none", "routes_allow": "also forwards"}
    for key, word in words.items():
        if routes := getattr(server, key):
            yield word, key, ", ".join(routes)


def _sourced(server: Server, key: str, value: str) -> str:
    return f"{value} ({server.sources.get(key, 'default')})"


def _start_rows(server: Server) -> Iterator[tuple[str, str, str]]:
    if server.command:
        yield "starts", "command", command_text(server.command, limit=1000)
        yield "as", "", f"job serve:{server.name}"
        if server.env:
            yield "with", "env", " ".join(f"{name}={quote(value)}" for name, value in server.env.items())
    else:
        yield "starts", "", "nothing: it runs on its own"
    yield "forwards to", "upstream", server.upstream or "a free port on 127.0.0.1"


def _takes(seen: ServerCheck) -> str:
    server = seen.server
    told = f"{seen.lease or 'unknown'}; profile {_sourced(server, 'profile', server.profile)}"
    if server.gpus is not None:
        told += f", gpus = {_sourced(server, 'gpus', str(server.gpus))}"
    if server.vram_mib is not None:
        told += f", vram = {_sourced(server, 'vram', format_mib(server.vram_mib))}"
    return told


def _release_rows(server: Server) -> Iterator[tuple[str, str, str]]:
    within = format_duration(server.release_timeout_s)
    how = f"unloads its models, and keeps the lease until their memory is free; stuck after {within}"
    if server.command:
        how = f"stops it, and kills it after {within}"
    yield "how", "release_timeout", how
    if server.kind == "ollama":
        lies = "a model that does not fit and is partly in main memory"
        yield "offload", "on_offload", f"{lies} is {'reported' if server.on_offload == 'warn' else 'refused'}"
