"""The jobs file with better declarations, taken from the jobs' peaks (E5). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slicer.queue.file import attributes
from slicer.queue.file.jobs_file import FileLine, Keys, lines, read_attributes
from slicer.queue.model import ENOUGH_LOOKS, Attributes, JobState

_STEP_MIB = 256  # a suggestion is a multiple of this
_ROOM_PERCENT = 105  # of the peak: no two runs use exactly the same


def corrected(text: str, declared: Mapping[str, int]) -> str:
    """The text of a jobs file with the declarations ``declared``: MiB on each GPU, by the job's key.

    Only the values of ``vram=`` change. Lines with ``gpus=0`` have nothing to declare. Keys that are not in
    the text are ignored. Raises JobsFileError.
    """
    keys = Keys()
    cache: dict[str, Attributes] = {}
    parts = []
    copied = 0
    for line in lines(text):
        mib = declared.get(keys.next(line.command))
        if mib is None or read_attributes(line, cache).kind.gpus == 0:
            continue
        start, end, new = _edit(line, vram_attribute(mib))
        parts += [text[copied : line.start + start], new]
        copied = line.start + end
    return "".join(parts) + text[copied:]


def enough_mib(peak_mib: int) -> int:
    """The declaration in MiB for a job whose peak was ``peak_mib``."""
    return -(-peak_mib * _ROOM_PERCENT // (100 * _STEP_MIB)) * _STEP_MIB


def vram_attribute(mib: int) -> str:
    """As in "vram=18G" and "vram=17664M"."""
    return f"vram={mib // 1024}G" if mib % 1024 == 0 else f"vram={mib}M"


def proposals(states: Iterable[JobState], tolerance: float) -> dict[str, int]:
    """The declarations that should change: the new MiB on each GPU, by the job's key.

    A declaration is too large if the peak is below it by more than the fraction ``tolerance``. After too few
    looks, neither a lower nor a first declaration is proposed.
    """
    found = {state.key: _proposal(state, tolerance) for state in states}
    return {key: mib for key, mib in found.items() if mib is not None}


def _proposal(state: JobState, tolerance: float) -> int | None:
    if state.status == "oom":
        return state.next_vram_mib
    peak = max(state.vram_peak_mib, default=0)
    if state.status != "ok" or peak <= 0:
        return None
    wanted = enough_mib(peak)
    declared = state.vram_mib
    is_well_known = state.looks >= ENOUGH_LOOKS
    if declared is None:
        return wanted if is_well_known else None
    if state.verdict == "under-declared":
        return wanted
    if state.verdict == "over-declared" and is_well_known:
        return wanted if wanted < declared and peak < declared * (1 - tolerance) else None
    if not state.ooms:
        return None
    # The line declares too little: the job ran out of memory before it succeeded with more.
    return wanted if is_well_known else -(-declared // _STEP_MIB) * _STEP_MIB


def _edit(line: FileLine, attribute: str) -> tuple[int, int, str]:
    """The edit of a line: the first and last offset, and the new text."""
    if line.inside is None:
        return 0, 0, f"[{attribute}] "
    words = attributes.words(line.inside)
    vram = [word for word in words if word.key == "vram"]
    if vram:  # the last one counts
        start = 1 + vram[-1].offset
        return start, start + len(vram[-1].text), vram[-1].text[: len("vram=")] + attribute[len("vram=") :]
    if not words:
        return 1, 1, attribute
    start = 1 + words[0].offset
    return start, start, f"{attribute} "
