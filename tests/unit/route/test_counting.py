"""Lines, tokens and files of an input. (C1, C4)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.errors import ProbeError
from slicer.route import counting
from slicer.route.counting import Deadline
from slicer.route.deciding import Metric


def counted(
    what: str, content: bytes, *, start: int = 0, enough: float | None = None, per_word: float = 1.3
) -> Metric:
    fd = os.memfd_create("text")
    try:
        os.write(fd, content)
        if what == "lines":
            return counting.lines(fd, start, Deadline(60), enough)
        return counting.tokens(fd, start, per_word, Deadline(60), enough)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("content", "lines", "tokens"),
    [
        (b"", 0, 0),
        (b"\n", 1, 0),
        (b"one", 1, 2),
        (b"one two\n", 1, 3),
        (b"one\ntwo", 2, 3),
        (b" one \r\n\t two\n\n", 3, 3),
        ("größe über alles\n".encode(), 1, 4),
    ],
)
def test_lines_and_tokens_are_counted(content: bytes, lines: int, tokens: int) -> None:  # C1
    assert counted("lines", content) == Metric("lines", float(lines))
    assert counted("tokens", content) == Metric("tokens", float(tokens))


@given(st.lists(st.sampled_from([b"a", b" ", b"\n", b"bc", b"\t"]), max_size=40), st.integers(1, 7))
def test_pieces_do_not_split_what_is_counted(parts: list[bytes], size: int) -> None:  # C1
    content = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_LINES_BYTES", size)
        patch.setattr(counting, "_WORDS_BYTES", size)
        assert counted("lines", content).value == len(content.splitlines())
        assert counted("tokens", content).value == -(-len(content.split()) * 13 // 10)


def test_tokens_are_rounded_up_but_not_for_an_error_of_floating_point() -> None:
    assert counted("tokens", b"word " * 100, per_word=1.1).value == 110  # 110.00000000000001
    assert counted("tokens", b"word " * 100, per_word=1.101).value == 111


def test_standard_input_counts_from_its_offset() -> None:
    assert counted("lines", b"one\ntwo\nthree\n", start=4).value == 2


@pytest.mark.parametrize("what", ["lines", "tokens"])
def test_what_is_no_text_is_an_error(what: str) -> None:  # C4
    with pytest.raises(ProbeError, match="is not text: it contains NUL bytes"):
        counted(what, b"one\0two\n")


@pytest.mark.parametrize(("what", "enough"), [("lines", 3.0), ("tokens", 3.9)])
def test_counting_ends_once_it_makes_no_difference(
    what: str, enough: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_ENOUGH_BYTES", 8)
    monkeypatch.setattr(counting, "_LINES_BYTES", 8)
    monkeypatch.setattr(counting, "_WORDS_BYTES", 8)
    found = counted(what, b"a\n" * 100, enough=enough)
    assert found.at_least
    assert enough < found.value < 100
    assert counted(what, b"a\n" * 100, enough=1000.0).at_least is False
    assert counted(what, b"a\n" * 100).value >= 100


def test_counting_has_an_end() -> None:  # C4
    with pytest.raises(ProbeError, match="could not be counted within 0s"):
        Deadline(0).check()


def files(path: Path, enough: float | None = None) -> Metric:
    fd = os.open(path, os.O_RDONLY)
    try:
        return counting.files(fd, Deadline(60), enough)
    finally:
        os.close(fd)


def test_files_are_counted_below_and_no_link_is_followed(tmp_path: Path) -> None:  # C1
    assert files(tmp_path) == Metric("count", 0.0)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("1", ".2", "a/3", "a/b/4"):
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "up").symlink_to("..")
    os.mkfifo(tmp_path / "a" / "pipe")  # nothing waits for its writer
    assert files(tmp_path) == Metric("count", 7.0)


def test_a_directory_that_became_a_link_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who may write there exchanges it after the look and before the open."""
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    for number in range(5):
        (tmp_path / "out" / str(number)).touch()
    real = os.open

    def swap(path: str, flags: int, **options: int) -> int:
        if path == "sub":
            (tmp_path / "in" / "sub").rmdir()
            (tmp_path / "in" / "sub").symlink_to(tmp_path / "out")
            monkeypatch.setattr(os, "open", real)
        return real(path, flags, **options)

    fd = os.open(tmp_path / "in", os.O_RDONLY)
    try:
        monkeypatch.setattr(os, "open", swap)
        assert counting.files(fd, Deadline(60), None) == Metric("count", 1.0)
    finally:
        os.close(fd)


def test_many_files_are_not_counted_to_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_ENOUGH_FILES", 10)
    monkeypatch.setattr(counting, "_LOOK_FILES", 5)
    for number in range(40):
        (tmp_path / str(number)).touch()
    assert files(tmp_path, enough=3.0) == Metric("count", 15.0, at_least=True)
    assert files(tmp_path, enough=100.0) == Metric("count", 40.0)


def test_directories_without_end_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_DEEPEST", 3)
    (tmp_path / "1/2/3/4").mkdir(parents=True)
    with pytest.raises(ProbeError, match="more than 3 levels"):
        files(tmp_path)
