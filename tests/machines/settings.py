"""What the environment asks of a test run."""

from __future__ import annotations

import os

from tests.machines import recipe

DEFAULT_SUITE = "trixie"


def ci() -> bool:
    """Whether a missing machine is a failure, not a skip: CI=true."""
    return os.environ.get("CI", "").lower() in ("true", "1")


def wanted_suites() -> list[str]:
    """$SLICER_TEST_SUITES, comma-separated; default trixie, in CI also bookworm. ValueError for others."""
    default = f"{DEFAULT_SUITE},bookworm" if ci() else DEFAULT_SUITE
    suites = [name.strip() for name in os.environ.get("SLICER_TEST_SUITES", default).split(",")]
    unknown = sorted(set(suites) - set(recipe.SUITES))
    if unknown:
        raise ValueError(f"SLICER_TEST_SUITES: no suite {unknown[0]!r}, there are {', '.join(recipe.SUITES)}")
    return suites
