"""Words for the shell's completion. If something fails, there are none.

A shell puts a completed word on the command line as it is, and evaluates it at the next Enter. Other people
choose the names of jobs, profiles and programs. So only words without meaning to a shell are offered.
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
from slicer.kernel.proc import names_in
from slicer.text import one_line

SCRIPTS = {"bash": "slicer.bash", "zsh": "_slicer", "fish": "slicer.fish"}
_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_completions")
_VARIABLE = "_SLICER_WORDS"

_HARMLESS = frozenset(string.ascii_letters + string.digits + "._:@-")
_Listed = Callable[[Config], tuple[Iterable[str], Callable[[str], str]]]  # names, and a description of each
_PLAIN = "plain"  # click's type for everything but files, which the shell finds (and quotes) itself
_COMMAND = "command"  # the job's command follows; the shell itself knows best how to complete it


def harmless(words: Iterable[str], incomplete: str) -> list[str]:
    """The words that begin with ``incomplete`` and are neither shell syntax nor options."""
    return [
        word
        for word in words
        if word.startswith(incomplete) and word and word[0] != "-" and _HARMLESS.issuperset(word)
    ]


def sifted(items: Iterable[CompletionItem]) -> list[CompletionItem]:
    """The completions that may be offered, including options, lists (0,1) and the beginning of NAME=VALUE."""
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
    """Answer a shell's completion script (``bash_words``) with one line a word. Returns the exit code.

    A line has a type (plain, file, dir, command), a value and a help text, separated by tabs. The words up to
    the cursor come one a line in an environment variable: as arguments, a slicer that does not know this
    protocol would run them.
    """
    shell, _, what = instruction.partition("_")
    if shell not in SCRIPTS or what not in ("source", "words"):
        return EX_USAGE
    if what == "source":
        click.echo(script(shell), nl=False)
        return EX_OK
    words = environ.get(_VARIABLE, "").removesuffix("\n").split("\n")
    if shell == "bash":  # bash passes the words as they were typed
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
    if equals and option.startswith("--"):  # click's answer lacks this part, but shells want whole words
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
    except UsageError:  # an option still lacks its value
        return 0
    return len(before) - len(command) if command else 0


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names, ids and units of jobs that run or wait; where others make sense, of those that ended lately."""
    from slicer.cli.job_register import JobRegister, of_outcome
    from slicer.model import Lease
    from slicer.outcome import history

    with suppress(SlicerError):
        found = JobRegister(lambda _: None).living
        if ctx.info_name in ("pause", "resume", "set"):
            found = [each for each in found if each.entry is not None]
        elif ctx.info_name != "stop":
            found += [of_outcome(each, None) for each in history.read(history.default_path(), limit=20)]
        words = [word for each in found for word in (each.name, each.job)]
        if incomplete.startswith("slicer-"):  # a unit's name, as systemctl shows it
            words += [each.entry.unit for each in found if isinstance(each.entry, Lease)]
        return harmless(dict.fromkeys(words), incomplete)
    return []


def _named(listed: _Listed) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes the names that ``listed`` finds in the configuration, each with its description."""

    def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from slicer.config.profiles import host, load

        with suppress(SlicerError):
            found, about = listed(load(os.environ, host()))
            return [CompletionItem(name, help=about(name)) for name in harmless(found, incomplete)]
        return []

    return names


def _described(section: str) -> _Listed:
    """The names in a section of the configuration, and their descriptions."""

    def listed(config: Config) -> tuple[Iterable[str], Callable[[str], str]]:
        found = importlib.import_module(f"slicer.config.{section}").load(config)
        return found, lambda name: str(found[name].description)

    return listed


profiles = _named(lambda config: (config.names(), lambda name: config.profile(name).description))
slots = _named(lambda config: (config.slots, lambda name: f"of {config.slots[name]}"))
routes = _named(_described("routes"))
servers = _named(_described("serve"))


def properties(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of systemd properties that a job may have, up to the "="."""
    from slicer.config.properties import NAMES

    return [f"{name}=" for name in NAMES if name.startswith(incomplete)]


def live_properties(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The properties of a running job that can be changed."""
    from slicer.config.live import CHANGEABLE

    return [f"{name}=" for name in CHANGEABLE if name.startswith(incomplete)]


def share_modes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The modes of --share-mode, up to the "=" of those with a number."""
    modes = {
        "yield": "when others wait", "launches=": "after N launches", "time=": "after this time (5ms)",
        "each": "after each launch",
    }  # fmt: skip
    return [CompletionItem(word, help=says) for word, says in modes.items() if word.startswith(incomplete)]


def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The indices of the GPUs, as a list with commas."""
    from slicer.gpu import open_gpus, ours

    indices: list[str] = []
    with suppress(SlicerError), closing(open_gpus()) as found:
        indices = [str(gpu.index) for gpu in ours(found.list())]
    before = incomplete.rpartition(",")[0]
    stem = f"{before}," if before else ""
    words = [stem + index for index in indices if index not in before.split(",")]
    return [word for word in words if word.startswith(incomplete)]


def route_line(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of routes; after a route, programs and files."""
    if ctx.params.get("command"):
        return command_line(click.Context(ctx.command), param, incomplete)
    return routes(ctx, param, incomplete)


def command_line(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Words of the command to run: first programs, then files."""
    if ctx.params.get("command") or "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    found = {name for directory in os.get_exec_path() for name in harmless(names_in(directory), incomplete)}
    return [CompletionItem(name) for name in sorted(found)]


@click.command(
    "completion",
    epilog="""\
\b
Examples:
  eval "$(slicer completion bash)"           in ~/.bashrc
  eval "$(slicer completion zsh)"            in ~/.zshrc, after compinit
  slicer completion fish | source            in ~/.config/fish/config.fish

\b
`slicer install` puts all three where each shell finds them by itself;
`slicer install --user` does so for bash and fish.""",
)
@click.argument("shell", type=click.Choice(tuple(SCRIPTS)), metavar="bash|zsh|fish")
def command(shell: str) -> int:
    """Print the script with which a shell completes slicer's command line.

    It completes commands, options, profiles, GPUs, properties, and the names, ids and units of jobs. The
    words of a job's own command are completed as they would be without slicer.
    """
    click.echo(script(shell), nl=False)
    return EX_OK
