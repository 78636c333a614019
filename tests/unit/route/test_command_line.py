"""What a destination changes in a command line. (C2)"""

from __future__ import annotations

import pytest

from slicer.route.deciding import command_for
from tests.unit.route.made_up import route


@pytest.mark.parametrize(
    ("table", "command", "expected"),
    [
        ("", "w a", "w a"),
        ("args = ['--device', 'cuda']", "w a", "w a --device cuda"),
        ("args = ['--device', 'cuda']", "w", "w --device cuda"),
        ("args = ['--device', 'cuda']", "w -- -a", "w --device cuda -- -a"),
        ("args = ['last']", "w -- -a", "w -- -a last"),
        ("prepend = ['-q', '--fast']", "w a", "w -q --fast a"),
        ("replace = {'--model' = 'large'}", "w --model small a", "w --model large a"),
        ("replace = {'--model' = 'large'}", "w --model=small a", "w --model=large a"),
        ("replace = {'-m' = 'large'}", "w -m small -map 0 -m=x", "w -m large -map 0 -m=large"),
        ("replace = {'--model' = 'large'}", "w a", "w a"),
        ("replace = {'--model' = 'large'}", "w --model a --model b", "w --model large --model large"),
        ("replace = {'--model' = 'large'}", "w --model", "w --model"),
        ("replace = {'--model' = 'large'}", "w --models x -- --model y", "w --models x -- --model y"),
        ("replace = {'--fp16' = false}", "w --fp16 a", "w a"),
        ("replace = {'--fp16' = false}", "w --fp16=True a", "w a"),
        ("replace = {'--fp16=' = false}", "w --fp16 True a", "w a"),
        ("replace = {'--fp16=' = false}", "w --fp16=True a", "w a"),
        ("replace = {'--fp16=' = 'no'}", "w --fp16 True a", "w --fp16 no a"),
        ("replace = {'--a' = 'x y'}", "w --a 1", "w --a x|y"),
        ("replace = {'--a' = 2}\nprepend = ['-p']\nargs = ['-z']", "w --a 1 b", "w -p --a 2 b -z"),
    ],
)
def test_arguments_are_appended_prepended_and_replaced(table: str, command: str, expected: str) -> None:
    made = route(gpu=table).destinations[0]
    wanted = tuple(word.replace("|", " ") for word in expected.split(" "))
    assert command_for(made, tuple(command.split(" "))) == wanted
