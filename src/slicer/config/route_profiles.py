"""The profile of a route's job: its destination's profile, with the destination's overrides."""

from __future__ import annotations

from slicer.config.profiles import Config, Overrides
from slicer.config.routes import Destination, Route, source
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Profile


def profile_for(config: Config, route: Route, destination: Destination) -> Profile:
    """The needs and limits of a job at the destination, without its slot. Raises SlicerError."""
    made = config.profile(destination.profile, overrides_for(config, destination))
    sources = dict(made.sources)
    if destination.vram_mib is not None:
        sources["vram"] = source(route, destination, "vram")
    if destination.memory_bytes is not None:
        sources["MemoryMax"] = source(route, destination, "memory")
    return replace(made, sources=sources)


def overrides_for(config: Config, destination: Destination) -> Overrides:
    """The destination's overrides of its profile, without its slot.

    A built-in profile's MemoryHigh= belongs to its MemoryMax=. With the destination's ``memory`` it would
    slow down a job that is allowed more, so it is removed.
    """
    assignments: tuple[str, ...] = ()
    if destination.memory_bytes is not None:
        assignments = (f"MemoryMax={destination.memory_bytes}",)
        named = config.profile(destination.profile)
        if named.sources.get("MemoryHigh", "").startswith("built-in"):
            assignments = ("MemoryHigh=infinity", *assignments)
    vram = None if destination.vram_mib is None else f"{destination.vram_mib}M"
    return Overrides(vram=vram, assignments=assignments)
