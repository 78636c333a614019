"""What a terminal sends, as keys."""

from __future__ import annotations

import pytest

from slicer.cli.keys import decode

KEYS = {
    b"q": ["q"], b"Ky/?": list("Ky/?"), b"\x1b[A": ["up"], b"\x1bOB": ["down"], b"\x1b[H": ["home"],
    b"\x1b[4~": ["end"], b"\x1b[5~\x1b[6~": ["page up", "page down"], b"\r": ["enter"],
    b"\x7f": ["backspace"], b"\xe2\x82q": ["q"],
    b"\x1b[1;5A": [], b"\x1b[200~x\x1b[201~": ["x"], b"\x1b[?62;c": [], "é€😀".encode(): ["é", "€", "😀"],
    b"\xff\x80a": ["a"], b"\x00\x0ba": ["a"], b"\x1b[31mk": ["k"],
    b"\x1b]52;c;a3k=\x07q": ["q"], b"\x1bP1$r0;ky\x1b\\l": ["l"], b"\x1b]lky\x1b\\": [],
}  # fmt: skip


@pytest.mark.parametrize("data", KEYS)
def test_keys_are_the_same_however_they_are_split(data: bytes) -> None:  # W7
    assert decode(data, is_all=False) == (KEYS[data], b"")
    keys: list[str] = []
    rest = b""
    for byte in data:
        found, rest = decode(rest + bytes([byte]), is_all=False)
        keys += found
    assert (keys, rest) == (KEYS[data], b"")


def test_an_escape_alone_is_a_key_only_once_nothing_follows() -> None:  # W7
    assert decode(b"\x1b", is_all=False) == ([], b"\x1b")
    assert decode(b"\x1b", is_all=True) == (["esc"], b"")
    assert decode(b"\x1b\x1b[A", is_all=False) == (["esc", "up"], b"")
    assert decode(b"\x1bq", is_all=False) == (["esc", "q"], b"")


def test_what_never_becomes_a_key_is_not_collected() -> None:
    _, rest = decode(b"\x1b[" + b"0" * 4096, is_all=False)
    assert len(rest) < 64
    assert decode(rest, is_all=True)[1] == b""
