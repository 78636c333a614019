"""Results as JSON and as a Markdown table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.markdown import table

_WORDS = {"pass": "pass", "fail": "**FAIL**", "skip": "not tried", "info": "measured"}


def write(out: Path, found: dict[str, Any]) -> None:
    """results.json and results.md."""
    (out / "results.json").write_text(json.dumps(found, indent=2) + "\n")
    (out / "results.md").write_text(markdown(found) + "\n")


def markdown(found: dict[str, Any]) -> str:
    """One table: what was tried, what was expected, what came of it."""
    about, checks = found["about"], found["checks"]
    gpu, machine = about["gpu"], about["machine"]
    driver = f"driver {machine['driver']}, " if machine["driver"] else ""
    heading = f"{gpu['name']}, {driver}CUDA {gpu['cuda']}, Linux {machine['kernel']}, {about['date']}"
    notes: list[str] = []
    if about["is_fake"]:
        notes.insert(0, "**FAKE DRIVER: nothing here was measured on a GPU.**")
    if about["is_brief"]:
        notes.insert(0, "**A short try (--brief): its figures are no figures.**")
    versions = ", ".join(f"{name} {version}" for name, version in about["frameworks"].items() if version)
    notes.append(f"Frameworks: {versions or 'none'}.")
    states = [each["state"] for each in checks.values()]
    notes.append(", ".join(f"{states.count(state)} {word}" for state, word in _WORDS.items()) + ".")
    rows = [
        [name, each["what"], each["expected"], _WORDS[each["state"]], _cell(each["found"])]
        for name, each in checks.items()
    ]
    columns = ["check", "what", "expected", "", "found"]
    return table(f"## Sharing a GPU: {heading}", columns, rows, notes, texts=5)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:400]
