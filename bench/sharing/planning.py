"""What is run, in which order, and with which command lines. Pure."""

from __future__ import annotations

from bench.sharing.model import ALONE, ALONE_LOCKED, UNMANAGED, Scenario
from slicer.errors import UsageError
from slicer.quantity import QuantityError, parse_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from bench.sharing.model import Calibration, Parameters

DEFAULT_MODES = ("yield", "priority", "launches=10", "time=5ms", "each", "skip=20")
PRIORITY = "priority"
_SKIP_LAUNCHES = 10  # the mode whose first syncs are skipped
_REQUEST = {"buffer_bytes": 64 << 20, "copy_bytes": 256 << 10}  # a job has two buffers; a copy each way
_WARM_REQUESTS = 5
_START_S = 1.5  # what it takes until a job is ready: CUDA's start, mostly
_CALIBRATE_S = 3.0


def scenarios(parameters: Parameters) -> tuple[Scenario, ...]:
    """All that is run, each once a repetition. Raises UsageError on a mode that there is not."""
    alone = [
        Scenario(name, latency=is_latency, batch=not is_latency, share="off" if name == ALONE else "lock")
        for name in (ALONE, ALONE_LOCKED)
        for is_latency in (True, False)
    ]
    modes = [_mode(text, parameters.priority) for text in dict.fromkeys(parameters.modes)]
    if not modes:
        alone = [each for each in alone if each.share == "off"]
    return *alone, Scenario(UNMANAGED, latency=True, batch=True, share="off"), *modes


def _mode(text: str, priority: int) -> Scenario:
    """The jobs together, under the mode that --modes calls so."""
    word, _, value = text.partition("=")
    is_number = value.isascii() and value.isdigit() and int(value) > 0
    name, mode, skip, own = text, text, 0, 0
    if text == PRIORITY:
        name, mode, own = f"{PRIORITY} {priority}", "yield", priority
    elif word == "skip" and is_number:
        mode, skip = f"launches={_SKIP_LAUNCHES}", int(value)
    elif not (text in ("yield", "each") or {"launches": is_number, "time": _lasts(value)}.get(word)):
        raise UsageError(f"no mode {text!r:.40}", where="--modes", hint=", ".join(DEFAULT_MODES))
    return Scenario(name, latency=True, batch=True, share="lock", mode=mode, skip_syncs=skip, priority=own)


def _lasts(text: str) -> bool:
    try:
        return parse_duration(text) > 0
    except QuantityError:
        return False


def order(all_of: Sequence[Scenario], repeats: int) -> list[Scenario]:
    """The order of the runs: in rounds of all scenarios, of which each begins with another one.

    So a slow minute of the machine meets all alike, and none always follows the same other one.
    """
    shifts = [number * len(all_of) // repeats for number in range(repeats)]
    return [scenario for shift in shifts for scenario in (*all_of[shift:], *all_of[:shift])]


def estimate_s(parameters: Parameters, number: int) -> float:
    """How long so many scenarios take, each with all its repetitions."""
    one = _START_S + parameters.warmup_s + parameters.duration_s
    return _CALIBRATE_S + number * parameters.repeats * one


def slowest_s(parameters: Parameters) -> float:
    """How long a run may take from its start before it counts as hung: the GPU may be very busy."""
    return 60.0 + parameters.warmup_s + 3 * parameters.duration_s


# -- the jobs' command lines --------------------------------------------------------------------------------


def load(parameters: Parameters, kind: str, found: Calibration | None = None) -> dict[str, Any]:
    """What a job is told: calibrate, latency or batch. Only the first does without ``found``."""
    request = {**_REQUEST, "kernels": parameters.request_kernels}
    if found is None:
        return {**request, "kernel_us": parameters.request_kernel_us}
    if kind == "latency":
        work = iterations(parameters.request_kernel_us, found.compute_ns)
        period_ns = round(parameters.period_ms * 1e6)
        return {**request, "iterations": work, "period_ns": period_ns, "warm": _WARM_REQUESTS}
    one_ns = found.compute_ns if parameters.kernel == "compute" else found.memory_ns
    work = iterations(parameters.kernel_us, one_ns)
    return {**_REQUEST, "kernel": parameters.kernel, "depth": parameters.depth, "iterations": work}


def iterations(us: int, one_ns: float) -> int:
    """How many iterations take so long."""
    return max(1, round(us * 1000 / one_ns))


def run_options(parameters: Parameters, scenario: Scenario | None, job: str, gpu: str) -> tuple[str, ...]:
    """The options of ``slicer run`` for a job: calibrate, latency or batch. ``gpu``: "" for any."""
    options = ["-q", "--no-wait", "--name", f"bench-{job}", "--vram", f"{parameters.vram_mib}M"]
    options += ["--gpu", gpu] if gpu else ["--gpus", "1"]
    if parameters.backend != "auto":
        options += ["--backend", parameters.backend]
    if scenario is None:
        return *options, "--share", "off"
    options += ["--share", scenario.share]
    if scenario.share == "lock" and scenario.mode:
        options += ["--share-mode", scenario.mode]
    if scenario.priority and job == "latency":
        options += ["--priority", str(scenario.priority)]
    return tuple(options)


def variables(scenario: Scenario | None, job: str) -> dict[str, str]:
    """What is set for a job besides: the syncs that a turn of a batch job outlasts have no option."""
    if scenario is None or not scenario.skip_syncs or job != "batch":
        return {}
    return {"SLICER_SHARE_SKIP_SYNCS": str(scenario.skip_syncs)}
