"""Whether a route may run at all: the memory that its destinations declare must fit into the machine.

The ledger checks GPU memory, job by job. Nothing checks main memory until it is too late.
"""

from __future__ import annotations

from slicer.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.profiles import Config
    from slicer.config.routes import Route
    from slicer.model import Gpu
    from slicer.route.budget import Worksheet


def check(config: Config, route: Route) -> None:
    """Raise ConfigError, with the sum, if as many jobs as allowed could need more memory than there is."""
    declared = [each for each in route.destinations if each.memory_bytes is not None]
    if not declared:
        return
    from slicer.config.routes import source

    for problem in worksheet_here(config, route, None).problems:
        hint = f"slicer routes check {route.name} shows what would fit"
        raise ConfigError(problem, where=source(route, declared[0], "memory"), hint=hint)


def worksheet_here(config: Config, route: Route, gpus: tuple[Gpu, ...] | None) -> Worksheet:
    """The budget of a route on this machine; ``gpus`` None: they were not examined."""
    from slicer.config.route_profiles import profile_for
    from slicer.route.budget import worksheet

    profiles = {each.name: profile_for(config, route, each) for each in route.destinations}
    return worksheet(route, profiles, gpus, config.host.memory_bytes, config.slots)
