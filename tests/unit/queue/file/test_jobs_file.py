"""The jobs file: what a line says, what is a shell's bracket, and what a mistake looks like."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.queue.file.jobs_file import JobsFileError, load, parse, read
from slicer.queue.model import Attributes, Entry, Kind
from slicer.retry import Retry


def one(text: str) -> Entry:
    (entry,) = parse(text)
    return entry


def outcome(text: str) -> tuple[Entry, ...] | tuple[int, int]:
    """The jobs, or where the mistake is."""
    try:
        return parse(text)
    except JobsFileError as error:
        return error.line, error.column


def refused(text: str, known: tuple[str, ...] = ()) -> JobsFileError:
    with pytest.raises(JobsFileError) as caught:
        parse(text, known=known, name="jobs.txt")
    assert caught.value.exit_code == 2
    assert caught.value.where == f"jobs.txt:{caught.value.line}:{caught.value.column}"
    return caught.value


# E1
def test_a_line_says_what_the_readme_says_it_does() -> None:
    text = (
        "# comment\n\n  python a.py --x y  \n"
        "[vram=18G gpus=2 timeout=2h retries=2 cancel] torchrun b.py\n   # another\n[vram=18000]c\n"
        "[preemptible] d\n[snapshot] e\n[snapshot=/copy] f\n"
    )
    assert [(entry.number, entry.command, entry.attributes) for entry in parse(text)] == [
        (3, "python a.py --x y", Attributes()),
        (4, "torchrun b.py", Attributes(Kind(18 * 1024, 2), 7200.0, 2, True)),
        (6, "c", Attributes(Kind(18000))),
        (7, "d", Attributes(Kind(preemptible=True))),
        (8, "e", Attributes(snapshot=True)),
        (9, "f", Attributes(snapshot="/copy")),
    ]


# E1, issue: named slots
def test_slots_are_the_same_in_whatever_order_they_are_named() -> None:
    for text in ("[slots=b=2,a] x", "[slots='a=1, b=2'] x", "[SLOTS=c slots=a,b=2] x"):
        (entry,) = parse(text)
        assert entry.attributes == Attributes(Kind(slots=(("a", 1), ("b", 2))))


# E1
def test_what_slicer_adds() -> None:
    text = (
        "[name=prep profile=cpu priority=-5 gpus=0] make data\n"
        "[name=prep] make more\n"
        "[name='my job' after=prep,done after=prep cwd=\"/a b\" env.A=1 env.b='x ] y' env.A=2] train"
    )
    first, second, third = parse(text, known=["done"])
    assert first.attributes == Attributes(Kind(profile="cpu", priority=-5, gpus=0), name="prep")
    assert second.attributes == Attributes(name="prep")
    assert third.attributes == Attributes(
        name="my job", after=("prep", "done"), cwd="/a b", env=(("A", "2"), ("b", "x ] y"))
    )
    assert third.command == "train"


# E1
@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("plain", "plain"),
        ("''", ""),
        ("'a  b'", "a  b"),
        ("\"a ] 'b'\"", "a ] 'b'"),
        ("a'b c'\"d e\"f", "ab cd ef"),
        (r"a\ b\]\\", r"a b]\ "[:-1]),
        (r'"\"\\\$\`\n"', '"\\$`\\n'),
        (r"'\n\'", "\\n\\"),
        ("$HOME", "$HOME"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_quoted_as_in_a_shell_but_nothing_is_expanded(value: str, means: str) -> None:
    entry = one(f"[env.X={value} vram=1G] run")
    assert entry.attributes.env == (("X", means),)
    assert (entry.attributes.kind.vram_mib, entry.command) == (1024, "run")


# E1
@pytest.mark.parametrize(
    "line",
    [
        "[ -f x ] && cmd",
        "[[ -f x ]] && cmd",
        '[ "$a" = b ] || cmd',
        "[ ! -e done ]; python a.py",
        "[ -f x ]",
        "[ $x ] && y",
        "[ a = b ] && c",
        "[ -n \"$(ls 'a b')\" ] && x",
        "[ $'it\\'s' = x ] && y",
        "[[ $a == [xy] ]] && z",
        "[[ $a =~ ^[0-9]+$ ]] || z",
        "[ -f x ] 2>/dev/null && y",
        "[ ${a[0]} = x ] && y",
        "[ x ] && y",
        "[ vram=8G = $x ] && y",
        "[\t-f x ] && cmd",
    ],
)
def test_a_bracket_that_is_shell_is_a_command(line: str) -> None:
    entry = one(f"  {line} ")
    assert (entry.command, entry.attributes) == (line, Attributes())


# E1
def test_after_has_to_name_a_job() -> None:
    error = refused("[name=train] a\n [vram=1G after=train after=nobody,trian] b", ("nobody",))
    assert (error.line, error.column) == (2, 23)
    assert "'trian'" in error.message
    assert "train" in error.hint
    # Later lines, cancelled ones and jobs of an earlier run count.
    assert len(parse("[after=b,old] a\n[name=b cancel] b", known={"old"})) == 2


# E1
@pytest.mark.parametrize(
    ("text", "line", "column", "circle"),
    [
        ("[name=a after=a] x", 1, 9, "a → a"),
        ("[name=a] x\n[name=a after=a] y", 2, 9, "a → a"),
        ("[name=a after=b] x\n[name=b after=c] y\n[after=a name=c] z", 1, 9, "a → b → c → a"),
        ("[after=a] w\n[name=a after=b] x\n[name=b] y\n[name=b after=c] y\n"
         "[name=c after=d,b] z\n[name=d] v", 4, 9, "b → c → b"),
    ],
)  # fmt: skip
def test_jobs_that_wait_for_each_other_are_an_error_that_shows_the_circle(
    text: str, line: int, column: int, circle: str
) -> None:
    error = refused(text)
    assert (error.line, error.column) == (line, column)
    assert error.message.endswith(f"in a circle: {circle}")


# E1
@given(st.lists(st.tuples(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=3)), max_size=10))
def test_every_circle_and_nothing_else_is_refused_as_one(jobs: list[tuple[int, list[int]]]) -> None:
    def block(name: int, after: list[int]) -> str:
        return f"[name={name} after={','.join(map(str, after))}]" if after else f"[name={name}]"

    edges: dict[int, set[int]] = {}
    for name, after in jobs:
        edges.setdefault(name, set()).update(after)
    # What is left when those that wait for nothing are taken away, again and again, goes in circles.
    left = dict(edges)
    while free := [name for name in left if not left[name] & set(left)]:
        for name in free:
            del left[name]
    text = "\n".join(f"{block(name, after)} x" for name, after in jobs)
    known = [str(name) for name in range(8) if name not in edges]
    try:
        parse(text, known=known)
    except JobsFileError as error:
        assert left
        way = error.message.partition("circle: ")[2].split(" → ")
        assert way[0] == way[-1]
        assert all(int(b) in edges[int(a)] for a, b in pairwise(way))
    else:
        assert not left


# E1
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_bytes(b"\xef\xbb\xbf[vram=8G] x\n")
    assert load(str(path)) == parse("[vram=8G] x\n")
    path.write_bytes(b"\xef\xbb\xbf[vrm=8G] x\n")
    with pytest.raises(JobsFileError) as caught:
        load(str(path))
    assert caught.value.where == f"{path}:1:2"


# E1
@pytest.mark.parametrize(
    ("data", "line", "column"),
    [(b"\xff", 1, 1), (b"a\n\xc3\xa9b\xffc\n", 2, 3), (b"a\r\nb\r\xe9", 3, 1), (b"\xef\xbb\xbfa\xff", 1, 2)],
)
def test_a_byte_that_is_not_utf_8_is_an_error_with_its_place(
    tmp_path: Path, data: bytes, line: int, column: int
) -> None:
    path = tmp_path / "jobs.txt"
    path.write_bytes(data)
    with pytest.raises(JobsFileError, match="is not UTF-8") as caught:
        read(str(path))
    assert caught.value.where == f"{path}:{line}:{column}"


# E1
@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    with pytest.raises(JobsFileError, match="cannot be read") as caught:
        load(path)
    assert (caught.value.where, caught.value.line, caught.value.exit_code) == (path, 0, 2)


# E1
@given(st.text(st.sampled_from("a #[]\r\n\x0b\x0c\x1c\x85\u2028é"), max_size=30))
def test_lines_end_where_python_s_text_mode_ends_them(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "newlines.txt"
    path.write_bytes(text.encode())
    with open(path, encoding="utf-8") as file:
        assert read(str(path)) == file.read()
    with open(path, encoding="utf-8", newline="") as file:
        assert read(str(path), keep_newlines=True) == file.read()
    assert outcome(text) == outcome(read(str(path)))


# E1
def test_equal_brackets_share_their_attributes() -> None:
    first, second = parse("[vram=8G env.A=b] x\n[vram=8G env.A=b] y")
    assert first.attributes is second.attributes


# E1
@pytest.mark.parametrize("text", ["[name=j{0} after=j{1}] x {0}\n", "[vram=8G] python train.py --seed {0}\n"])
@pytest.mark.slow
def test_a_hundred_thousand_lines_are_read(text: str) -> None:
    """In 2 s on a slow machine. A quadratic way takes minutes, more than the limit of a test."""
    lines = "".join(text.format(number, number + 1) for number in range(100_000))
    assert len(parse(lines, known=["j100000"])) == 100_000


# E1
@pytest.mark.parametrize("line", ["[" * 50_000, "['" + "a'" * 50_000, "[\\" * 50_000, "[ " + '"\\"' * 50_000])
def test_no_line_takes_for_ever(line: str) -> None:
    refused(line)


# E1
@given(st.text(st.sampled_from("[]'\"\\= \tvram=8Gname,after.env\0#&|\n\r-f$"), max_size=60) | st.text())
def test_any_text_is_either_jobs_or_an_error_with_a_place_in_it(text: str) -> None:
    match outcome(text):
        case (int(line), int(column)):
            lines = re.split("\r\n|\r|\n", text.removeprefix("\ufeff"))
            assert 1 <= column <= len(lines[line - 1]) + 1
        case entries:
            assert all(entry.command and entry.command == entry.command.strip() for entry in entries)


def test_a_backslash_that_escapes_something_else_is_the_commands() -> None:  # W33
    assert [entry.command for entry in parse("a \\\\\nb\\ \n# c \\\n")] == ["a \\\\", "b\\"]


# U8: and a word that would do nothing is refused
def test_a_line_says_how_often_it_runs_again_after_any_failure() -> None:
    lines = ("retry=any:2", "RETRY=Any:0", "retry=gpu:0", "retry=gpu:5,any:1", "vram=1G")
    assert [one(f"[{said}] x").attributes.retry for said in lines] == [
        Retry(2, 3), Retry(0, 3), Retry(0, 0), Retry(1, 5), None,
    ]  # fmt: skip
    both = one("[retries=1 retry=any:2] x").attributes
    assert (both.retries, both.retry) == (1, Retry(2))
    for wrong in ("2", "any", "any:", "any:-1", "any:x", "oom:3", "any:1,gpu"):
        error = refused(f"[name=a retry={wrong}] x")
        assert error.column == 9
        assert "retry" in error.message
