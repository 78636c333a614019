"""The options of ``slicer run``: one table for the fast parser here and for click's ``--help``.

click costs 45 ms to import, more than the whole of ``slicer run`` may; so this command line is read by
hand. Everything from the first word that is not an option belongs to the command.
"""

from __future__ import annotations

from slicer.errors import UsageError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@record
class Option:
    """``metavar`` is "" for a flag; ``value`` is what a flag sets."""

    names: tuple[str, ...]
    field: str
    metavar: str
    help: str
    value: object = True
    many: bool = False
    choices: tuple[str, ...] = ()


OPTIONS = (
    Option(
        ("-p", "--profile"), "profile", "NAME", "Limits and needs from this profile (see `slicer profiles`)."
    ),
    Option(("-g", "--gpus"), "gpus", "N", "Take N whole GPUs."),
    Option(("-n", "--name"), "name", "NAME", "What others see while this job holds what they want."),
    Option(
        ("--expect",), "expect", "DURATION", "How long the job will hold its lease (15m, 2h); others see it."
    ),
    Option(("--wait",), "wait", "", "Wait until what the job needs is free (default)."),
    Option(
        ("--no-wait",),
        "wait",
        "",
        "When busy, print the holder as JSON and exit with 75 instead of waiting.",
        False,
    ),
    Option(
        ("--timeout",),
        "timeout",
        "DURATION",
        "End the job after this long (SIGTERM, then SIGKILL); exit 124.",
    ),
    Option(
        ("--set",),
        "set",
        "PROPERTY=VALUE",
        "A systemd property for the scope: MemoryMax=8G, CPUQuota=200%.",
        many=True,
    ),
    Option(
        ("--backend",),
        "backend",
        "WHICH",
        "auto takes systemd where it runs.",
        choices=("auto", "systemd", "plain"),
    ),
    Option(("--exec",), "exec", "", "Become the command instead of supervising it; no outcome is recorded."),
    Option(
        ("--linger",), "linger", "", "Wait for processes that outlive the command instead of ending them."
    ),
    Option(("--journal",), "journal", "", "Copy the command's output to the journal, under its unit."),
    Option(("--outcome",), "outcome", "FILE", "Write the outcome there as JSON."),
    Option(("--dry-run",), "dry_run", "", "Print what would be done, with the source of each value."),
    Option(("-q", "--quiet"), "verbosity", "", "Print errors only.", -1),
    Option(("-v", "--verbose"), "verbosity", "", "Say more.", 1),
    Option(("-h", "--help"), "help", "", "Show this help."),
)

DEFAULTS: dict[str, Any] = {
    "profile": None, "gpus": None, "name": "", "expect": None, "wait": True, "timeout": None, "set": (),
    "backend": "auto", "exec": False, "linger": None, "journal": False, "outcome": "", "dry_run": False,
    "verbosity": 0, "help": False,
}  # fmt: skip

_BY_NAME = {name: option for option in OPTIONS for name in option.names}


def parse(arguments: list[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options by field and the command. Raises UsageError; an empty command is the caller's to judge."""
    found = dict(DEFAULTS)
    rest = list(arguments)
    while rest:
        word = rest[0]
        if word == "--":
            return found, tuple(rest[1:])
        if not word.startswith("-") or word == "-":
            break
        del rest[0]
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            _take(found, name, value if equals else None, rest)
        else:
            _take_short(found, word, rest)
    return found, tuple(rest)


def _take_short(found: dict[str, Any], word: str, rest: list[str]) -> None:
    """-q, -qv, -pheavy, -p heavy."""
    letters = word[1:]
    while letters:
        name, letters = f"-{letters[0]}", letters[1:]
        option = _BY_NAME.get(name)
        attached = letters if option is not None and option.metavar and letters else None
        _take(found, name, attached, rest)
        if attached is not None:
            return


def _take(found: dict[str, Any], name: str, value: str | None, rest: list[str]) -> None:
    option = _BY_NAME.get(name)
    if option is None:
        raise _unknown(name)
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
        raise UsageError(f"{value!r} is none of {', '.join(option.choices)}", where=name)
    found[option.field] = (*found[option.field], value) if option.many else value


def _unknown(name: str) -> UsageError:
    from slicer.property_names import nearest

    close = nearest(name, _BY_NAME)
    if close.lstrip("-")[:1] != name.lstrip("-")[:1]:
        close = ""  # --bogus did not mean --gpus
    hint = (
        f"did you mean {close}?" if close else "see slicer run --help; the command's own options go after --"
    )
    return UsageError("no such option", where=name, hint=hint)
