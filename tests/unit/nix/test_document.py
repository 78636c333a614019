"""docs/nixos.md says what the module does."""

from __future__ import annotations

import re

from tests.unit.nix import document, keys
from tests.unit.nix.evaluation import evaluate


def test_the_keys_of_the_module_are_those_of_the_tables() -> None:  # K5
    now = keys.current()
    assert keys.PATH.read_text(encoding="utf-8") == now, "`python -m tests.unit.nix` writes it anew"


def test_the_options_in_the_document_are_current() -> None:  # K5
    text = document.PATH.read_text()
    now = document.current(text, evaluate("options.nix"))
    assert text == now, "`python -m tests.unit.nix` writes them anew"


def test_every_option_is_described() -> None:  # K5
    assert all(option["description"].strip().endswith(".") for option in evaluate("options.nix"))


def test_the_settings_in_the_document_are_right() -> None:  # K5
    (block,) = re.findall(r"```nix\n(programs\.slicer\.settings = .*?)```", document.PATH.read_text(), re.S)
    found = evaluate("machine.nix", expression=f"{{ programs.slicer.enable = true; {block} }}")
    assert found["failed"] == []
    assert found["settings"]["profiles"]["train"]["vram"] == "20G"
