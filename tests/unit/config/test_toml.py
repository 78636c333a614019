"""TOML: the line of each key, and that no text does more than be refused."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from slicer.config.toml import key_lines
from slicer.errors import SlicerError
from tests.examples import examples
from tests.unit.config.machine import Machine

pytestmark = pytest.mark.both_pythons


def test_line_of_every_key_is_found() -> None:
    text = """# [no.table]
a = "x # [y]"
'q.r' . "s\\u0074" = 1
long = \"\"\"
b = 1
\\\"\"\" c = 2
""\"\"\"
[t]
lit = '''
d = 3'''
list = [ # e = 1
  "]", [1, 2], { f = 1 },
]
in = { g = 1, h.i = { j = [1] }, k = 'l}' }
date = 1979-05-27T07:32:00Z
[t."u v".w] # comment
x.y = 2
[[z]]
n = 1
[[z]]
n = 2"""
    found = key_lines(text)
    assert found == {
        ("a",): 2,
        ("q.r",): 3,
        ("q.r", "st"): 3,
        ("long",): 4,
        ("t",): 8,
        ("t", "lit"): 9,
        ("t", "list"): 11,
        ("t", "in"): 14,
        ("t", "in", "g"): 14,
        ("t", "in", "h"): 14,
        ("t", "in", "h", "i"): 14,
        ("t", "in", "h", "i", "j"): 14,
        ("t", "in", "k"): 14,
        ("t", "date"): 15,
        ("t", "u v"): 16,
        ("t", "u v", "w"): 16,
        ("t", "u v", "w", "x"): 17,
        ("t", "u v", "w", "x", "y"): 17,
        ("z",): 18,
        ("z", "n"): 19,
    }
    assert key_lines(text.replace("\n", "\r\n")) == found


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" if c in '"\\' or not c.isprintable() else c for c in text) + '"'


_words = st.text(st.characters(max_codepoint=0x2FF), max_size=6)
_scalars = st.one_of(_words.map(_quoted), st.integers().map(str), st.sampled_from(["true", "1.5", "'lit#['"]))


@given(st.dictionaries(_words, _scalars, min_size=1, max_size=8), st.lists(st.sampled_from(["", "# x = ["])))
def test_lines_are_right_in_any_flat_document(pairs: dict[str, str], gaps: list[str]) -> None:
    lines = list(gaps)
    wanted = {}
    for key, value in pairs.items():
        lines.append(f"{_quoted(key)}\t= [{value},] # =")
        wanted[(key,)] = len(lines)
    text = "\n".join(lines)
    assert set(tomllib.loads(text)) == set(pairs)
    assert key_lines(text) == wanted


_symbols = [*"[]{}=,.#\\\"'\n", "[[", "]]", '"' * 3, "'" * 3, "\r\n", "ü"]
_values = ["1", "-1", "1.5", "true", "nan", "2020-01-01", "'1G'", "'300%'"]
_keys = ["profiles", "heavy", "a.b", "slots", "cpu", "env", "inherits", "gpus", "timeout", "memory_max"]
_pieces = ["[profiles.x]", "inherits='x'", "threads='auto'"]
_fragments = st.sampled_from([*_symbols, *_values, *_keys, *_pieces])


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(300))
@given(st.lists(_fragments, max_size=25))
def test_any_text_loads_or_is_refused_in_one_line(machine: Machine, fragments: list[str]) -> None:
    machine.system(" ".join(fragments))
    said = ""
    try:
        made = machine.load()
        for name in made.names():
            made.profile(name)
    except SlicerError as error:
        said = str(error)
    assert said.isprintable()
