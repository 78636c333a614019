"""A short soak (``make soak`` is the long one): see :mod:`tests.soak`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fake_nvml import FakeNvml
from tests.process.harness import Box
from tests.soak import fuzz
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


# D18: X4, A2
def test_a_burst_is_served_whoever_of_it_is_killed(make_box: Callable[[int], Box]) -> None:
    box = make_box(3)
    options = Options(seconds=2.0, jobs=24, slots=3, seed=3, actions_per_s=12.0, burst=100)
    Soak(box, options, None).run()
    box.assert_clean()


# S3, S7, D6
def test_no_broken_file_does_harm() -> None:
    assert "broken files read" in fuzz.run(1.0, seed=1)


def test_what_did_harm_is_told_so_that_it_can_be_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(data: bytes) -> bool:
        if data != b"good":
            raise OverflowError("too much")
        return True

    monkeypatch.setattr(fuzz, "TARGETS", {"fragile": fuzz.Target((b"good",), check)})
    with pytest.raises(AssertionError, match="# OverflowError: too much") as caught:
        fuzz.run(1.0, seed=1)
    *_, reader, option, text = str(caught.value).partition("  #")[0].split()
    assert (reader, option) == ("fragile", "--input")
    with pytest.raises(OverflowError):
        check(fuzz.given(text))
