"""The options of ``slicer run``, ``hold`` and ``route``: one table for the fast parser and for click's help.

Importing click takes 45 ms, more than the whole of ``slicer run`` may take. So these command lines are parsed
by hand. The command begins at the first word that is not an option.
"""

from __future__ import annotations

from slicer.errors import UsageError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@record
class Option:
    """``metavar`` is "" for a flag, and "fail|wait" for words to choose from; ``value`` is what a flag sets.

    One whose default is () may be given several times.
    """

    names: tuple[str, ...]
    field: str
    metavar: str
    help: str
    default: object
    value: object = True
    hidden: bool = False  # from --help

    @property
    def choices(self) -> tuple[str, ...]:
        is_choice = self.metavar.islower() or self.metavar.isdigit()
        return tuple(self.metavar.split("|")) if is_choice else ()


def _option(names: str, metavar: str, help: str, default: object = None, *, hidden: bool = False) -> Option:
    """An option with a value. Its field is named after its last name."""
    field = names.rpartition("--")[2].replace("-", "_")
    return Option(tuple(names.split()), field, metavar, help, default, hidden=hidden)


def _flag(names: str, field: str, help: str, default: object = False, value: object = True) -> Option:
    return Option(tuple(names.split()), field, "", help, default, value)


# All options, in the groups of ``slicer help run``.
GROUPS = {
    "What it gets": (
        _option("-p --profile", "NAME", "Limits and needs of this profile (slicer profiles)."),
        _option("-g --gpus", "N", "N GPUs: whole ones, or with --vram a part of each."),
        _option("--vram", "SIZE", "Memory on each GPU (8G, 500M), shared with what fits."),
        _option("--gpu", "LIST", "These GPUs (indices or UUIDs: 0,2); with --gpus N any N of them."),
        _option(
            "--gpu-ids", "uuid|index",
            "What CUDA_VISIBLE_DEVICES has: uuid (default), or index for old programs.",
        ),
        _option("--margin", "SIZE", "Memory that must stay free on each GPU, besides the job's own."),
        _option(
            "--share", "lock|cap|both|off",
            "Share a GPU: take turns (lock), make --vram a hard limit (cap), both, or off.",
        ),
        _option(
            "--share-mode", "MODE",
            "When a turn ends: yield (when others wait; default), launches=N, time=5ms, each.",
        ),
        _option("--cpu-slots", "N", "N CPU slots."),
        _option("--slot", "NAME[=N]", "One slot, or N, of this name, from [slots] in the configuration.", ()),
        _option("--set", "PROPERTY=VALUE", "A systemd property: MemoryMax=8G, CPUQuota=200%.", ()),
        _option("--backend", "auto|systemd|plain", "auto uses systemd if it is running.", "auto"),
    ),
    "When it starts": (
        _option("--after", "JOB[:HOW]", "Start when that has ended: ok (default), any, failed.", ()),
        _option("--begin", "TIME", "Start at that time (22:00, monday 8:00), or in 90m."),
        _flag("--wait", "wait", "Wait until what the job needs is free (default).", True),
        _flag("--no-wait", "wait", "If what it needs is busy, say who holds it; exit 75.", True, False),
        _option("--max-wait", "DURATION", "Wait no longer than this; 0: not at all."),
        _option(
            "--then", "run|fail",
            "After --max-wait: fail with 75 (the default with GPUs), or run beside the holder.",
        ),
        _option("--priority", "N", "-100 to 100, default 0: the highest in the queue goes first."),
        _option("--expect", "DURATION", "How long the job will hold its lease (15m, 2h); others see it."),
    ),
    "How it runs and ends": (
        _option("--name", "NAME", "The name that others see for this job.", ""),
        _flag("-d --detach", "detach", "Run in the background: print its id, and write a log."),
        _option("--timeout", "DURATION", "End it after this long (SIGTERM, SIGKILL); exit 124."),
        _flag(
            "--preemptible", "preemptible",
            "Give way to other jobs: be ended (SIGTERM first), and with -d run again.", None,
        ),
        _option("--retry", "WHEN:N", "With -d: run again after a failure (any:2) or its GPU's (gpu:3)."),
        _flag(
            "--snapshot", "snapshot",
            "Run in a copy of the git work tree as it is now: edit it while the job waits.",
        ),
        _flag("--exec", "exec", "Become the command instead of supervising it; no outcome is recorded."),
        _flag("--docker", "docker", "For containers of docker: a slice of the job, $SLICER_SLICE."),
        _flag("--no-container", "container", "Let podman and docker put containers elsewhere.", True, False),
        _flag(
            "--linger", "linger", "Wait for processes that outlive the command instead of ending them.",
            None,
        ),
        _option("--job", "ID", "Be the job of that id.", "", hidden=True),
        _option("--follower", "FD", "Tell it what becomes of the job, and await its word.", "", hidden=True),
        _option("--detached", "JOB", "Be that job, which a caller has detached.", "", hidden=True),
        _option("--runs-in", "DIRECTORY", "With --detached: in that one, of a snapshot.", "", hidden=True),
        _option("--awaits", "JOB:CONDITION", "As --after, by the whole id.", (), hidden=True),
        _option("--begins-at", "SECONDS", "As --begin, since 1970.", hidden=True),
        _option("--adopts", "PID:START", "Be the job of that process, which runs already.", "", hidden=True),
    ),
    "What it writes": (
        _flag("--dry-run", "dry_run", "Print what slicer would do, and why each value."),
        Option(
            ("--output",), "log_to", "FILE",
            "With --detach: append the output to FILE instead of a log of slicer's.", "",
        ),
        _flag("--journal", "journal", "Copy the command's output to the journal, under its unit."),
        _option("--notify", "WHAT", "Notify about done, failed, oom, idle, waited; desktop: there; or off."),
        _option("--outcome", "FILE", "Write the outcome to FILE as JSON.", ""),
        _flag("-q --quiet", "verbosity", "Print errors only.", 0, -1),
        _flag("-v --verbose", "verbosity", "Print more.", 0, 1),
        _flag("-h", "help", "Show the options that one uses.", "", "-h"),
        _flag("--help", "help", "Show all options, in groups, and examples.", "", "--help"),
    ),
}  # fmt: skip
OPTIONS = tuple(option for group in GROUPS.values() for option in group)

