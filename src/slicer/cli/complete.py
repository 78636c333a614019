"""Words for the shell's completion. A failure only means that there are none.

A shell puts such a word on the command line as it is, and evaluates it at the next Enter. Other people choose
the names of jobs, profiles and programs. So only words that mean nothing to a shell are offered.
"""

from __future__ import annotations

import importlib
import os
import string
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from slicer.cli.runoptions import parse
from slicer.config.profiles import Config
from slicer.errors import EX_OK, EX_USAGE, SlicerError, UsageError
from slicer.text import one_line

SCRIPTS = {"bash": "slicer.bash", "zsh": "_slicer", "fish": "slicer.fish"}
_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_completions")
_VARIABLE = "_SLICER_WORDS"

_HARMLESS = frozenset(string.ascii_letters + string.digits + "._:@-")
_Listed = Callable[[Config], tuple[Iterable[str], Callable[[str], str]]]  # names, and what is said of each
_PLAIN = "plain"  # click's word for all but files, which the shell finds (and quotes) itself
_COMMAND = "command"  # what follows is the job's command: the shell knows better than slicer how it goes on


def harmless(words: Iterable[str], incomplete: str) -> list[str]:
    """The words that begin with ``incomplete`` and mean nothing else to a shell or to an option parser."""
    return [
        word
        for word in words
        if word.startswith(incomplete) and word and word[0] != "-" and _HARMLESS.issuperset(word)
    ]


def sifted(items: Iterable[CompletionItem]) -> list[CompletionItem]:
    """The found items that may be offered. Options, lists (0,1) and the beginning of NAME=VALUE may, too."""
    allowed = _HARMLESS | {","}
    return [
        item
        for item in items
        if item.type != _PLAIN or (item.value and allowed.issuperset(item.value.removesuffix("=")))
    ]


def script(shell: str) -> str:
    with open(os.path.join(_DIRECTORY, SCRIPTS[shell]), encoding="utf-8") as file:
        return file.read()


def answer(app: click.Command, instruction: str, environ: Mapping[str, str]) -> int:
    """Answer a shell's completion script (``bash_words``) with a line for each word; returns the exit code.

    A line is what it is (plain, file, dir, command), a value and a help text, with tabs between. The words
    up to the cursor come in an environment variable, a line each: a slicer that did not understand would run
    what stands in its arguments.
    """
    shell, _, what = instruction.partition("_")
    if shell not in SCRIPTS or what not in ("source", "words"):
        return EX_USAGE
    if what == "source":
        click.echo(script(shell), nl=False)
        return EX_OK
    words = environ.get(_VARIABLE, "").removesuffix("\n").split("\n")
    if shell == "bash":  # as they were typed
        words = ["".join(split_arg_string(word)[:1]) for word in words]
    for item in _found(app, words):
        click.echo(f"{item.type}\t{item.value}\t{one_line(item.help or '')}")
    return EX_OK


def _found(app: click.Command, words: list[str]) -> list[CompletionItem]:
    """The sifted completions of the last word. The first word is slicer's own name."""
    before, incomplete = words[1:-1], words[-1]
    start = _command_start(before)
    if start:
        return [CompletionItem(str(start + 1), type=_COMMAND)]
    found = sifted(ShellComplete(app, {}, "slicer", "").get_completions(before, incomplete))
    option, equals, _ = incomplete.partition("=")
    if equals and option.startswith("--"):  # click leaves it out of its answer; shells want whole words
        return [
            CompletionItem(f"{option}={item.value}", help=item.help) if item.type == _PLAIN else item
            for item in found
        ]
    return found


def _command_start(before: list[str]) -> int:
    """The index at which a job's command begins in these arguments, 0 if it has not begun."""
    if not before or before[0] not in ("run", "hold", "route"):
        return 0
    try:
        _, command = parse(before[1:], before[0])
        if before[0] == "route":  # it begins with the route
            _, command = parse(list(command[1:]), "route")
    except UsageError:  # an option that waits for its value
        return 0
    return len(before) - len(command) if command else 0


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names and ids of the jobs that run or wait."""
    from slicer.broker.client import standing
    from slicer.ledger.status import existing_ledger

    with suppress(SlicerError):
        ledger = existing_ledger(os.environ, lambda _: None)
        seen, _ = standing.jobs(os.environ, ledger, lambda _: None)
        words = [word for lease in seen.leases for word in (lease.name, lease.job)]
        words += [word for ticket in seen.tickets for word in (ticket.name, ticket.job)]
        if incomplete.startswith("slicer-"):  # whoever comes from systemctl
            words += [lease.unit for lease in seen.leases]
        return harmless(words, incomplete)
    return []


def all_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names and ids of the jobs that run, wait or ended lately; for ``slicer stop`` without the last."""
    from slicer.cli.known_jobs import names

    with suppress(SlicerError):
        has_units = incomplete.startswith("slicer-")  # whoever comes from systemctl
        found = names(has_ended=ctx.info_name != "stop", has_units=has_units)
        return harmless(dict.fromkeys(found), incomplete)
    return []


