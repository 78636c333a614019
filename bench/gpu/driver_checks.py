"""What needs nothing but the driver: counts, the gate's cost, the cap, mapped memory, graphs, recovery."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from statistics import median
from typing import Any

from bench.gpu.check import Failed, Finding, Skip, check, verdict
from bench.gpu.client import METHODS
from bench.gpu.place import LIBRARY, PROGRAMS, Place, Running, tail
from slicer.gpu import open_gpus

CAP_MIB = 2048
CHUNK_MIB = 64
OUT_OF_MEMORY = 2
LONGEST_GAP_MS = 100.0
MOST_OVERHEAD = 0.01
LOAD_MS = 1.0


@check("load", "the library in a process without CUDA", "loads in less than 1 ms", limit_s=60)
def load(place: Place) -> Finding:
    number = 20 if place.brief else 200
    took: dict[str, list[float]] = {"": [], str(LIBRARY): []}
    for _ in range(number):
        for preload, found in took.items():
            began = time.perf_counter()
            subprocess.run(["/bin/true"], env={"LD_PRELOAD": preload} if preload else {}, check=True)
            found.append((time.perf_counter() - began) * 1e3)
    without, with_it = (median(found) for found in took.values())
    more = with_it - without
    return verdict(more < LOAD_MS, f"{more:.3f} ms", without_ms=without, with_ms=with_it)


@check("counts", "work of known numbers, over dlsym (ctypes)", "gated as many as done; results right")
def counts(place: Place) -> Finding:
    return _counted(place, place.client("counts", 20 if place.brief else 500), share="both")


def _counted(place: Place, command: list[str], **options: Any) -> Finding:
    done = place.run(command, **options)
    answer, sharing = done.answer(), done.sharing
    is_met = answer["is_right"] and sharing.get("gated") == answer["gated"] and not sharing.get("troubles")
    right = "right" if answer["is_right"] else "WRONG"
    found = f"{sharing.get('gated')} gated of {answer['gated']}, result {right}"
    return verdict(is_met, found, answer=answer, sharing=sharing)


@check("overhead", "5 us kernels back to back, alone, lock against off", "at most 1 % longer", limit_s=150)
def overhead(place: Place) -> Finding:
    kernels, tries, rounds = (300, 2, 1) if place.brief else (20_000, 5, 3)
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for share in ("off", "lock", "both"):
            answer = place.run(place.client("overhead", 5, kernels, tries), share=share).answer()
            at = found.setdefault(share, {"kernel_ns": [], "launch_ns": []})
            for name, values in at.items():
                values += answer[name]
    kernel = {share: median(at["kernel_ns"]) for share, at in found.items()}
    launch = {share: median(at["launch_ns"]) for share, at in found.items()}
    more = kernel["lock"] / kernel["off"] - 1
    text = f"{more:+.2%} of {kernel['off']:.0f} ns; a launch {launch['lock'] - launch['off']:+.0f} ns"
    return verdict(more <= MOST_OVERHEAD, text, kernel_ns=kernel, launch_ns=launch, samples=found)


# -- the cap ----------------------------------------------------------------------------------------------


def _cap(place: Place, how: str) -> Finding:
    done = place.run(place.client("fill", how, CHUNK_MIB), share="cap", vram_mib=CAP_MIB, timeout_s=60)
    answer = done.answer()
    if answer["code"] not in (OUT_OF_MEMORY,) and answer["got_mib"] == 0:
        raise Skip(f"this GPU refuses such allocations (CUDA error {answer['code']})")
    is_refused = answer["code"] == OUT_OF_MEMORY and done.sharing.get("refused", 0) > 0
    # Contexts count, too; a chunk or two may be lost to sizes that are rounded up.
    is_close = CAP_MIB - 1024 <= answer["got_mib"] <= CAP_MIB
    is_shown = answer["total_mib"] == CAP_MIB and answer["free_mib"] <= CAP_MIB
    text = f"{answer['got_mib']} MiB of {CAP_MIB}, then error {answer['code']}"
    is_met = is_refused and is_close and is_shown and answer["again"] == 0
    return verdict(is_met, f"{text}; shows {answer['total_mib']} MiB", answer=answer, sharing=done.sharing)


def _register_caps() -> None:
    for how in METHODS:
        expected = "refused at the cap as on a smaller card; given back, there is room again"
        check(f"cap-{how}", f"allocate until there is no more: {how}", expected)(
            lambda place, how=how: _cap(place, how)  # type: ignore[misc]
        )


_register_caps()


@check("cap-processes", "two processes of a job allocate at once", "one budget: together not beyond the cap")
def cap_processes(place: Place) -> Finding:
    command = place.client("fill_together", 2, "malloc", CHUNK_MIB)
    answer = place.run(command, share="cap", vram_mib=CAP_MIB).answer()
    text = f"{answer['got_mib']} MiB of {CAP_MIB} together, then errors {answer['codes']}"
    is_met = 0 < answer["got_mib"] <= CAP_MIB and answer["codes"] == [OUT_OF_MEMORY] * 2
    return verdict(is_met, text, answer=answer)


@check("vmm", "cuMemMap; cuMemCreate of the host's and a NUMA node's memory", "as without slicer")
def vmm(place: Place) -> Finding:
    plain = place.run(place.client("vmm"), share="off").answer()
    done = place.run(place.client("vmm"), share="both")
    answer = done.answer()
    is_same = plain["host"] == answer["host"]
    text = f"host locations {answer['host']}, without {'the same' if is_same else plain['host']}"
    right = "right" if answer["is_right"] else "WRONG"
    is_met = is_same and answer["is_right"]
    return verdict(is_met, f"{text}; result {right}", plain=plain, sharing=done.sharing)


# -- graphs, ranks ----------------------------------------------------------------------------------------


class Beside:
    """A batch job beside whatever is checked."""

    def __init__(self, place: Place, seconds: float, **options: Any) -> None:
        self._job: Running = place.start(place.client("ticks", seconds, 500), **options)
        self.pid = int(self._job.line()["pid"])

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        self._job.kill()


@check("graph", "capture and launch a graph while another job wants the turn", "right, and counted")
def graph(place: Place) -> Finding:
    with Beside(place, 30):
        done = place.run(place.client("graph", 20 if place.brief else 500), share="both")
    answer, sharing = done.answer(), done.sharing
    gated, passed = sharing.get("gated", 0), sharing.get("passed", 0)
    # Whether what is captured counts as gated, too, is not promised.
    is_counted = gated - answer["gated"] in (0, answer["captured"]) and passed >= answer["captured"]
    is_met = answer["is_right"] and is_counted
    return verdict(is_met, f"{gated} gated, {passed} passed; {answer}", answer=answer, sharing=sharing)


@check("ranks", "processes whose kernels wait for each other, beside another job", "they end", limit_s=120)
def ranks(place: Place) -> Finding:
    number = 20 if place.brief else 400
    with Beside(place, 100):
        began = time.monotonic()
        done = place.run(place.client("ranks", number, 2), share="both", timeout_s=100)
    answer = done.answer()
    text = f"{number} meetings in {time.monotonic() - began:.1f} s, codes {answer['codes']}"
    is_met = answer["codes"] == [0, 0] and answer["is_right"]
    return verdict(is_met, text, answer=answer, sharing=done.sharing)


# -- recovery ---------------------------------------------------------------------------------------------


@check("recovery", "kill -9 of the job that has the turn", "the next one works within 100 ms", limit_s=120)
def recovery(place: Place) -> Finding:
    gaps = [_gap_ms(place) for _ in range(3 if place.brief else 8)]
    known = [gap for gap in gaps if gap is not None]
    if not known:
        raise Failed("the victim never had the turn when it was killed")
    text = f"{max(known):.1f} ms at most, {median(known):.1f} ms median, of {len(known)} kills"
    return verdict(max(known) <= LONGEST_GAP_MS, text, gaps_ms=gaps)


def _gap_ms(place: Place) -> float | None:
    """From the kill to the survivor's next kernel; None if the survivor was not waiting when it came."""
    env = {"SLICER_SHARE_QUANTUM_MS": "400"}
    victim = place.start(place.client("hold", 20), env=env)
    survivor = place.start(place.client("ticks", 3, 1000), env=env)
    try:
        pid = int(victim.line()["pid"])
        survivor.line()
        time.sleep(1.0 + random.random() / 2)
        at = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        ticks = survivor.end(30).answer()["ticks"]
    finally:
        victim.kill()
        survivor.kill()
    before = [tick for tick in ticks if tick <= at]
    after = [tick for tick in ticks if tick > at]
    if not after:
        raise Failed("the survivor did nothing any more")
    if before and at - before[-1] < 20_000_000:
        return None
    return float((after[0] - at) / 1e6)


