"""``python -m tests.unit.nix`` writes the options into docs/nixos.md anew."""

from __future__ import annotations

from tests.unit.nix import document
from tests.unit.nix.evaluation import evaluate

document.PATH.write_text(document.current(document.PATH.read_text(), evaluate("options.nix")))
print(f"wrote {document.PATH}")
