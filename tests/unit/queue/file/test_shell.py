"""What a line leaves in the background, and which shells read ``&>`` as two operators."""

from __future__ import annotations

import pytest

from slicer.queue.file.shell import Shell

DASH, BASH = Shell("/bin/sh", "/bin/sh", "dash"), Shell("bash", "/usr/bin/bash", "bash")


@pytest.mark.parametrize(
    ("command", "left", "offset"),
    [
        ("python a.py", "", -1),
        ("python a.py > log 2>&1", "", -1),
        ("a && b || c >&2 <&0", "", -1),
        ("a 2>&1 |& b", "", -1),
        (r"curl x?a=1\&b=2", "", -1),
        ("curl 'x?a=1&' \"&b=2 & \"", "", -1),
        ("a # b &", "", -1),
        ("a#b &", "last", 4),
        ("python a.py &", "last", 12),
        ("nohup python a.py > log 2>&1 &", "last", 29),
        ("(a; b) &", "last", 7),
        ("(a &)", "last", 3),
        ("{ a & }", "last", 4),
        ("a | b &", "last", 6),
        ("a & b &", "last", 6),
        ("a & disown", "last", 2),
        ("a & echo $! > pid; exit 0  # gone", "last", 2),
        ("for i in 1 2; do a $i & done", "last", 22),
        ("a & wait", "beside", 2),
        ("for i in 1 2; do a $i & done; wait", "beside", 22),
        ("server & client", "beside", 7),
    ],
)
@pytest.mark.parametrize("shell", [DASH, BASH])
def test_an_unquoted_ampersand_is_found(shell: Shell, command: str, left: str, offset: int) -> None:  # U17
    assert shell.background(command)[::2] == (left, offset)


@pytest.mark.parametrize("command", ["a &> log", "a &>> log", "a &>log && b"])
def test_only_some_shells_redirect_both_outputs(command: str) -> None:  # U17
    assert DASH.background(command) == ("last", "&>", 2)
    assert Shell("sh", "/bin/sh", "busybox").background(command) == ("last", "&>", 2)
    for kind in ("bash", "rbash", "zsh", "mksh", "ksh93", "fish"):
        assert Shell("sh", "/bin/sh", kind).background(command) == ("", "", -1)


def test_no_line_takes_for_ever() -> None:
    assert DASH.background("&echo " + "echo exit ;) " * 20_000 + "x")[0] == "beside"
