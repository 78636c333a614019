"""The program's surface is what it was: help, JSON, files, journal fields, configuration, errors, the API.

Golden copies in ``golden/`` hold it. Where it is to change, write them anew and read the difference in git:

    python -m tests.unit.surface          all of them
    python -m tests.unit.surface help     one

Text has to be the same letter for letter, but for what depends on the machine. Of data, keys and types count.
Some copies are their own scripts (:mod:`.transcripts`): a new title there is a new case.
"""

from __future__ import annotations

import pytest

from tests.unit.surface import golden
from tests.unit.surface.box import made
from tests.unit.surface.scenes import SCENES

# What no other Python says otherwise; with CI=true it is asked all the same.
ALIKE = ("install", "mistakes", "routes", "wrap")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ALIKE else pytest.mark.both_pythons) for name in SCENES],
)
def test_the_surface_is_what_it_was(name: str) -> None:
    with made() as box:
        found = SCENES[name](box)
    difference = golden.difference(name, found)
    assert not difference, f"the surface has changed (on purpose? see {__file__}):\n{difference}"
