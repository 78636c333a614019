"""Other people's words, made fit to be shown."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.text import command_text, one_line, quote, split_list, visible, without_middle


def test_what_is_not_printable_is_escaped_and_what_is_to_be_kept_stays() -> None:
    assert visible("a\x1b[31m\n\udcff") == "a\\x1b[31m\\n\\xff"
    assert visible("a\nb\x00", keep="\n") == "a\nb\\x00"


@given(st.text(), st.integers(1, 30))
def test_one_line_is_short_and_printable(text: str, most: int) -> None:
    shown = one_line(text, most)
    assert len(shown) <= most
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("plain", "plain"),
        ("--a=b,c:d/e.f+g@h%i-j", "--a=b,c:d/e.f+g@h%i-j"),
        ("", "''"),
        ("a b", "'a b'"),
        ("don't", "'don'\\''t'"),
        ('"', "'\"'"),
        ("$HOME", "'$HOME'"),
        ("*.py", "'*.py'"),
        ("é", "é"),
        ("a\nb", "'a\\nb'"),
        ("\x1b[31m", "'\\x1b[31m'"),
        ("\udcff", "'\\xff'"),
        ("\u202e", "'\\u202e'"),  # right-to-left override
    ],
)
def test_quote(argument: str, shown: str) -> None:
    assert quote(argument) == shown


@given(st.text())
def test_a_quoted_argument_is_one_printable_line(argument: str) -> None:
    assert quote(argument).isprintable()


@given(st.text().filter(str.isprintable))
def test_a_printable_argument_can_be_pasted_into_a_shell(argument: str) -> None:
    assert shlex.split(quote(argument)) == [argument]


@given(st.lists(st.text(max_size=30), min_size=1, max_size=8))
def test_a_command_text_is_short_and_printable(command: list[str]) -> None:
    shown = command_text(tuple(command), 40)
    assert len(shown) <= 40
    assert shown.isprintable()


def test_a_cut_command_text_says_so() -> None:
    assert command_text(("x" * 50,), 10) == "x" * 9 + "…"
    assert command_text(("x" * 10,), 10) == "x" * 10


def test_the_middle_of_a_long_command_is_cut() -> None:  # Q14
    command = f"python train.py {'x' * 10**6} --seed 3"
    assert without_middle(command, 30) == "python train.py…xxxxx --seed 3"
    assert without_middle("\x1b" * 100, 30).isprintable()
    assert without_middle("short", 5) == "short"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", [""]),
        ("a", ["a"]),
        (" a , b,", ["a", "b", ""]),
        ("[1,2],[3,4]", ["[1,2]", "[3,4]"]),
        ("(0.9,0.999),{a: [1,2]}", ["(0.9,0.999)", "{a: [1,2]}"]),
        ('"a,b",c', ["a,b", "c"]),
        ("'a,b'", ["a,b"]),
        ('{"a":1,"b":"]"},x', ['{"a":1,"b":"]"}', "x"]),
        ('["a","b"]', ['["a","b"]']),
        (r"a\,b,c", ["a,b", "c"]),
        (r"a\\,b\[,\d", ["a\\\\", "b\\[", "\\d"]),
        ("it's,b", ["it's", "b"]),
        ("a),b", ["a)", "b"]),
        ('"a"b"', ['"a"b"']),
    ],
)
def test_a_list_is_split_at_commas_that_nothing_protects(text: str, values: list[str]) -> None:  # U9
    assert split_list(text) == values


@pytest.mark.parametrize("text", ["[1,2", "a,(b", "'a,b", '{"a,b', "[(]"])
def test_what_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there is no closing"):
        split_list(text)


@given(st.text("ab,[]{}()'\"\\ "))
def test_splitting_loses_nothing_but_blanks_quotes_and_escapes(text: str) -> None:
    with suppress(ValueError):
        kept = re.sub(r"[\s'\"\\]", "", ",".join(split_list(text)))
        assert kept == re.sub(r"[\s'\"\\]", "", text)
