"""Where a job goes, and what is said of it. (C1, C4)"""

from __future__ import annotations

import pytest

from slicer.config import routes
from slicer.config.routes import Route
from slicer.errors import ProbeError
from slicer.route.deciding import Metric, decide, on_error
from tests.unit.route.made_up import config, route

DURATION = "probe = 'duration'\nthreshold = '1h'"
BOTH = "probe = ['duration', 'pixels']\nthreshold = ['1h', '8MP']"
THREE = """
    [routes.r]
    probe = "duration"
    {more}
    [routes.r.to.small]
    mode = "gpu"
    up_to = "10m"
    [routes.r.to.medium]
    mode = "gpu"
    up_to = "1h"
    [routes.r.to.rest]
    mode = "cpu"
    up_to = "5h"
"""


def three(more: str = "") -> Route:
    return routes.find(config(THREE.format(more=more)), "r")


@pytest.mark.parametrize(
    ("value", "first", "why"),
    [
        (0.5, "gpu", "duration 500ms ≤ 1h: gpu"),
        (3600.0, "gpu", "duration 1h ≤ 1h: gpu"),
        (3600.001, "cpu", "duration 3600.001s > 1h: cpu"),
        (7200.0, "cpu", "duration 2h > 1h: cpu"),
    ],
)
def test_the_threshold_itself_goes_to_the_gpu(value: float, first: str, why: str) -> None:  # C1
    made = decide(route(DURATION), "a.mp4", (Metric("duration", value),))
    assert (made.choices[0].name, made.why, made.input) == (first, why, "a.mp4")
    assert [each.name for each in made.choices] == ["gpu", "cpu"][first == "cpu" :]


@pytest.mark.parametrize(
    ("duration", "pixels", "why"),
    [
        (60.0, 2e6, "duration 1m ≤ 1h, pixels 2MP ≤ 8MP: gpu"),
        (60.0, 9e6, "duration 1m, pixels 9MP > 8MP: cpu"),
        (7200.0, 2e6, "duration 2h > 1h, pixels 2MP: cpu"),
    ],
)
def test_all_thresholds_must_hold(duration: float, pixels: float, why: str) -> None:  # C1
    assert decide(route(BOTH), "x", (Metric("duration", duration), Metric("pixels", pixels))).why == why


@pytest.mark.parametrize(
    ("minutes", "choices", "why"),
    [
        (5, ["small", "medium", "rest"], "duration 5m ≤ 10m: small (gpu)"),
        (30, ["medium", "rest"], "duration 30m ≤ 1h: medium (gpu)"),
        (120, ["rest"], "duration 2h ≤ 5h: rest (cpu)"),
        (360, [], "duration 6h > 5h: too large for small and medium and rest"),
    ],
)
def test_a_job_goes_to_the_first_destination_that_takes_it(
    minutes: int, choices: list[str], why: str
) -> None:
    made = decide(three(), "x", (Metric("duration", minutes * 60.0),))
    assert [each.name for each in made.choices] == choices
    assert made.why == why


def test_without_a_cpu_part_a_large_job_goes_nowhere() -> None:
    made = decide(route(DURATION, gpu=""), "x", (Metric("duration", 7200.0),))
    assert (made.choices, made.why) == ((), "duration 2h > 1h: too large for gpu")


def test_without_a_probe_the_gpu_is_tried_first() -> None:  # C8
    made = decide(route(), "", ())
    assert ([each.name for each in made.choices], made.why) == (["gpu", "cpu"], "nothing is measured: gpu")


def test_without_a_threshold_the_metric_is_told_all_the_same() -> None:  # C9
    assert decide(route("probe = 'lines'"), "x", (Metric("lines", 7.0),)).why == "lines 7: gpu"


def test_what_was_not_counted_to_its_end_is_told_as_that() -> None:
    made = decide(route("probe = 'lines'\nthreshold = 5"), "x", (Metric("lines", 70.0, at_least=True),))
    assert made.why == "lines at least 70 > 5: cpu"


def failure() -> ProbeError:
    error = ProbeError("printed nothing", where="a.mp4")
    error.input = "a.mp4"
    return error


def test_a_failed_probe_is_an_error() -> None:  # C4
    error = failure()
    with pytest.raises(ProbeError) as raised:
        on_error(route(DURATION), error)
    assert raised.value is error


@pytest.mark.parametrize(("mode", "expected"), [("gpu", ["gpu"]), ("cpu", ["cpu"])])
def test_or_goes_where_the_route_says(mode: str, expected: list[str]) -> None:  # C4
    made = on_error(route(f"{DURATION}\non_probe_error = '{mode}'"), failure())
    assert [each.name for each in made.choices] == expected
    assert (made.metrics, made.input) == ((), "a.mp4")
    assert made.why == f"not measured, on_probe_error = {mode}: {mode} (a.mp4: printed nothing)"


def test_what_could_not_be_measured_goes_first_to_what_takes_the_largest() -> None:  # C4
    made = on_error(three("on_probe_error = 'gpu'"), failure())
    assert [each.name for each in made.choices] == ["medium", "small"]
