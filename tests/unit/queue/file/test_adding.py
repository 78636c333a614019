"""Lines that are added: what is written is what is run, and it is written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.errors import SlicerError, StateError, UsageError
from slicer.queue.file import adding, attributes, jobs_file
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.model import Kind

_WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=12)
_VALUES = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=12).filter(str.strip)


def one(said: list[tuple[str, str]], *command: str) -> str:
    (line,) = adding.lines(said, command, {})
    return line


# U1: quoted so that a shell has the same words again
@given(st.lists(_WORDS, min_size=2, max_size=4))
def test_a_command_parses_back_to_itself(command: list[str]) -> None:
    try:
        line = one([], *command)
    except UsageError:
        assert not line_is_fine(shlex.join(command))
        return
    (entry,) = jobs_file.parse(line)
    assert shlex.split(entry.command) == command


def line_is_fine(text: str) -> bool:
    try:
        entries = jobs_file.parse(text)
    except JobsFileError:
        return False
    return [entry.command for entry in entries] == [text]


# U1: by the table that reads them
@given(_VALUES, _VALUES)
def test_attributes_parse_back_to_themselves(cwd: str, value: str) -> None:
    (entry,) = jobs_file.parse(one([("cwd", cwd), ("env.A", value)], "true", "x"))
    assert (entry.attributes.cwd, entry.attributes.env) == (cwd, (("A", value),))


# U1
def test_all_options_become_attributes() -> None:
    said = [
        ("vram", "18G"), ("gpus", "2"), ("timeout", "2h"), ("name", "my job"), ("after", "a,b"),
        ("priority", "-3"), ("profile", "heavy"), ("retries", "1"), ("cwd", "/x"), ("env.K", "v w]"),
    ]  # fmt: skip
    line = one(said, "python", "t.py", "a b")
    assert line.startswith("[vram=18G gpus=2 timeout=2h name='my job' ")
    assert line.endswith("] python t.py 'a b'")
    found = attributes.parse(line[1 : line.rindex("]")])
    assert found.kind == Kind(18 << 10, 2, "heavy", -3)
    assert (found.name, found.after, found.env) == ("my job", ("a", "b"), (("K", "v w]"),))


# U1: a line of the file is a shell's command line
def test_one_word_is_a_command_line() -> None:
    assert one([], "a.sh && b.sh | c") == "a.sh && b.sh | c"
    assert one([], "a.sh", "&&", "b.sh") == "a.sh '&&' b.sh"


# U1
def test_a_line_for_each_combination() -> None:
    found = adding.lines(
        [("name", "n{lr}"), ("env.S", "{seed}")], ("t.py", "--lr={lr}", "{a,b}", "{other}"),
        {"lr": ["1e-3", "{seed}"], "seed": ["1", "2 3"]},
    )  # fmt: skip
    assert found == [
        "[name=n1e-3 env.S=1] t.py --lr=1e-3 '{a,b}' '{other}'",
        "[name=n1e-3 env.S='2 3'] t.py --lr=1e-3 '{a,b}' '{other}'",
        "[name='n{seed}' env.S=1] t.py '--lr={seed}' '{a,b}' '{other}'",
        "[name='n{seed}' env.S='2 3'] t.py '--lr={seed}' '{a,b}' '{other}'",
    ]
    assert adding.lines([], ("echo {x}; ls",), {"x": ["a b"]}) == ["echo 'a b'; ls"]


# U1
@pytest.mark.parametrize(
    ("said", "command", "parameters", "where"),
    [
        ([("vram", "8X")], ("a", "b"), {}, "--vram"),
        ([("gpus", "-1")], ("a", "b"), {}, "--gpus"),
        ([("env.1A", "x")], ("a", "b"), {}, "--env"),
        ([("env.A]x", "x")], ("a", "b"), {}, "--env"),
        ([("name", "a,b")], ("a", "b"), {}, "--name"),
        ([("priority", "999")], ("a", "b"), {}, "--priority"),
        ([("name", "")], ("a", "b"), {}, "--name"),
        ([], ("a", "b"), {"lr": ["1"]}, "--param"),
        ([], ("a", "{x}{y}"), {"x": ["1"] * 200, "y": ["1"] * 200}, "--param"),
        ([("vram", "8G"), ("gpus", "0")], ("a", "b"), {}, "the line"),
        ([], ("# no",), {}, "'# no'"),
        ([], ("",), {}, "''"),
        ([], ("[vram=8G] a",), {}, "'[vram=8G] a'"),
        ([], ("a", "b\nc"), {}, "\"a 'b\\nc'\""),
        ([], ("a\\",), {}, "the line"),
    ],
)
def test_what_cannot_be_a_line_is_refused(said: Any, command: Any, parameters: Any, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        adding.lines(said, command, parameters)
    assert caught.value.where == where


# -- the file -----------------------------------------------------------------------------------------------


# U1
@pytest.mark.parametrize(
    ("before", "after", "number"),
    [
        (None, "x\n", 1), ("", "x\n", 1), ("a\n", "a\nx\n", 2), ("a", "a\nx\n", 2), ("a\r\n", "a\r\nx\n", 2),
        ("# ü\n\n", "# ü\n\nx\n", 3),
    ],
)  # fmt: skip
def test_lines_are_appended(tmp_path: Path, before: str | None, after: str, number: int) -> None:
    file = tmp_path / "jobs.txt"
    if before is not None:
        file.write_bytes(before.encode())
    assert adding.append(str(file), ["x"], ()) == number
    assert file.read_bytes().decode() == after


# U1
def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("a\n")
    link.symlink_to("real")
    adding.append(str(link), ["x"], ())
    assert link.is_symlink()
    assert real.read_text() == "a\nx\n"


# U1
@pytest.mark.parametrize("text", ["[vram=x] a\n", "a \\\n", "b\n[name=x after=y] c\n"])
def test_nothing_is_added_to_a_file_that_is_wrong(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(text)
    with pytest.raises(JobsFileError):
        adding.append(str(file), ["x"], ())
    assert file.read_text() == text


# U1
def test_what_it_follows_has_to_exist(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text("[name=a] a\n")
    with pytest.raises(JobsFileError, match="no job is named 'b'"):
        adding.append(str(file), ["[after=b] x"], ())
    adding.append(str(file), ["[after=a] x", "[after=b] y"], {"b"})
    assert file.read_text() == "[name=a] a\n[after=a] x\n[after=b] y\n"


# U1: nothing half-written counts
@pytest.mark.parametrize("written", [0, 3])
def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text("a\n")
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:written])

    monkeypatch.setattr("slicer.queue.file.adding.os.write", full)
    with pytest.raises(StateError, match="nothing was added"):
        adding.append(str(file), ["true", "false"], ())
    assert file.read_text() == "a\n"


# U1
def test_a_file_that_cannot_be_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "_LOCKED_S", 0.05)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "locked").write_text("a\n")
    (tmp_path / "latin").write_bytes(b"\xe4\n")
    for name in ("fifo", "latin", ".", "none/jobs.txt"):
        with pytest.raises(SlicerError):
            adding.append(str(tmp_path / name), ["x"], ())
    with (tmp_path / "locked").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="locked by another program"):
            adding.append(str(tmp_path / "locked"), ["x"], ())
    assert (tmp_path / "locked").read_text() == "a\n"


# U1: `slicer queue suggest --in-place` replaces the file under the same lock
def test_lines_go_into_the_file_that_has_taken_the_place_of_a_locked_one(tmp_path: Path) -> None:
    file, new = tmp_path / "jobs.txt", tmp_path / "new"
    file.write_text("a\n")
    new.write_text("b\n")
    folder, name, fd = adding.locked(str(file), os.O_RDWR, "")
    with ThreadPoolExecutor() as pool:
        added = pool.submit(adding.append, str(file), ["x"], ())
        new.rename(tmp_path / name)
        os.close(fd)
        assert added.result() == 2
    folder.close()
    assert file.read_text() == "b\nx\n"


# U1: root changes no file that another user could exchange
def test_root_adds_to_no_file_of_others(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("is about root")
    file = tmp_path / "jobs.txt"
    file.write_text("a\n")
    os.chown(file, 12345, -1)
    with pytest.raises(JobsFileError, match="not changed: belongs to uid 12345"):
        adding.append(str(file), ["x"], ())
    assert file.read_text() == "a\n"


@pytest.mark.parametrize(
    ("word", "values"),
    [("1..4", "1 2 3 4"), ("2..-1", "2 1 0 -1"), ("7..7", "7"), ("1..a", "1..a"), ("../1..2", "../1..2")],
)
def test_a_range_means_its_numbers(word: str, values: str) -> None:  # U9
    assert list(adding.expanded(word)) == values.split()


def test_a_range_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="too many"):
        adding.expanded("1..999999999999999999")
