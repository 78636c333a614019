"""From a decision to attempts, jobs and what is told of them. (C2, C3, C6, C8)"""

from __future__ import annotations

import pytest

from slicer.config import routes
from slicer.config.profiles import Overrides
from slicer.config.routes import Route
from slicer.job.plan import Invocation
from slicer.model import Outcome, Usage
from slicer.record import replace
from slicer.route import deciding, inside
from slicer.route.deciding import Metric, RouteDecision, decide
from slicer.route.relay import Written
from tests.unit.route.made_up import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import OnBusy
    from slicer.model import EndedBy, Reason

ASKED = Invocation(("whisper", "dir/a.mp4"), None, Overrides(), "", None, True, "auto", False, False, "")


def made(lines: str = "", gpu: str = "", cpu: str = "", threshold: str = "1K") -> Route:
    """The route ``r``, from the lines that a user would write."""
    head = f"[routes.r]\nprobe = 'size'\nthreshold = '{threshold}'\n{lines}"
    return routes.find(config(f"{head}\n[routes.r.gpu]\n{gpu}\n[routes.r.cpu]\n{cpu}"), "r")


def decided(made: Route, size: float = 100) -> RouteDecision:
    return decide(made, "dir/a.mp4", (Metric("size", size),))


def tried(decision: RouteDecision, on_busy: OnBusy | None = None) -> list[tuple[str, bool]]:
    return [(each.destination.name, each.waits) for each in deciding.attempts(decision, on_busy)]


@pytest.mark.parametrize(
    ("lines", "gpu", "cpu", "said", "expected"),
    [
        ("", "", "", None, [("gpu", False)]),
        ("on_busy = 'wait'", "", "", None, [("gpu", True)]),
        ("on_busy = 'other'", "", "", None, [("gpu", False), ("cpu", False)]),
        ("on_busy = 'wait'", "on_busy = 'other'", "", None, [("gpu", False), ("cpu", True)]),
        ("", "on_busy = 'other'", "", None, [("gpu", False), ("cpu", False)]),
        ("on_busy = 'other'", "on_busy = 'fail'", "", None, [("gpu", False)]),
        ("", "", "", "other", [("gpu", False), ("cpu", False)]),
        ("on_busy = 'other'", "", "", "wait", [("gpu", True)]),
        ("on_busy = 'wait'", "", "", "fail", [("gpu", False)]),
    ],
)
def test_which_destinations_are_tried_and_which_are_waited_for(
    lines: str, gpu: str, cpu: str, said: OnBusy | None, expected: list[tuple[str, bool]]
) -> None:  # C3
    assert tried(decided(made(lines, gpu, cpu)), said) == expected


def test_only_a_destination_that_takes_the_job_is_another_one() -> None:  # C3
    decision = decided(made("on_busy = 'other'"), size=2000)
    assert tried(decision) == [("cpu", False)]


def test_each_attempt_says_why() -> None:
    first, second = deciding.attempts(decided(made("on_busy = 'other'")), None)
    assert first.why == "size 100B ≤ 1K: gpu"
    assert second.why == "size 100B ≤ 1K: gpu, which is busy: cpu"


OOM = "on_gpu_oom = 'cpu'"


@pytest.mark.parametrize(
    ("lines", "failed", "size", "expected"),
    [
        (OOM, "gpu", 100, ["cpu"]),
        ("", "gpu", 100, []),  # the default is to fail
        (OOM, "cpu", 2000, []),
    ],
)
def test_after_the_gpu_comes_the_cpu_if_the_route_says_so(
    lines: str, failed: str, size: float, expected: list[str]
) -> None:  # C8
    decision = decided(made(lines), size)
    (to,) = (each for each in decision.route.destinations if each.name == failed)
    assert [each.destination.name for each in deciding.fallback(decision, None, to)] == expected


def test_the_cpu_must_take_the_job() -> None:  # C8
    text = """
        [routes.r]
        probe = 'size'
        on_gpu_oom = 'cpu'
        [routes.r.to.small]
        mode = 'cpu'
        up_to = '1K'
        [routes.r.to.large]
        mode = 'gpu'
        """
    decision = decided(routes.find(config(text), "r"), size=5000)
    assert tried(decision) == [("large", False)]
    assert deciding.fallback(decision, None, decision.choices[0]) == ()


def test_a_job_of_unknown_size_falls_back_to_the_cpu_for_the_largest() -> None:  # C4, C8
    made_up = made(f"{OOM}\non_probe_error = 'gpu'")
    decision = RouteDecision(made_up, "a", (), made_up.destinations[:1], "not measured")
    (attempt,) = deciding.fallback(decision, None, made_up.destinations[0])
    assert attempt.destination.name == "cpu"


