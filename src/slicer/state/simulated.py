"""``SLICER_SIM``: the simulated GPUs. It also names the state directory of their jobs. Pure."""

from __future__ import annotations

from slicer.errors import UsageError
from slicer.quantity import QuantityError, parse_mib, size_text
from slicer.text import counted

VARIABLE = "SLICER_SIM"
DEFAULT_MIB = 24 << 10
MOST_GPUS = 64
_MOST_CHARS = 200  # of the canonical text, which is part of a file name
_EXAMPLE = "for example SLICER_SIM=4, SLICER_SIM=4x24G or SLICER_SIM=2x24G,1x80G"


def parse_spec(text: str) -> tuple[int, ...]:
    """The size of each GPU in MiB from ``4``, ``4x24G`` or ``2x24G,1x80G``. Raises UsageError."""
    sizes: list[int] = []
    for part in text.split(","):
        count, times, size = part.strip().partition("x")
        mib = _size(size, VARIABLE, _EXAMPLE) if times else DEFAULT_MIB
        sizes += [mib] * _count(count, VARIABLE, _EXAMPLE)
    return _checked(tuple(sizes), VARIABLE)


def spec_of(count: int, sizes: str | None) -> str:
    """The canonical text for ``--sim COUNT --sim-vram SIZE[,SIZE...]``. Raises UsageError.

    If there are fewer sizes than GPUs, the last one applies to all further GPUs. A size without a unit is in
    MiB.
    """
    _count(str(count), "--sim", "for example --sim 4")
    words = (f"{DEFAULT_MIB}M" if sizes is None else sizes).split(",")
    if len(words) > count:
        hint = "give at most one for each; the last counts for all that follow"
        raise UsageError(f"{len(words)} sizes for {counted(count, 'GPU')}", where="--sim-vram", hint=hint)
    words += [words[-1]] * (count - len(words))
    hint = "for example --sim-vram 24G,24G,80G"
    return canonical(_checked(tuple(_size(in_mib(word), "--sim-vram", hint) for word in words), "--sim-vram"))


def in_mib(text: str) -> str:
    """The size; without a unit it is in MiB, as in gpusched."""
    stripped = text.strip()
    return f"{stripped}M" if stripped.isascii() and stripped.isdigit() else stripped


def canonical(sizes: tuple[int, ...]) -> str:
    """``2x24G,1x80G`` from sizes in MiB: one text for all specifications with the same meaning."""
    runs: list[tuple[int, int]] = []
    for mib in sizes:
        count = runs.pop()[0] if runs and runs[-1][1] == mib else 0
        runs.append((count + 1, mib))
    return ",".join(f"{count}x{size_text(mib << 20)}" for count, mib in runs)


def _count(text: str, where: str, hint: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MOST_GPUS):
        raise UsageError(
            f"expected a number of GPUs from 1 to {MOST_GPUS}, not {text[:40]!r}", where=where, hint=hint
        )
    return int(text)


def _size(text: str, where: str, hint: str) -> int:
    try:
        mib = parse_mib(text)
    except QuantityError as error:
        raise UsageError(str(error), where=where, hint=hint) from None
    if not mib:
        raise UsageError("a GPU must have memory", where=where, hint=hint)
    return mib


def _checked(sizes: tuple[int, ...], where: str) -> tuple[int, ...]:
    if len(sizes) > MOST_GPUS:
        raise UsageError(f"{len(sizes)} GPUs, but at most {MOST_GPUS} can be simulated", where=where)
    if len(canonical(sizes)) > _MOST_CHARS:
        raise UsageError("too many GPUs of different sizes", where=where, hint="use fewer sizes")
    return sizes
