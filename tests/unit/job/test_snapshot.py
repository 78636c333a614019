"""Which paths of an environment lead to the copy, and which stay."""

from __future__ import annotations

import pytest

from slicer.job.snapshot import moved


# U9
@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/home/a/project", "/copies/1/project"),
        ("/home/a/project/", "/copies/1/project/"),
        ("/home/a/project/src", "/copies/1/project/src"),
        ("/home/a/project2", "/home/a/project2"),
        ("/home/a", "/home/a"),
        ("src", "src"),
        ("", ""),
    ],
)
def test_what_was_in_the_original_is_in_the_copy(path: str, found: str) -> None:
    assert moved(path, "/home/a/project", "/copies/1/project") == found
