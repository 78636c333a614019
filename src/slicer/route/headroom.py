"""Whether a route may run at all here: the memory that its destinations declare must fit into the machine.

GPU memory is looked after by the ledger, job by job; memory by nobody, until it is too late.
"""

from __future__ import annotations

from slicer.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.profiles import Config
    from slicer.config.routes import Route


def check(config: Config, route: Route) -> None:
    """Raise ConfigError, with the sum, if as many jobs as may run could need more memory than there is."""
    declared = [each for each in route.destinations if each.memory_bytes is not None]
    if not declared:
        return
    from slicer.config.route_profiles import profile_for
    from slicer.config.routes import source
    from slicer.route.budget import worksheet

    profiles = {each.name: profile_for(config, route, each) for each in route.destinations}
    for problem in worksheet(route, profiles, None, config.host.memory_bytes, config.slots).problems:
        hint = f"slicer routes check {route.name} shows what would fit"
        raise ConfigError(problem, where=source(route, declared[0], "memory"), hint=hint)