# -- what passes by ---------------------------------------------------------------------------------------


def _compiled(place: Place, *flags: str, suffix: str = "") -> str:
    """native.c, as a program or as a library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Skip("no C compiler")
    program = str(place.out / f"native{suffix}")
    command = [compiler, "-O2", "-D_GNU_SOURCE", "-o", program, str(PROGRAMS / "native.c"), *flags, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"native.c cannot be compiled: {tail(done.stderr)}")
    return program


@check("deepbind", "a plugin opened with RTLD_DEEPBIND", "runs; its work may pass by, and is not counted")
def deepbind(place: Place) -> Finding:
    plugin = _compiled(place, "-shared", "-fPIC", suffix=".so")
    done = place.run([_compiled(place), "deepbind", "100", plugin], share="both")
    is_right = done.answer()["is_right"]
    return verdict(is_right, f"ran; {done.sharing.get('gated', 0)} of 103 gated", sharing=done.sharing)


@check("native", "a C program over cuGetProcAddress, as the static runtime asks", "gated as many as done")
def native(place: Place) -> Finding:
    return _counted(place, [_compiled(place), "getproc", "200"], share="both")


@check("launch-cost", "an empty kernel's launch from C, lock against off", "a figure: no bar", limit_s=90)
def launch_cost(place: Place) -> Finding:
    program = _compiled(place)
    number = "500" if place.brief else "50000"
    found: dict[str, list[float]] = {"off": [], "lock": []}
    for _ in range(1 if place.brief else 3):
        for share, values in found.items():
            values.append(place.run([program, "launch", number], share=share).answer()["launch_ns"])
    off, lock = (median(values) for values in found.values())
    return Finding("info", f"{off:.0f} ns off, {lock:.0f} ns with the lock ({lock - off:+.0f})", found)


@check("second-gpu", "a visible set that does not begin at index 0", "its memory and work counted on its GPU")
def second_gpu(place: Place) -> Finding:
    if place.facts()["devices"] < 2:
        raise Skip("there is one GPU")
    finding = _counted(place, place.client("counts", 50), share="both", gpu="1")
    peak = finding.data["sharing"].get("peak_mib")
    state = finding.state if peak and peak[0] else "fail"
    return Finding(state, f"{finding.found}; peak {peak} MiB", finding.data)


_IDLE = """\
default_profile = "idle"
[profiles.idle]
inherits = "gpu"
idle_timeout = "3s"
on_idle = "stop"
"""


@check("idle", "two jobs on a GPU: one computes, one only has memory", "the idle one alone is ended")
def idle(place: Place) -> Finding:
    config = place.out / "idle.toml"
    config.write_text(_IDLE)
    options: dict[str, Any] = {"share": "off", "env": {"SLICER_CONFIG": str(config)}}
    busy = place.start(place.client("ticks", 15, 500, 5), **options)
    rests = place.start(place.client("ticks", 1000, 500, 1000_000), **options)  # one kernel, then it sleeps
    driver = {"busy job": busy.line()["pid"], "idle job": rests.line()["pid"], **_seen_at_work()}
    try:
        ended, worked = rests.end(30), busy.end(30)
    except Failed as why:
        raise Failed(f"{why}; the driver says {driver}") from why
    told = [each.outcome.get("ended_by") or "by itself" for each in (worked, ended)]
    text = f"busy: ended {told[0]} (exit {worked.code}); idle: {told[1]}, after {ended.wall_s:.0f} s"
    is_met = worked.code == 0 and told == ["by itself", "slicer idle"]
    return verdict(is_met, text, said=[worked.err[-500:], ended.err[-500:]], driver=driver)


def _seen_at_work() -> dict[str, Any]:
    """The pids of processes that the driver lists, and of those that worked in the last second."""
    gpus = open_gpus()
    try:
        gpus.busy()
        time.sleep(1.0)
        at_work = [None if pids is None else sorted(pids) for pids in gpus.busy().values()]
        return {"listed": sorted(each.pid for each in gpus.processes()), "at work, by GPU": at_work}
    finally:
        gpus.close()
