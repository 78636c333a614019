"""``slicer policy``: checks the administrator's policy for the broker before it is in force."""

from __future__ import annotations

import click

from slicer.broker.server import policy_file
from slicer.broker.server.names import Names
from slicer.cli import output, say
from slicer.cli.common import failing
from slicer.columns import Line
from slicer.config.files import MAX_BYTES
from slicer.errors import EX_OK, EX_PROBLEM, ConfigError

_EXAMPLES = """\
\b
Examples:
  slicer policy check
      The policy in force, /etc/slicer/policy.toml.
  slicer policy check new.toml && sudo cp new.toml /etc/slicer/policy.toml
      Put a new policy in force if it is valid.
"""


@click.group("policy", epilog=_EXAMPLES)
def command() -> None:
    """The administrator's rules: what users may have, and whose turn it is."""


@command.command(
    "check",
    short_help="Check a policy before it is in force.",
    epilog=f"""{_EXAMPLES}
\b
Exit codes:
    0  it is valid; unknown users and groups are reported
    1  it is not: the file and line""",
)
@click.argument("file", type=click.Path(), default=policy_file.PATH)
def check(file: str) -> int:
    """Read FILE as the broker does, and report mistakes. Changes nothing.

    The broker reads /etc/slicer/policy.toml again by itself. If it has a mistake, the last good policy
    stays in force until the next boot.
    """
    try:
        with failing("cannot be read", file, kind=ConfigError), open(file, "rb") as opened:
            content = opened.read(MAX_BYTES)
        _, warnings = policy_file.meaning(content, file, Names())
    except ConfigError as error:
        say.line(str(error))
        return EX_PROBLEM
    for each in warnings:
        say.line(each)
    output.show([Line(f"{file}: valid")])
    return EX_OK
