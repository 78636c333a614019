"""Programs that were wrapped (slicer wrap), and how they are."""

from __future__ import annotations

from collections.abc import Mapping

from slicer.config import profiles, routes
from slicer.errors import SlicerError
from slicer.record import record
from slicer.wrap import wrapping
from slicer.wrap.model import Status


@record
class WrapFacts:
    """``passed_over`` tells of records that are not believed."""

    wraps: tuple[Status, ...]
    passed_over: tuple[str, ...]


def gather(environ: Mapping[str, str]) -> WrapFacts:
    """Starts no program, and leaves nothing in the cache. Raises StateError."""
    known: tuple[str, ...] | None
    try:
        known = routes.names(profiles.load(environ, profiles.host(), remembers=False).layers)
    except SlicerError:  # which the look at the configuration tells
        known = None
    return WrapFacts(wrapping.statuses(environ, known), wrapping.warnings(environ))
