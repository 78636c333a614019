"""The shell that runs a queue's lines, and what a line leaves in the background. Pure."""

from __future__ import annotations

import re
from typing import Literal

from slicer.record import record

# Quotes, comments and longer operators hide an "&".
_TOKEN = re.compile(
    r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*"|(?<![^\s;&|()])\#.*|&&|[<>]&|\|&|(?P<operator>&>?)""", re.DOTALL
)
_NO_MORE = re.compile(
    r"(?:[\s;)}]|(?:done|fi|esac)\b|(?:disown|exit|echo)\b[^;&|]*+|\#.*)*+\Z", re.DOTALL
)  # may follow the last command
_WITH_BOTH = re.compile(r"r?bash|zsh|m?ksh|fish")

# "last": the line's last command, so that the line ends before it. "beside": others, as in "server & client".
Background = Literal["", "beside", "last"]


@record
class Shell:
    """``command`` is as the user named it, ``program`` its path; ``kind``: the program's name."""

    command: str
    program: str
    kind: str  # without links: "dash" for most a /bin/sh

    @property
    def has_both(self) -> bool:
        """Whether ``&>`` redirects both outputs. Other shells read it as ``&`` and ``>``."""
        return _WITH_BOTH.match(self.kind) is not None

    def background(self, command: str) -> tuple[Background, str, int]:
        """What the command leaves in the background; by which operator, and the operator's offset."""
        found: tuple[Background, str, int] = "", "", -1
        for match in _TOKEN.finditer(command):
            operator = match["operator"]
            if operator == "&>" and not self.has_both:
                return "last", operator, match.start()
            if operator == "&":
                is_last = _NO_MORE.match(command, match.end()) is not None
                found = "last" if is_last else "beside", operator, match.start()
        return found