def outcome(reason: Reason, exit_code: int, ended_by: EndedBy = "") -> Outcome:
    return Outcome(
        job="j", name="", command=("x",), profile="gpu", backend="plain", manager="user", unit="", slice="",
        gpus=(), vram_mib=None, vram_peak_mib=(), cpu_slots=0, slots={}, forced=0, uid=0, reason=reason,
        exit_code=exit_code, signal=None, started_at=0, waited_s=0, wall_s=0, usage=Usage(), leftovers=0,
        enforced=(), not_enforced=(), ended_by=ended_by,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (outcome("exited", 1), True),
        (outcome("signal", 134), True),  # abort(), as C++ has it
        (outcome("exited", 0), False),  # it coped
        (outcome("signal", 130, "terminal"), False),  # Ctrl-C
        (outcome("signal", 143, "slicer run"), False),
        (outcome("stopped", 143, "slicer stop"), False),
        (outcome("timeout", 124), False),
        (outcome("oom-kill", 137), False),  # main memory: the CPU would need more of it
        (outcome("unknown", 1), False),
    ],
)
def test_only_a_failure_of_its_own_may_be_a_full_gpu(ended: Outcome, expected: bool) -> None:  # C8
    assert deciding.is_out_of_gpu_memory(ended) is expected


@pytest.mark.parametrize(
    ("lines", "tells", "wrote", "expected"),
    [
        ("", True, False, True),
        ("", True, True, True),
        ("", False, False, False),
        ("idempotent = false", True, False, True),
        ("idempotent = false", True, True, False),
    ],
)
def test_a_job_that_is_not_idempotent_never_runs_again_after_output(
    lines: str, tells: bool, wrote: bool, expected: bool
) -> None:  # C8
    written = Written(tells_of_oom=tells, on_stdout=wrote, lost="")
    assert deciding.may_run_again(made(lines), written) is expected


@pytest.mark.parametrize(
    ("input", "name"),
    [
        ("talks/a.mp4", "r:a.mp4"),
        ("talks/", "r:talks"),
        ("-", "r"),
        ("", "r"),
        ("/", "r"),
        ("x" * 500, "r:" + "x" * 198),
    ],
)
def test_a_job_is_called_after_route_and_input(input: str, name: str) -> None:
    assert deciding.job_name(made(), input) == name


def test_a_destination_gives_arguments_profile_slot_and_limits() -> None:  # C2
    gpu = "args=['-g']\nmax_jobs=2\nprofile='big'"
    decision = decided(made("", gpu))
    (attempt,) = deciding.attempts(decision, None)
    job = deciding.invocation(ASKED, decision, attempt, Overrides(vram="10G", assignments=("A=1",)), (7, 8))
    assert job.command == ("whisper", "dir/a.mp4", "-g")
    assert (job.profile, job.route, job.name, job.wait, job.output) == ("big", "r", "r:a.mp4", False, (7, 8))
    over = job.overrides
    assert (over.vram, over.slots, over.assignments) == ("10G", ("r-gpu=1",), ("A=1",))


def test_what_the_command_line_says_counts_over_the_route() -> None:
    asked = replace(ASKED, name="mine", overrides=Overrides(assignments=("MemoryMax=1G",), priority="5"))
    decision = decided(made())
    said = Overrides(assignments=("MemoryMax=6G",))
    job = deciding.invocation(asked, decision, deciding.attempts(decision, None)[0], said)
    assert job.name == "mine"
    assert job.overrides.assignments[-1] == "MemoryMax=1G"  # of two, the last
    assert job.overrides.priority == "5"


def test_a_jobs_environment_names_the_routes_around_it() -> None:
    assert inside.routes_around({}) == ()
    once = inside.environment({"A": "b"}, made())
    assert once == {"A": "b", "SLICER_ROUTE": "r"}
    assert inside.routes_around(inside.environment(once, replace(made(), name="s"))) == ("r", "s")


def test_the_row_of_a_started_job_has_its_destinations_bounds() -> None:  # C6
    decision = decided(made())
    (attempt,) = deciding.attempts(decision, None)
    row = deciding.row(decision, attempt, ("w", "a"), 5.0, "started", job="j", waited_s=1.23456)
    assert (row.kinds, row.metrics, row.bounds) == (("size",), (100.0,), (1024.0,))
    assert (row.destination, row.mode, row.result) == ("gpu", "gpu", "started")
    assert (row.job, row.waited_s) == ("j", 1.235)
    assert (row.command, row.input, row.reason) == (("w", "a"), "dir/a.mp4", "")
    told = deciding.event_fields(row, ("w", "a", "-g"))
    assert (told["metric"], told["bound"], told["result"]) == (("size=100",), ("size=1024",), "started")
    assert told["command"] == "w a -g"


def test_the_row_of_a_job_that_went_nowhere_has_no_destination() -> None:  # C6
    decision = replace(decided(made()), choices=())
    row = deciding.row(decision, None, ("w",), 5.0, "too-large", reason="too large")
    assert (row.destination, row.mode, row.bounds, row.job, row.reason) == ("", "", (), "", "too large")
    assert deciding.event_fields(row, ("w",))["destination"] is None
