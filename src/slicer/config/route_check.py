"""Whether routes make sense beside profiles and each other. Imported only where a file has changed."""

from __future__ import annotations

from slicer.config.routes import load, source
from slicer.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import AnyConfig, Destination, Route


def check(config: AnyConfig) -> None:
    """Raise ConfigError for a route that does not make sense, alone or beside profiles and others."""
    owners: dict[str, str] = {}
    for route in load(config).values():
        for each in route.destinations:
            _check_profile(route, each, config)
            own = f"route {route.name}, destination {each.name}"
            other = owners.setdefault(each.slot or own, own)
            if other != own:
                where = source(route, each, "max_jobs")
                message = f"its slot {each.slot} is that of {other} too"
                raise ConfigError(message, where=where, hint="give one of them another name")


def _check_profile(route: Route, each: Destination, config: AnyConfig) -> None:
    where = source(route, each, "profile")
    if where == "default":
        where = source(route, each)
    if each.profile not in config.names():
        hint = f"known: {', '.join(config.names())}"
        raise ConfigError(f"profile: there is no profile {each.profile!r:.60}", where=where, hint=hint)
    gpus = config.profile(each.profile).gpus
    if each.mode == "gpu" and not gpus and not each.vram_mib:
        message = f"profile {each.profile} wants no GPU, and {each.name} is for GPU jobs"
        raise ConfigError(message, where=where, hint='add vram = "…", or name a profile with gpus')
    if each.mode == "cpu" and gpus:
        message = f"profile {each.profile} wants GPUs, and {each.name} is for CPU jobs"
        raise ConfigError(message, where=where, hint="name a profile without gpus, gpu and vram")
