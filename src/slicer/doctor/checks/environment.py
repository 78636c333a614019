"""What to say of how slicer is called, and of programs beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slicer.doctor.facts.environment import EnvironmentFacts
from slicer.doctor.facts.others import OthersFacts
from slicer.doctor.kinds import finding
from slicer.doctor.model import Finding, Verdict
from slicer.text import quote


def environment(facts: EnvironmentFacts) -> Verdict:
    """PATH, sudo and variables."""
    program = facts.program or (facts.on_path[0] if facts.on_path else "")
    shown = (
        ("this slicer", facts.program or "python -m slicer"), ("on PATH", ", ".join(facts.on_path) or "none"),
        ("its Python", facts.prefix), *((f"${name}", value) for name, value in facts.variables),
    )  # fmt: skip
    return Verdict("environment", program or "python -m slicer", shown, tuple(_environment(facts)))


def _environment(facts: EnvironmentFacts) -> Iterator[Finding]:
    said = dict(facts.variables)
    skipped = [name for name in ("SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK") if said.get(name, "0") != "0"]
    if skipped:
        yield finding("gpu-lock-skipped", ", ".join(skipped), f"unset {' '.join(skipped)}")
    if "SLICER_LEASE" not in said and said.get("GPU_LOCK_HELD", "0") != "0":
        yield finding("gpu-lock-claimed", f"GPU_LOCK_HELD={said['GPU_LOCK_HELD']}", "unset GPU_LOCK_HELD")
    if len(facts.on_path) > 1:
        yield finding("several-slicers", ", ".join(facts.on_path), "which -a slicer")
    if facts.is_under_sudo:
        yield finding("under-sudo", "sudo started this slicer")


def others(facts: OthersFacts) -> Verdict:
    """Docker, and scripts that lock the GPUs."""
    shown = (("docker", "yes" if facts.has_docker else "no"), ("GPU lock of scripts", facts.lock or "none"))
    summary = "seen: docker" if facts.has_docker else "nothing in the way"
    return Verdict("others", summary, shown, tuple(_others(facts)))


def _others(facts: OthersFacts) -> Iterator[Finding]:
    if facts.lock_problem:
        mend = f"ls -ld {quote(facts.lock)} {quote(facts.lock.rpartition('/')[0] or '/')}"
        yield finding("gpu-lock-unusable", f"{facts.lock} {facts.lock_problem}", mend)
    if facts.lock_holder:
        name = f" ({facts.lock_holder_name})" if facts.lock_holder_name else ""
        what = f"pid {facts.lock_holder}{name} holds {facts.lock}"
        yield finding("gpu-lock-held", what, f"ps -fp {facts.lock_holder}")
    if facts.has_docker:
        yield finding("docker-is-outside", "docker is installed", "docker run --cgroup-parent=gpu.slice …")
