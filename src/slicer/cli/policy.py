"""``slicer policy``: the administrator's policy of the broker, before it is in force."""

from __future__ import annotations

import click

from slicer.broker.server import policy_file
from slicer.broker.server.names import Names
from slicer.cli import output, say
from slicer.columns import Line
from slicer.config.files import MAX_BYTES
from slicer.errors import EX_OK, ConfigError

_EX_PROBLEM = 1

_EXAMPLES = """\
\b
Examples:
  slicer policy check
      The one that is in force, in /etc/slicer/policy.toml.
  slicer policy check new.toml && sudo cp new.toml /etc/slicer/policy.toml
      Put a new one in force if it is right.
"""


@click.group(
    "policy", short_help="Check the administrator's policy (slicer-policy.toml(5)).", epilog=_EXAMPLES
)
def command() -> None:
    """What users may have, and whose turn it is, by the word of the administrator."""


@command.command(
    "check",
    short_help="Say whether a policy is right, before it is in force.",
    epilog=f"""{_EXAMPLES}
\b
Exit codes:
    0  it is right; names that nobody has are told
    1  it is not: file and line""",
)
@click.argument("file", type=click.Path(), default=policy_file.PATH)
def check(file: str) -> int:
    """Read FILE as the broker does, and say what is wrong. Nothing is changed.

    The broker reads /etc/slicer/policy.toml again by itself. With a mistake in it, the last good policy stays
    in force until the next boot.
    """
    try:
        with open(file, "rb") as opened:
            content = opened.read(MAX_BYTES)
    except OSError as error:
        say.line(str(ConfigError(f"cannot be read: {error.strerror}", where=file)))
        return _EX_PROBLEM
    try:
        _, warnings = policy_file.meaning(content, file, Names())
    except ConfigError as error:
        say.line(str(error))
        return _EX_PROBLEM
    for each in warnings:
        say.line(each)
    output.show([Line(f"{file}: right")])
    return EX_OK
