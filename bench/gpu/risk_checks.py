"""What is riskiest, for the first hour on a GPU, in this order: what holds up a service, the cap's edges."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

from bench.gpu.check import Finding, Skip, check, verdict
from bench.gpu.driver_checks import CAP_MIB
from bench.gpu.place import Place, Running

SERVICE: dict[str, Any] = {"priority": 10}
TICKS = (500, 5)  # kernels of so many µs, and pauses of so many ms: without these no lower priority computes
WINDOW_MS, OVERTAKE_MS = 1.0, 10.0
RUN_S = 5.0


def gaps(place: Place, beside: Callable[[], Running] | None, **options: Any) -> dict[str, float]:
    """How long a service waits for each of its kernels, in ms, beside another job (None: alone)."""
    seconds = 1.0 if place.brief else RUN_S
    with ExitStack() as jobs:
        if beside is not None:
            other = beside()
            jobs.callback(other.kill)
            other.line()
        service = place.start(place.client("ticks", seconds, *TICKS), **options)
        jobs.callback(service.kill)
        service.line()
        found = [took / 1e6 for took in service.end(seconds + 60).answer()["took"]]
    if len(found) < 20:
        raise Skip(f"only {len(found)} kernels of the service were done")
    cuts = quantiles(found, n=100)
    return {"p50": median(found), "p90": cuts[89], "p99": cuts[98], "max": max(found)}


def compared(place: Place, start: Callable[..., Running], most_ms: float) -> Finding:
    """A service alone, beside the job without a lock, and with one. Its P99 may grow by ``most_ms``."""
    found = {
        "alone": gaps(place, None, share="lock", **SERVICE),
        "unmanaged": gaps(place, lambda: start(share="off"), share="off"),
        "lock": gaps(place, lambda: start(share="lock"), share="lock", **SERVICE),
    }
    text = "; ".join(
        f"{name}: " + ", ".join(f"{part} {ms:.1f}" for part, ms in each.items()) + " ms"
        for name, each in found.items()
    )
    grown = found["lock"]["p99"] - found["alone"]["p99"]
    return verdict(grown <= most_ms, text, gaps_ms=found)


_BAR = f"with the lock P99 at most {OVERTAKE_MS + WINDOW_MS:.0f} ms longer than alone"


@check("risk-ranks", "a service beside ranks that launch unequally often", _BAR, limit_s=120)
def ranks(place: Place) -> Finding:
    return compared(
        place, lambda **how: place.start(place.client("ranks", 100_000, 2, 7), **how), OVERTAKE_MS + WINDOW_MS
    )


@check("risk-nccl", "NCCL over 2 GPUs, unequal ranks", "right, and ends", limit_s=240, needs="torch")
def nccl(place: Place) -> Finding:
    if place.facts()["devices"] < 2:
        raise Skip("there is one GPU")
    with ExitStack() as jobs:
        beside = place.start(place.client("ticks", 200, *TICKS), share="lock", gpu="0", **SERVICE)
        jobs.callback(beside.kill)
        beside.line()
        done = place.run(place.program("torch_unequal.py"), share="lock", gpu="0,1", timeout_s=200)
    answer = done.answer()
    if answer.get("skip"):
        raise Skip(answer["skip"])
    is_met = answer["is_right"] and not done.sharing.get("undrained")
    return verdict(is_met, f"{answer}; undrained {done.sharing.get('undrained')}", answer=answer)


def _register_copies() -> None:
    """Decides whether large copies of pageable memory may pass, and whether those of pinned memory should."""
    for kind in ("pageable", "pinned", "small"):
        check(f"risk-copy-{kind}", f"a service beside a job that copies ({kind})", _BAR, limit_s=120)(
            lambda place, kind=kind: compared(  # type: ignore[misc]
                place,
                lambda **how: place.start(place.client("copying", 3600, kind), **how),
                OVERTAKE_MS + WINDOW_MS,
            )
        )


_register_copies()


@check("risk-async", "cudaMallocAsync without syncs, under a cap", "stays within the cap; refuses nothing")
def no_sync(place: Place) -> Finding:
    done = place.run(place.client("unsynced", 200), share="cap", vram_mib=CAP_MIB, timeout_s=60)
    answer, sharing = done.answer(), done.sharing
    is_met = answer["most_mib"] <= CAP_MIB and not sharing.get("got_past_cap") and answer["codes"] == [0]
    text = f"{answer['most_mib']} MiB reserved at most, codes {answer['codes']}"
    return verdict(is_met, text, answer=answer, sharing=sharing)


@check("risk-throttled", "a service beside a job that runs 10 ms of each 100", _BAR, limit_s=120)
def throttled(place: Place) -> Finding:
    is_over = threading.Event()

    def start(**how: Any) -> Running:
        job = place.start(place.client("hold", 3600), **how)
        pid = int(job.line()["pid"])
        threading.Thread(target=throttle, args=(pid, is_over), daemon=True).start()
        job.line = lambda: {"pid": pid}  # type: ignore[method-assign]
        return job

    try:
        return compared(place, start, OVERTAKE_MS + 5 * WINDOW_MS)
    finally:
        is_over.set()


def throttle(pid: int, is_over: threading.Event) -> None:
    """As a small CPUQuota does it."""
    try:
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.09)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
    except ProcessLookupError:
        return


@check("risk-jit", "a service beside processes whose first launches compile", _BAR, limit_s=120)
def jit(place: Place) -> Finding:
    return compared(
        place, lambda **how: place.start(place.client("jitting", 3600), **how), OVERTAKE_MS + WINDOW_MS
    )


@check("risk-exit", "20 programs end with work in flight, beside a service", "each ends well", limit_s=120)
def exits(place: Place) -> Finding:
    with ExitStack() as jobs:
        service = place.start(place.client("ticks", 110, *TICKS), share="lock", **SERVICE)
        jobs.callback(service.kill)
        service.line()
        codes = [place.run(place.client("leave"), share="both", timeout_s=30).code for _ in range(20)]
    return verdict(not any(codes), f"exit codes {sorted(set(codes))}", codes=codes)


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Skip(f"no {name}")
    return found


@check("risk-profiler", "under nsys, beside a service", "results right, and ends", limit_s=200)
def profiler(place: Place) -> Finding:
    nsys = [_tool("nsys"), "profile", "--force-overwrite=true", f"--output={place.out / 'nsys'}"]
    with ExitStack() as jobs:
        service = place.start(place.client("ticks", 150, *TICKS), share="lock", **SERVICE)
        jobs.callback(service.kill)
        service.line()
        done = place.run([*nsys, *place.client("counts", 200)], share="both", timeout_s=150)
    return verdict(done.answer()["is_right"], f"{done.sharing.get('gated')} gated", sharing=done.sharing)