# Without a scope there are no properties, and no unit for the log.
_SCOPE_FIELDS = (
    "set", "backend", "exec", "docker", "container", "journal", "dry_run", "share", "share_mode", "notify",
    "detach", "log_to", "after", "begin", "job", "follower", "detached", "awaits", "begins_at", "preemptible",
    "retry", "snapshot", "runs_in", "adopts",
)  # fmt: skip

_HOLD_OPTIONS = (
    _option(
        "--protocol", "1",
        "For programs: hold until stdin ends, and say in lines of JSON what happens (see `slicer client`).",
        "",
    ),
)  # fmt: skip

# The options that a route does not decide.
_ROUTED_FIELDS = (
    "priority", "name", "expect", "max_wait", "timeout", "set", "backend", "linger", "journal",
    "notify", "outcome", "verbosity", "help",
)  # fmt: skip

# What can still be decided about a process that runs already.
_ADOPT_FIELDS = (
    "profile", "gpus", "vram", "gpu", "margin", "cpu_slots", "slot", "set", "expect", "name", "timeout",
    "notify", "verbosity", "help",
)  # fmt: skip
_ROUTE_OPTIONS = (
    _flag("--dry-run", "dry_run", "Only decide: print where the job would go, and why."),
    _flag("--json", "json", "Print the decision, and errors, as JSON."),
    _option(
        "--on-busy", "fail|wait|other",
        "If busy, override the route: fail, wait, or try other destinations.",
    ),
    _option("--program", "PATH", "Execute PATH; COMMAND is only the name that it gets.", "", hidden=True),
)  # fmt: skip


def options_of(program: str) -> tuple[Option, ...]:
    """The options of ``slicer run``, ``slicer hold`` or ``slicer route``."""
    if program == "run":
        return OPTIONS
    if program == "adopt":
        return tuple(option for option in OPTIONS if option.field in _ADOPT_FIELDS)
    if program == "route":
        return *_ROUTE_OPTIONS, *(option for option in OPTIONS if option.field in _ROUTED_FIELDS)
    return *(option for option in OPTIONS if option.field not in _SCOPE_FIELDS), *_HOLD_OPTIONS


def defaults_of(program: str) -> dict[str, Any]:
    """The default of each field. All commands have the fields of ``slicer run``."""
    return {option.field: option.default for option in (*OPTIONS, *options_of(program))}


def parse(
    arguments: list[str], program: str, found: dict[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options by field, and the command. Raises UsageError; the caller checks for an empty command.

    ``found``: the options parsed before.
    """
    known = {name: option for option in options_of(program) for name in option.names}
    found = dict(found) if found is not None else defaults_of(program)
    rest = list(arguments)
    while rest:
        word = rest[0]
        if word == "--":
            return found, tuple(rest[1:])
        if not word.startswith("-") or word == "-":
            break
        del rest[0]
        for name, value in _split(known, word):
            if name not in known:
                raise _unknown(name, known, program)
            _take(found, known[name], name, value, rest)
    return found, tuple(rest)


def _split(known: dict[str, Option], word: str) -> list[tuple[str, str | None]]:
    """The options in one word, and the value attached to the last: --name=x, -q, -qv, -pheavy."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return [(name, value if equals else None)]
    found: list[tuple[str, str | None]] = []
    letters = word[1:]
    while letters:
        name, letters = f"-{letters[0]}", letters[1:]
        if name in known and known[name].metavar and letters:
            return [*found, (name, letters)]
        found.append((name, None))
    return found


def _take(found: dict[str, Any], option: Option, name: str, value: str | None, rest: list[str]) -> None:
    if not option.metavar:
        if value is not None:
            raise UsageError("takes no value", where=name)
        found[option.field] = option.value
        return
    if value is None:
        if not rest:
            raise UsageError(f"needs a value: {name} {option.metavar}", where=name)
        value = rest.pop(0)
    if option.choices and value not in option.choices:
        raise UsageError(f"{value!r} is not one of {', '.join(option.choices)}", where=name)
    found[option.field] = (*found[option.field], value) if option.default == () else value


def _unknown(name: str, known: dict[str, Option], program: str) -> UsageError:
    from slicer.cli import elsewhere

    hint = elsewhere.option(name, [word for word, option in known.items() if not option.hidden])
    if not hint:
        hint = f"see slicer help {program}; the command's own options go after --"
        if any(name in option.names for option in OPTIONS):
            hint = f"slicer run has it; {hint}"
    return UsageError("no such option", where=name, hint=hint)
