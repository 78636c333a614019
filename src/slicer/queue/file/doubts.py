"""What is valid in a jobs file, but probably a mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from slicer.queue.file.jobs_file import FileLine, lines, read_attributes
from slicer.queue.file.shell import Shell
from slicer.queue.model import Attributes
from slicer.text import counted

_SMALL = re.compile(r"\bvram=['\"]?(\d{1,3}(?:\.\d+)?)['\"]?(?=[\s\]])", re.IGNORECASE)
_FUNCTION = re.compile(r"BASH_FUNC_(\w+)%%")
_AMPERSAND = re.compile(r"(?<![&<>|])&(?!&)")
_CHOICE = re.compile(
    r"""(?<![\w$.=/-])(?<!-e )(?<!--env )(?:env\.)?(CUDA_VISIBLE_DEVICES=["']?(?:\d|GPU-)[\w,-]*)"""
)
_DOCKER = re.compile(
    r"(?<![\w./=-])docker(?:-compose)?\s+(?:-\S+\s+)*(?:(?:compose|container)\s+)?(?:run|up)(?!\S)"
)
_LEAST_MIB = 256  # CUDA alone needs about as much, so a smaller number without a unit probably means GiB


class _Doubt(NamedTuple):
    about: str  # equal for lines with the same mistake
    line: FileLine
    column: int
    text: str


class Doubts:
    """Finds each doubtful line once.

    ``lingers``: whether the profile of that name (None: the usual one) waits for processes in the background.
    ``environ``: the lines' environment, which may have functions that a user's bash has exported.
    """

    def __init__(
        self, name: str, shell: Shell, lingers: Callable[[str | None], bool], environ: Mapping[str, str]
    ) -> None:
        self._name = name
        self._shell = shell
        self._lingers = lingers
        exported = [match[1] for match in map(_FUNCTION.fullmatch, environ) if match is not None]
        named = "|".join(exported if shell.kind != "bash" else ())
        self._function = re.compile(rf"(?<![\w./=-])(?:{named})(?![\w./=-])") if named else None
        self._known: set[tuple[str, str | None, str]] = set()

    def of(self, text: str) -> list[str]:
        """A warning for each kind of mistake among the lines that are new. The text must parse."""
        first: dict[str, _Doubt] = {}
        count: dict[str, int] = {}
        for doubt in self._found(text):
            known = doubt.about, doubt.line.inside, doubt.line.command
            if known not in self._known:
                self._known.add(known)
                first.setdefault(doubt.about, doubt)
                count[doubt.about] = count.get(doubt.about, 0) + 1
        return [self._told(doubt, count[about] - 1) for about, doubt in first.items()]

    def _told(self, doubt: _Doubt, others: int) -> str:
        more = f" (and {counted(others, 'line')} more)" if others else ""
        return f"{self._name}:{doubt.line.number}:{doubt.column}: {doubt.text}{more}"

    def _found(self, text: str) -> Iterator[_Doubt]:
        is_choice = "CUDA_VISIBLE_DEVICES=" in text
        is_doubtful = any(each.search(text) for each in (_SMALL, _AMPERSAND, _DOCKER))
        if not (self._function or is_choice or is_doubtful):
            return
        cache: dict[str, Attributes] = {}
        for line in lines(text, self._name):
            small = _SMALL.search(f"{line.inside or ''} ")
            if small is not None and float(small[1]) < _LEAST_MIB:
                said = f"vram={small[1]} is {small[1]} MiB; for GiB, write vram={small[1]}G"
                yield _Doubt("vram", line, line.column + 1 + small.start(), said)
            yield from _chosen(line) if is_choice else ()
            docker = _DOCKER.search(line.command)
            if docker is not None:
                said = "dockerd starts it outside of the job, without its GPUs and limits (podman does not)"
                yield _Doubt("docker", line, line.command_column + docker.start(), said)
            called = self._function.search(line.command) if self._function is not None else None
            if called is not None:
                said = f"{called[0]} is bash's function, which {self._shell.kind} drops (use --shell bash)"
                yield _Doubt(called[0], line, line.command_column + called.start(), said)
            background, operator, offset = self._shell.background(line.command)
            if background == "last" and not self._lingers(read_attributes(line, cache).kind.profile):
                yield _Doubt(operator, line, line.command_column + offset, self._left(operator))

    def _left(self, operator: str) -> str:
        """What becomes of a command in the background, and what helps."""
        if operator == "&>":
            what = f'{self._shell.kind} reads "&>" as "&" and ">"'
            cure = "write > FILE 2>&1, or use --shell bash"
        else:
            what, cure = 'the line ends with "&"', "drop the &, or set linger = true in its profile"
        return f"{what}: its command would be ended as soon as it has started ({cure})"


def _chosen(line: FileLine) -> Iterator[_Doubt]:
    """A GPU that the line itself chooses, past the lease."""
    for text, column in ((line.inside or "", line.column + 1), (line.command, line.command_column)):
        found = _CHOICE.search(text)
        if found is not None:
            said = f"{found[1]} uses a GPU that the job may have no lease on (drop it: slicer sets it)"
            yield _Doubt("CUDA_VISIBLE_DEVICES", line, column + found.start(1), said)