def _named(listed: _Listed) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """A completion of the names that ``listed`` finds in the configuration, with its text about each."""

    def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from slicer.config.profiles import host, load

        with suppress(SlicerError):
            found, about = listed(load(os.environ, host()))
            return [CompletionItem(name, help=about(name)) for name in harmless(found, incomplete)]
        return []

    return names


def _described(section: str) -> _Listed:
    """The names in a section of the configuration, and what each says of itself."""

    def listed(config: Config) -> tuple[Iterable[str], Callable[[str], str]]:
        found = importlib.import_module(f"slicer.config.{section}").load(config)
        return found, lambda name: str(found[name].description)

    return listed


profiles = _named(lambda config: (config.names(), lambda name: config.profile(name).description))
slots = _named(lambda config: (config.slots, lambda name: f"of {config.slots[name]}"))
routes = _named(_described("routes"))
servers = _named(_described("serve"))


def wraps(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The last names of wrapped programs; files, where a path is meant."""
    from slicer.wrap.records import read

    if "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    with suppress(SlicerError):
        found = {os.path.basename(wrap.path) for wrap in read(os.environ)[0]}
        return [CompletionItem(name) for name in harmless(sorted(found), incomplete)]
    return []


def properties(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of systemd's properties that a job may have, up to the "="."""
    from slicer.config.properties import NAMES

    return [f"{name}=" for name in NAMES if name.startswith(incomplete)]


def live_properties(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Those of a running job that can be changed."""
    from slicer.config.live import CHANGEABLE

    return [f"{name}=" for name in CHANGEABLE if name.startswith(incomplete)]


def share_modes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """When the turn of a sharing job ends, up to the "=" of what has a number."""
    modes = {
        "yield": "when others wait", "launches=": "after so many launches", "time=": "after so long (5ms)",
        "each": "after each launch",
    }  # fmt: skip
    return [CompletionItem(word, help=says) for word, says in modes.items() if word.startswith(incomplete)]


def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The indices of the GPUs, one more after each comma."""
    from slicer.gpu import open_gpus

    indices: list[str] = []
    with suppress(SlicerError), closing(open_gpus()) as found:
        indices = [str(gpu.index) for gpu in found.list()]
    before = incomplete.rpartition(",")[0]
    stem = f"{before}," if before else ""
    words = [stem + index for index in indices if index not in before.split(",")]
    return [word for word in words if word.startswith(incomplete)]


def route_line(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of the routes; after one, programs and files."""
    if ctx.params.get("command"):
        return command_line(click.Context(ctx.command), param, incomplete)
    return routes(ctx, param, incomplete)


def command_line(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Words of the command to be run: programs first, then files."""
    if ctx.params.get("command") or "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    found = {name for directory in os.get_exec_path() for name in harmless(_files(directory), incomplete)}
    return [CompletionItem(name) for name in sorted(found)]


def _files(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []  # PATH may name what is not there, or not for us


@click.command(
    "completion",
    short_help="Print the completion script for bash, zsh or fish.",
    epilog="""\
\b
Examples:
  eval "$(slicer completion bash)"           in ~/.bashrc
  eval "$(slicer completion zsh)"            in ~/.zshrc, after compinit
  slicer completion fish | source            in ~/.config/fish/config.fish

\b
`slicer install` puts all three where each shell looks by itself, and
`slicer install --user` does so for bash and fish.""",
)
@click.argument("shell", type=click.Choice(tuple(SCRIPTS)), metavar="bash|zsh|fish")
def command(shell: str) -> int:
    """Print the script by which a shell completes slicer's command line.

    Completed are commands, options, profiles, GPUs, properties, and the names, ids and units of jobs. Words
    of a job's own command are completed as they would be without slicer.
    """
    click.echo(script(shell), nl=False)
    return EX_OK
