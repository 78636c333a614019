"""Lines of a route's configuration as somebody would write them. Pure."""

from __future__ import annotations

import json
import string

from slicer.route import metric_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import Destination, Route

_BARE = frozenset(string.ascii_letters + string.digits + "_-")


def bound_lines(route: Route, destination: Destination, probe: int, value: float) -> tuple[str, ...]:
    """The lines that make ``value``, rounded down, a destination's bound for the probe of that number."""
    texts = [
        metric_text.exact(each.kind, bound)
        for each, bound in zip(route.probes, destination.up_to, strict=True)
    ]
    texts[probe] = metric_text.threshold(route.probes[probe].kind, value)[0]
    written = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    if is_two_way(route):
        return table(route.name), f"threshold = {written}"
    return destination_table(route, destination), f"up_to = {written}"


def destination_table(route: Route, destination: Destination) -> str:
    """The heading of a destination's table."""
    keys = (destination.name,) if is_two_way(route) else ("to", destination.name)
    return table(route.name, *keys)


def is_two_way(route: Route) -> bool:
    """Whether the file says "gpu", "cpu" and "threshold", and not ``[routes.NAME.to.…]``."""
    return not any(source.startswith("to.") for source in route.sources)


def table(route: str, *keys: str) -> str:
    """The heading of a table: ``[routes.whisper.gpu]``."""
    return f"[{'.'.join(['routes', *map(_key, (route, *keys))])}]"


def _key(name: str) -> str:
    return name if name and _BARE.issuperset(name) else json.dumps(name)
