"""Whatever gpusched 0.4.0 takes for a jobs file means the same here, job by job (E1)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpusched import jobspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slicer.queue.file import attributes, jobs_file
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.model import Entry
from tests.examples import examples

# The attributes that only slicer has.
OURS = {"profile", "priority", "name", "after", "cwd"}

BLANKS = st.sampled_from([" ", "  ", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u2003", "\u2028", ""])
DIGITS = st.sampled_from(["0", "1", "2", "8", "18", "24000", "007", "\u0663", "\uff11\uff12", "²"])
NUMBERS = st.one_of(
    DIGITS,
    st.builds("{}.{}".format, DIGITS, DIGITS),
    st.builds("{}{}".format, st.sampled_from(["+", "-", "1_", "_", "."]), DIGITS),
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e5, allow_subnormal=False).map(lambda number: f"{number:.3f}"),
)
UNITS = st.sampled_from(
    ["", "G", "g", "GB", "GiB", "gib", "G\u0131B", "M", "mb", "MiB", "K", "s", "m", "H", "d", "\u017f"]
)
KEYS = st.sampled_from(
    ["vram", "VRAM", "Vram", "gpus", "timeout", "TimeOut", "retries", "vrma", "gpu", "cancel"]
)
EXTENSIONS = st.sampled_from(
    [
        "name=a",
        "after=a",
        "priority=3",
        "cwd=/",
        "env.A='x y'",
        'profile="cpu"',
        "gpus=0",
        "route=b",
        "na\\me=b",
    ]
)
WORDS = st.one_of(
    st.builds("{}={}{}".format, KEYS, NUMBERS, UNITS),
    st.builds("{}={}".format, st.sampled_from(["vram", "gpus", "timeout", "retries"]), DIGITS),
    st.builds("vram={}{}".format, DIGITS, st.sampled_from(["G", "", "GiB"])),
    st.sampled_from(["cancel", "CANCEL", "cancle", "=", "-f", "x", '"$a"', "vram", "="]),
    EXTENSIONS,
)
COMMANDS = st.sampled_from(
    ["python train.py", "python train.py", "a", "é ü", "&& x", "|| true", "; x", "[ -f x ] && y", "", "# no",
     "x # y", "echo ']' x", "x  ", "a\x0bb", "a\x85b", "a\u2028b", "'", "\ufeff", "=", "[vram=8G] z"]
)  # fmt: skip
BLOCKS = st.builds(
    lambda opening, words, between, end, closing: opening + between.join(words) + end + closing,
    st.sampled_from(["[", "[", "[", "[ ", "[[", "[[ ", "[\t"]),
    st.lists(WORDS, max_size=4),
    BLANKS.filter(bool),
    BLANKS,
    st.sampled_from(["]", "]", "]", "]", "]]", "", " ]"]),
)
LINES = st.one_of(
    st.builds("{}{}{}{}{}".format, BLANKS, BLOCKS, BLANKS, COMMANDS, BLANKS),
    st.builds("{}{}{}".format, BLANKS, COMMANDS, BLANKS),
    st.text(st.sampled_from("[]vram=8Ggpus2 \t#'\"x-\\\x1f"), max_size=24),
    st.text(max_size=12),
)
WHOLE = st.sampled_from(["1", "2", "+3", "1_0", "007", "\u0663", "\uff11\uff12"])
AMOUNTS = st.one_of(
    WHOLE.filter(lambda text: text[0] != "+" and "_" not in text), st.floats(0.6, 1e5).map("{:.4f}".format)
)
GOOD_WORDS = st.one_of(
    st.builds(
        "{}={}{}".format,
        st.sampled_from(["vram", "VRAM", "Vram"]),
        AMOUNTS,
        st.sampled_from(["", "G", "g", "gb", "GiB", "G\u0131B", "m", "MB", "mib"]),
    ),
    st.builds(
        "{}={}{}".format,
        st.sampled_from(["timeout", "TimeOut"]),
        AMOUNTS,
        st.sampled_from([*"smhdSMHD", ""]),
    ),
    st.builds("{}={}".format, st.sampled_from(["gpus", "retries", "Gpus"]), WHOLE),
    st.sampled_from(["cancel", "CANCEL", "retries=0", "retries=-0"]),
)
GOOD_LINES = st.builds(
    lambda before, opening, words, between, closing, after, command: (
        before + opening + between.join(words) + closing + after + command
    ),
    BLANKS,
    st.sampled_from(["[", "[", "[ ", "[\xa0"]),
    st.lists(GOOD_WORDS, max_size=5),
    BLANKS.filter(bool),
    st.sampled_from(["]", " ]"]),
    BLANKS,
    COMMANDS.filter(str.strip),
)
NEWLINES = st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n"])


@st.composite
def files(draw: st.DrawFn, most: int = 6) -> str:
    """A jobs file, good or bad."""
    kind = draw(st.sampled_from([GOOD_LINES, GOOD_LINES | COMMANDS, LINES]))
    pairs = draw(st.lists(st.tuples(kind, NEWLINES), max_size=most))
    text = "".join(line + newline for line, newline in pairs)
    if draw(st.booleans()):
        text = text.rstrip("\n")
    if text and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text) - 1))
        text = (
            text[:at] + draw(st.sampled_from(["", "]", "[", " ", "=", "8", "x", "\n", "'"])) + text[at + 1 :]
        )
    # These are told apart on purpose: a byte order mark is no part of a command, and what is refused is a
    # NUL, and a backslash at a line's end, which gpusched takes for part of a command that is cut there.
    return re.sub(r"\\+(?=[\r\n]|\Z)", "", text.lstrip("\ufeff").replace("\0", ""))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("jobs") / "jobs.txt"
    yield path
    path.unlink(missing_ok=True)


def of_theirs(path: Path) -> list[jobspec.JobSpec] | None:
    """What gpusched makes of the file; None if it does not take it."""
    try:
        return jobspec.parse_jobs_file(str(path))
    except (jobspec.JobSpecError, OverflowError, KeyError):
        return None


def is_taken(line: str) -> bool:
    """Whether gpusched takes the line."""
    try:
        return jobspec.parse_line(line, 1, 1) is not None
    except (jobspec.JobSpecError, OverflowError, KeyError):
        return False


def of_ours(path: Path) -> tuple[Entry, ...] | None:
    try:
        return jobs_file.load(str(path))
    except JobsFileError:
        return None


def compared(entry: Entry) -> tuple[object, ...]:
    said = entry.attributes
    gpus = 1 if said.kind.gpus is None else said.kind.gpus
    return (
        entry.number, said.kind.vram_mib, gpus, said.timeout_s, said.retries or 0, said.cancel,
        entry.command, entry.key,
    )  # fmt: skip


def is_extension(entry: Entry, line: str) -> bool:
    """Whether the line uses something that only slicer has."""
    if entry.command == line.strip():
        return line.strip().startswith(("[ ", "[[")) or line.strip()[1].isspace()
    (found,) = jobs_file.lines(line)
    assert found.inside is not None
    return any(
        word.key in OURS or word.key.startswith("env.")
        or (word.key == "gpus" and attributes.parse(word.text).kind.gpus == 0)  # though another one follows
        or any(quote in word.text for quote in "'\"\\")
        for word in attributes.words(found.inside)
    )  # fmt: skip


# E1
@given(files())
@settings(max_examples=examples(500), deadline=None)
@example("[vram=18G gpus=2 timeout=2h retries=2 cancel] a\na\n\na\n")
@example("[VRAM=1.5G vram=\u0663g] a\r\n[ ] && b\r[vram=0.6]\x85c\u2028d")
@example("[retries=1_0 gpus=+2 retries=\u0663] a\x0b\n[] [ -f x ] && y")
@example("[vram=12.5 timeout=1.5D CANCEL] x\n[vram=2.5]x\n[vram=3.5M\u0131B] x")
def test_a_file_that_gpusched_takes_means_the_same_here(path: Path, text: str) -> None:
    path.write_bytes(text.encode())
    theirs = of_theirs(path)
    if theirs is None:
        return
    ours = of_ours(path)
    assert ours is not None
    assert [compared(entry) for entry in ours] == [
        (
            each.lineno,
            each.vram_mib,
            each.n_gpus,
            each.timeout_s,
            each.retries,
            each.cancel,
            each.command,
            each.key,
        )
        for each in theirs
    ]


# E1
@given(st.lists(LINES, max_size=8))
@settings(max_examples=examples(400), deadline=None)
@example(["[ -f x ] && y", "[name=a] x", "[gpus=0] x", "[gpus=0 gpus=1] x", '[vram="8 G"] x'])
def test_what_only_slicer_takes_is_one_of_its_own_attributes_or_a_shell_s_bracket(
    path: Path, candidates: list[str]
) -> None:
    for line in candidates:
        path.write_bytes(line.lstrip("\ufeff").encode())
        for entry in of_ours(path) or ():
            taken = jobs_file.read(str(path)).split("\n")[entry.number - 1]
            assert is_taken(taken) or is_extension(entry, taken)


# E1
@given(st.lists(st.sampled_from(["a", "b", "[vram=8G] a", "[cancel]  b ", "#a", ""]), max_size=12))
def test_a_job_is_known_by_its_command_and_how_often_that_came_before(lines: list[str]) -> None:
    commands = [entry.command for entry in jobs_file.parse("\n".join(lines))]
    keys = [entry.key for entry in jobs_file.parse("\n".join(lines))]
    assert keys == [
        f"{hashlib.sha1(each.encode()).hexdigest()[:12]}#{commands[:index].count(each)}"
        for index, each in enumerate(commands)
    ]
