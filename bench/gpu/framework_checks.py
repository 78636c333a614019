"""Programs as people write them, with PyTorch, CuPy, Triton, JAX, nvcc: the same results, all counted."""

from __future__ import annotations

import math
from typing import Any

from bench.gpu.check import Finding, Skip, check, verdict
from bench.gpu.driver_checks import Beside
from bench.gpu.place import Done, Place

VRAM_MIB = 16384
CAP_MIB = 6144
STEPS = 20
_CLOSE = 1e-4
_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def _run(place: Place, command: list[str], share: str = "both", **options: Any) -> Done:
    options = {"vram_mib": VRAM_MIB, "timeout_s": 150, **options}
    return place.run(command, share=share, env=_DETERMINISTIC | options.pop("env", {}), **options)


def _is_same(one: Any, other: Any) -> bool:
    """Whether results agree: numbers closely, as the order of sums may differ."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=1e-6)
    return bool(one == other)


def _same_results(place: Place, name: str, *arguments: object) -> Finding:
    """The program alone without slicer's library, then with it, beside a job that wants the turn."""
    plain = _run(place, place.program(name, *arguments), "off").answer()
    with Beside(place, 140, share="lock"):
        done = _run(place, place.program(name, *arguments))
    answer, sharing = done.answer(), done.sharing
    is_same = _is_same(plain["result"], answer["result"])
    agree = "agree" if is_same else "DIFFER"
    text = f"results {agree}; {sharing.get('gated')} gated, {sharing.get('turns')} turns"
    is_met = is_same and sharing.get("gated", 0) > 0
    return verdict(is_met, text, plain=plain, answer=answer, sharing=sharing)


def _profiled(place: Place, how: str) -> Finding:
    """Results, and the gate's count against what the profiler saw of the same steps."""
    finding = _same_results(place, "torch_program.py", how, 3, STEPS, "no")
    profiled_run = place.program("torch_program.py", how, 3, STEPS, "profile")
    seen = _run(place, profiled_run, "off").answer()["launches"]
    few, many = (
        _run(place, place.program("torch_program.py", how, 3, steps, "no")).sharing.get("gated", 0)
        for steps in (0, STEPS)
    )
    gated, profiled = many - few, sum(seen.values())
    text = f"{finding.found}; {gated} gated in {STEPS} steps, the profiler saw {profiled}"
    is_met = finding.state == "pass" and gated == profiled
    return verdict(is_met, text, **finding.data, profiler=seen, gated_of_steps=gated)


_EQUAL = "results as without; gated as many as the profiler saw"


@check("torch-eager", "PyTorch, eager training steps", _EQUAL, limit_s=240, needs="torch")
def torch_eager(place: Place) -> Finding:
    return _profiled(place, "eager")


@check("torch-compile", "PyTorch, torch.compile", _EQUAL, limit_s=400, needs="torch")
def torch_compile(place: Place) -> Finding:
    return _profiled(place, "compile")


@check("torch-graphs", "PyTorch, a CUDA graph of a step", _EQUAL, limit_s=240, needs="torch")
def torch_graphs(place: Place) -> Finding:
    return _profiled(place, "graphs")


@check("triton", "a Triton kernel", "results as without", limit_s=200, needs="triton")
def triton(place: Place) -> Finding:
    return _same_results(place, "triton_program.py")


@check("cupy", "CuPy: arrays, a raw kernel, a graph", "results as without", limit_s=200, needs="cupy")
def cupy(place: Place) -> Finding:
    return _same_results(place, "cupy_program.py")


@check("jax", "JAX, jitted", "results as without", limit_s=240, needs="jax")
def jax(place: Place) -> Finding:
    return _same_results(place, "jax_program.py")


# -- out of memory ------------------------------------------------------------------------------------------

_ALLOCATORS = {
    "caching": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync",
}  # fmt: skip


def _oom(place: Place, settings: str) -> Finding:
    env = {"PYTORCH_CUDA_ALLOC_CONF": settings, "PYTORCH_ALLOC_CONF": settings} if settings else {}
    done = _run(place, place.program("torch_oom.py"), "cap", vram_mib=CAP_MIB, env=env)
    answer = done.answer()
    is_close = CAP_MIB - 2048 <= answer["got_mib"] <= CAP_MIB
    text = f"{answer['got_mib']} MiB of {CAP_MIB}, then {answer['error']}; shows {answer['total_mib']} MiB"
    is_told = "OutOfMemory" in answer["error"] and answer["total_mib"] == CAP_MIB
    is_met = is_close and is_told and answer["again"]
    return verdict(is_met, text, answer=answer, sharing=done.sharing)


def _register_allocators() -> None:
    expected = "torch's own OutOfMemoryError at the cap; freed, it goes on"
    for name, settings in _ALLOCATORS.items():
        what = f"PyTorch's allocator: {settings or 'as it is'}"
        check(f"oom-{name}", what, expected, limit_s=120, needs="torch")(
            lambda place, settings=settings: _oom(place, settings)  # type: ignore[misc]
        )


_register_allocators()


# -- ranks --------------------------------------------------------------------------------------------------


@check("gloo-ranks", "two ranks on one GPU that wait for each other", "they end", limit_s=200, needs="torch")
def gloo_ranks(place: Place) -> Finding:
    with Beside(place, 150, share="lock"):
        answer = _run(place, place.program("torch_ranks.py")).answer()
    return verdict(answer["is_right"], f"{answer}", answer=answer)


@check("nccl-capture", "an all-reduce of NCCL's in a CUDA graph", "right", limit_s=200, needs="torch")
def nccl_capture(place: Place) -> Finding:
    with Beside(place, 150, share="lock"):
        answer = _run(place, place.program("torch_nccl.py")).answer()
    if answer.get("skip"):
        raise Skip(answer["skip"])
    return verdict(answer["is_right"], f"{answer}", answer=answer)
