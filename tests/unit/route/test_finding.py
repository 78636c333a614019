"""Which argument is the input. (C1, C4)"""

from __future__ import annotations

import pytest

from slicer.errors import ProbeError
from slicer.route.finding import find_input
from tests.unit.route.made_up import route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.route.finding import Kind

THERE: dict[str, Kind] = {
    "a.mp4": "file", "dir/b.mp4": "file", "out": "directory", "data": "directory", "pipe": "other",
    "--x": "file",
}  # fmt: skip


def kind_of(word: str) -> Kind:
    return THERE.get(word, "")


def found(command: str, input: object = None, probe: str = "size") -> str:
    lines = f"probe = '{probe}'\n" + ("probe_command = ['x']\n" if probe == "command" else "")
    lines += f"input = {input!r}\n" if input is not None else ""
    return find_input(route(lines), tuple(command.split(" ")), kind_of)


@pytest.mark.parametrize(
    ("command", "input", "expected"),
    [
        ("w x a.mp4", 2, "a.mp4"),
        ("w x a.mp4", -1, "a.mp4"),
        ("w x a.mp4", -2, "x"),
        ("w --audio a.mp4 y", "--audio", "a.mp4"),
        ("w --audio=a.mp4 y", "--audio", "a.mp4"),
        ("w -i a.mp4 -out x", "-i", "a.mp4"),
        ("w --audio=a=b", "--audio", "a=b"),
        ("w --audio - y", "--audio", "-"),
        ("w --audios=x --audio y", "--audio", "y"),
        ("w --audio y -- --audio z", "--audio", "y"),
        ("w x.mp3 dir/b.mp4", "*.mp4", "dir/b.mp4"),
        ("w b1.mp4 c.mp4", "b?.mp4", "b1.mp4"),
        ("w dir/c.mp4 other/c.mp4", "other/*", "other/c.mp4"),
        ("w a.mp4 new.mp4", "*.mp4", "a.mp4"),  # the one that is there
        ("w --out=y.mp4 a.mp4", "*.mp4", "a.mp4"),
        ("w anything", "stdin", "-"),
        ("w a.mp4 --out out", None, "a.mp4"),
        ("w a.mp4 --model large", None, "a.mp4"),
        ("w --model large -- --x", None, "--x"),
        ("w a.mp4 a.mp4", None, "a.mp4"),
        ("w pipe", None, "pipe"),  # whose measurement says what is wrong with it
        ("w out", None, "out"),
    ],
)
def test_the_input_is_found(command: str, input: object, expected: str) -> None:  # C1
    assert found(command, input) == expected


@pytest.mark.parametrize(
    ("probe", "expected"), [("size", "a.mp4"), ("count", "data"), ("duration", "a.mp4")]
)
def test_the_only_argument_counts_that_the_probe_can_measure(probe: str, expected: str) -> None:  # C1
    assert found("w a.mp4 data", None, probe) == expected


@pytest.mark.parametrize(
    ("command", "input", "said"),
    [
        ("w", 1, "slicer.toml:3: argument 1 is the input, but the command has no arguments"),
        ("w a", 2, "argument 2 is the input, but the command has 1 argument"),
        ("w a b", -3, "argument -3 is the input, but the command has 2 arguments"),
        ("w a.mp4", "--audio", "the command lacks --audio, which names the input"),
        ("w --audio", "--audio", "the input, has no value"),
        ("w --audio=", "--audio", "the input, has no value"),
        ("w --audio a --audio=b", "--audio", "the command has --audio 2 times: a, b"),
        ("w -- --audio a", "--audio", "the command lacks --audio"),
        ("w a.mp3", "*.mp4", "no argument of the command matches *.mp4"),
        ("w a.mp4 dir/b.mp4", "*.mp4", "2 arguments of the command could be the input: a.mp4, dir/b.mp4"),
        ("w x.mp4 y.mp4", "*.mp4", "no existing file among the command's arguments: x.mp4, y.mp4"),
        ("w", None, "no existing file among the command's arguments: there are none"),
        ("w large", None, "no existing file among the command's arguments: large"),
        ("w a.mp4 dir/b.mp4", None, "2 arguments of the command could be the input"),
    ],
)
def test_no_input_or_several_are_an_error(command: str, input: object, said: str) -> None:  # C4
    with pytest.raises(ProbeError) as refused:
        found(command, input)
    assert said in str(refused.value)


def test_a_hostile_name_cannot_talk_to_the_terminal() -> None:
    THERE["\x1b[31mred"] = THERE["\x1b[32mgreen"] = "file"
    try:
        with pytest.raises(ProbeError) as refused:
            found("w \x1b[31mred \x1b[32mgreen")
    finally:
        del THERE["\x1b[31mred"], THERE["\x1b[32mgreen"]
    assert str(refused.value).isprintable()
