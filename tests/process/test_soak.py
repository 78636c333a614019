"""A short soak (``make soak`` is the long one): see :mod:`tests.soak`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fake_nvml import FakeNvml
from tests.process.harness import Box
from tests.soak.soak import Options, Soak

pytest_plugins = ["tests.fake_nvml"]


# A1, A2, A6, K2, X2, X4
@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_is_killed_all_are_served_once_and_nobody_twice_at_a_time(
    make_box: Callable[[int], Box], fake_nvml: FakeNvml, seed: int
) -> None:
    box = make_box(3)
    options = Options(seconds=6.0, jobs=24, slots=3, seed=seed, actions_per_s=12.0)
    summary = Soak(box, options, fake_nvml if seed == 2 else None).run()
    assert "kill" in summary
    box.assert_clean()
