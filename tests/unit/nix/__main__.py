"""``python -m tests.unit.nix`` writes nix/keys.json and the options in docs/nixos.md anew."""

from __future__ import annotations

from tests.unit.nix import document, keys
from tests.unit.nix.evaluation import evaluate

keys.PATH.write_text(keys.current(), encoding="utf-8")
document.PATH.write_text(document.current(document.PATH.read_text(), evaluate("options.nix")))
print(f"wrote {keys.PATH} and {document.PATH}")
