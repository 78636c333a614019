"""The sums of ``slicer history --by``, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from slicer.cli import output, say
from slicer.cli.usage import hours, waited
from slicer.columns import Line
from slicer.kernel.users import user_name
from slicer.outcome.sums import Sum
from slicer.quantity import format_mib

_HEADS = "{}<22 | RUNS> | FAILED> | GPU HOURS> | CPU HOURS> | WAITED> | LONGEST> | VRAM> | OF VRAM>"
_SHORT_UUID = 12
_FIGURES = "runs failed gpu_s cpu_s waited_median_s waited_longest_s vram_peak_mib vram_mib vram_part"


def show(
    found: list[Sum], total: Sum, by: str, number: int, indices: dict[str, int], *, as_json: bool
) -> None:
    """Print ``number`` of the sums (0: all) and the total of all. ``indices``: of the GPUs, by UUID."""
    if by == "day":
        shown = sorted(found, key=lambda each: str(each.of))[-number if number else 0 :]
    else:
        shown = found[: number or None]
    has_more = len(shown) < len(found)
    if as_json:
        sums = [output.picked(each, f"of {_FIGURES}") for each in shown]
        for each in sums if by == "user" else ():
            each |= {"of": int(each["of"]), "user": user_name(int(each["of"]))}
        whole = output.picked(total, _FIGURES)
        output.show_json({"by": by, "sums": sums, "total": whole, "has_more": has_more})
        return
    rows = [*shown, total] if len(found) > 1 else shown
    output.show(table(rows, by, indices) if found else [Line("No such jobs.")])
    if has_more:
        what = "last" if by == "day" else "first"
        say.cut(f"the {what} {number} of {len(found)}, and the sum of all")


def table(rows: Sequence[Sum], by: str, indices: dict[str, int]) -> list[Line]:
    used = hours([each.gpu_s for each in rows]), hours([each.cpu_s for each in rows])
    cells = [
        (
            _name(each.of, by, indices), str(each.runs), str(each.failed) if each.failed else "-", *figures,
            waited(each.waited_median_s), waited(each.waited_longest_s), format_mib(each.vram_peak_mib),
            "-" if each.vram_part is None else f"{each.vram_part:.0%}",
        )
        for each, figures in zip(rows, zip(*used, strict=True), strict=True)
    ]  # fmt: skip
    return output.table(_HEADS.format(by.upper()), cells)


def _name(of: str | None, by: str, indices: dict[str, int]) -> str:
    if of is None:
        return "all"
    if by == "user":
        return user_name(int(of))
    if by == "gpu":
        return f"{indices.get(of, '')} {of[:_SHORT_UUID]}".strip()
    return of or "-"
