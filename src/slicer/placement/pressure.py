"""Whether the machine stalls too much for more work, by the kernel's pressure stall information. Pure."""

from __future__ import annotations

from slicer.quantity import parse_percent
from slicer.record import record

RESOURCES = ("memory", "io", "cpu")
_WINDOWS = {"10s": "avg10", "1m": "avg60", "5m": "avg300"}  # that the kernel averages over


@record
class StallLimit:
    """The most that tasks may stall for a resource before work is held up."""

    resource: str
    percent: float  # of the time in which some task stalls
    window: str

    @property
    def path(self) -> str:
        return f"/proc/pressure/{self.resource}"


def parsed(text: str) -> StallLimit | None:
    """As in "memory 20% 10s"; None for "off". Raises ValueError."""
    if text == "off":
        return None
    resource, percent, window = text.split()
    least = parse_percent(percent) / 100
    if resource not in RESOURCES or window not in _WINDOWS or not 0 < least < 100:
        raise ValueError(text)
    return StallLimit(resource, least, window)


def stall(most: StallLimit, said: str) -> str:
    """Why nothing should begin, in words; "" if something may. ``said``: the file, "" if there is none."""
    averages = dict(word.partition("=")[::2] for word in said.partition("\n")[0].split()[1:])
    percent = float(averages.get(_WINDOWS[most.window], 0.0))
    if percent <= most.percent:
        return ""
    return f"the machine stalls for {most.resource} {percent:.0f}% of the time (more than {most.percent:g}%)"
