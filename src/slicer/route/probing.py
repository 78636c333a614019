"""Measures the input of a route's job. If that fails, it is an error with its reason, never a 0."""

from __future__ import annotations

import os
import time

from slicer.config import metric_units as units
from slicer.errors import ProbeError
from slicer.route.deciding import Metric
from slicer.route.finding import STANDARD_INPUT, find_input
from slicer.route.inside import environment
from slicer.route.probe_program import FFPROBE, ProgramStart, ask
from slicer.route.source import Source, kind_of
from slicer.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.config.routes import Probe, Route
    from slicer.route.media import Media

_MEDIA = ("duration", "pixels", "megapixel_seconds")  # measured by ffprobe
_LONGEST_NUMBER = 40
_NUMBER = frozenset("0123456789.eE+-")
_ONE_NUMBER = "it must print one number and nothing else"
_LEAST_S = 0.1  # for the second run of ffprobe


def programs(route: Route) -> tuple[str, ...]:
    """The programs that the route's probes run, each once."""
    named = [FFPROBE if probe.kind in _MEDIA else probe.command[0] for probe in route.probes
             if probe.kind in _MEDIA or probe.command]  # fmt: skip
    return tuple(dict.fromkeys(named))


def measure(route: Route, command: tuple[str, ...], stdin_fd: int) -> tuple[str, tuple[Metric, ...]]:
    """The input as written in the command ("-" for standard input), and a metric for each probe.

    Standard input must already be a file. It is measured from its offset, which stays unchanged. A route
    without probes has neither. Raises ProbeError.
    """
    if not route.probes:
        return "", ()
    word = find_input(route, command, kind_of)
    shown = "standard input" if word == STANDARD_INPUT else one_line(word, 120)
    try:
        return word, _measured(route, word, stdin_fd)
    except ProbeError as error:
        error.input, error.where = word, error.where or shown
        raise
    except OSError as error:
        failure = ProbeError(f"cannot be measured: {error.strerror}", where=shown)
        failure.input = word
        raise failure from None


def _measured(route: Route, word: str, stdin_fd: int) -> tuple[Metric, ...]:
    # A command can measure things that are not files: an address, a prompt.
    is_any = all(probe.kind == "command" for probe in route.probes)
    source = Source(word, stdin_fd, may_be_absent=is_any)
    try:
        asker = _Asker(source, environment(os.environ, route))
        found = []
        for at, probe in enumerate(route.probes):
            bounds = (bound for each in route.destinations if (bound := each.up_to[at]) is not None)
            # Beyond the largest bound, the exact value makes no difference.
            found.append(_metric(probe, source, asker, max(bounds, default=None)))
        return tuple(found)
    finally:
        source.close()


def _metric(probe: Probe, source: Source, asker: _Asker, enough: float | None) -> Metric:
    if probe.kind == "command":
        return Metric("command", asker.command(probe))
    source.check("directory" if probe.kind == "count" else "file", probe.kind)
    if probe.kind == "size":
        return Metric("size", float(source.size()))
    if probe.kind in _MEDIA:
        return Metric(probe.kind, asker.media(probe))
    from slicer.route import counting

    deadline = counting.Deadline(probe.timeout_s)
    if probe.kind == "lines":
        return counting.lines(source.fd, source.start, deadline, enough)
    if probe.kind == "tokens":
        return counting.tokens(source.fd, source.start, probe.tokens_per_word, deadline, enough)
    return counting.files(source.fd, deadline, enough)


class _Asker:
    """Asks programs about one input. If they call a wrapped program, it runs at once, without its route."""

    def __init__(self, source: Source, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._media: Media | None = None  # ffprobe's report, for the next probe

    def media(self, probe: Probe) -> float:
        """The duration, the pixels, or their product. Raises ProbeError."""
        from slicer.route import media as ffprobe

        self._source.check_no_playlist()
        end_s = time.monotonic() + probe.timeout_s
        path, stdin = self._source.for_program(pattern="%")  # "%d" would mean a sequence of pictures
        setting = ProgramStart(self._environ, stdin)
        if self._media is None:
            self._media = ffprobe.look(path, probe.timeout_s, setting)
        if probe.kind == "pixels":
            return float(ffprobe.pixels(self._media))
        found = ffprobe.duration_s(self._media)
        if found is None:
            left_s = max(_LEAST_S, end_s - time.monotonic())
            found = ffprobe.scan_duration_s(path, self._media, left_s, setting)
        if probe.kind == "megapixel_seconds":
            return round(found * ffprobe.pixels(self._media) / 1e6, 3)
        return found

    def command(self, probe: Probe) -> float:
        """The number that ``probe_command`` prints. Raises ProbeError."""
        path, stdin = self._source.for_program()
        program, *words = probe.command
        command = (program, *(word.replace("{}", path) for word in words))
        if not any("{}" in word for word in words):
            command = (*command, path)
        answer = ask(command, probe.timeout_s, ProgramStart(self._environ, stdin))
        return number(answer.stdout, one_line(program, 60))


def number(printed: bytes, program: str) -> float:
    """The single number that a probe printed, 0 or more. Raises ProbeError."""
    text = printed.decode("utf-8", "replace").strip()
    if not text:
        raise ProbeError(f"{program} printed nothing", hint=_ONE_NUMBER)
    if len(text) > _LONGEST_NUMBER or not _NUMBER.issuperset(text):
        raise ProbeError(f"{program} printed {one_line(text, 60)!r}", hint=_ONE_NUMBER)
    try:
        found = float(text)
    except ValueError:
        raise ProbeError(f"{program} printed {text!r}", hint=_ONE_NUMBER) from None
    if text.startswith("-"):
        raise ProbeError(f"{program} printed {text}, which is negative")
    if found >= units.LARGEST:
        raise ProbeError(f"{program} printed {text}, which is absurdly large")
    return found
