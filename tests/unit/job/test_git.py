"""What the shell has said of a work tree, whole or cut off, and whatever else it may be."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.job.git import parsed
from slicer.model import Git
from slicer.outcome.outcome_file import git_from, git_json

COMMIT = "5a3c9f01d2e4" + "0" * 28
NONE, SOME = (hashlib.sha256(diff).hexdigest() for diff in (b"", b"+x"))
UNKNOWN = Git(COMMIT, "main", None, "")


# U22
@pytest.mark.parametrize(
    ("said", "git"),
    [
        (f"{COMMIT}\nmain\n0\n{NONE}  -\n", Git(COMMIT, "main", 0, "")),
        (f"{COMMIT}\nmain\n0\n{SOME}  -\n", Git(COMMIT, "main", 1, SOME)),
        (f"{COMMIT}\nHEAD\n0\n{NONE}  -\n", Git(COMMIT, "", 0, "")),
        (f"{'f' * 64}\nmain\n0\n{NONE}  -\n", Git("f" * 64, "main", 0, "")),  # --object-format=sha256
        (f"{COMMIT}\nmain\n128\n{NONE}  -\n", UNKNOWN),  # git failed: nothing is no diff then
        (f"{COMMIT}\nmain\n137\n{SOME}  -\n", UNKNOWN),
        (f"{COMMIT}\nmain\n0\n{SOME[:20]}", UNKNOWN),
        (f"{COMMIT}\nmain\n", UNKNOWN),
        (f"{COMMIT}\nma", Git(COMMIT, "", None, "")),
        (COMMIT, None),
        ("", None),
        ("HEAD\n", None),  # no commit yet
        ("warning: odd\n", None),
        (f"{COMMIT}\n{'x' * 4000}\n0\n{NONE}  -\n", Git(COMMIT, "x" * 200, 0, "")),
    ],
)
def test_what_was_said(said: str, git: Git | None) -> None:
    assert parsed(said.encode()) == git


@given(st.binary(max_size=300) | st.text("0af\n H-", max_size=300).map(str.encode))
def test_whatever_was_said_is_no_error(said: bytes) -> None:
    git = parsed(said)
    assert git is None or git_from(git_json(git)) == git
