"""The text of a shim: a script for sh that passes the call to a route. Pure.

It sets no variable, because that would change the caller's variable of the same name for the program. It
passes on the name by which the program is called, so programs with several names still work through links to
BIN.
"""

from __future__ import annotations

import shlex

from slicer.text import visible
from slicer.wrap.terms import Wrap

INTERPRETER = "/bin/sh"
MOST_BYTES = 1 << 20  # no shim is larger: a path has at most 4096 bytes, quoted twice and three times
_HEAD = f"#!{INTERPRETER}\n# slicer wrap, form "
_FORM = 1


def is_shim(data: bytes) -> bool:
    """Whether a file with this beginning is a shim, of any slicer and form."""
    return data.startswith(_HEAD.encode())


def text(wrap: Wrap) -> bytes:
    slicer, real = shlex.quote(wrap.slicer), shlex.quote(wrap.real)
    back = f"or put the program back: {way_back(wrap)}"
    no_slicer = f"slicer: {wrap.path} is wrapped, and {wrap.slicer} cannot be executed (install it, {back})"
    no_program = (
        f"slicer: {wrap.path} is wrapped, and its program {wrap.real} cannot be executed"
        f" (install it again, or take the shim away: slicer wrap remove {shlex.quote(wrap.path)})"
    )
    lines = [
        f"{_HEAD}{_FORM}: {visible(wrap.path)} goes through the route {visible(wrap.route)}.",
        "# `slicer wrap list` shows all of these, `slicer wrap remove` puts the program back.",
        f"if [ ! -x {real} ]; then",
        f"    {_say(no_program)}",
        f"elif [ ! -x {slicer} ]; then",
        f"    {_say(no_slicer)}",
        "else",
        f'    exec {slicer} route {shlex.quote(wrap.route)} --program {real} -- "$0" "$@"',
        "fi",
        "exit 127",
    ]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def way_back(wrap: Wrap) -> str:
    """The line for a shell that undoes the wrap without slicer."""
    line = f"mv -f {shlex.quote(wrap.real)} {shlex.quote(wrap.path)}"
    if wrap.diverted:
        line += f" && dpkg-divert --local --no-rename --remove {shlex.quote(wrap.diverted)}"
    return line


def _say(message: str) -> str:
    return f"printf '%s\\n' {shlex.quote(visible(message))} >&2"
