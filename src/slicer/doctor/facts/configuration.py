"""The configuration, as it is read here: its errors, and what each profile asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from slicer.config import profiles, serve
from slicer.config.build import builtin_profiles
from slicer.config.profiles import Config
from slicer.errors import SlicerError
from slicer.model import CPU
from slicer.record import record


@record
class ProfileFacts:
    """A profile's directives; ``error`` says why it can not be used on this machine."""

    name: str
    directives: tuple[str, ...]
    error: str
    share: str = ""  # "lock", "cap" or "both"; "": its jobs share no GPU by --share


@record
class ConfigurationFacts:
    """``error`` is the first mistake in the files, with its place; then there are no profiles."""

    error: str
    hint: str
    warnings: tuple[str, ...]
    profiles: tuple[ProfileFacts, ...]
    default_profile: str
    files: tuple[str, ...]
    place: str = ""  # what cannot be read as a file at all
    served: tuple[str, ...] = ()  # the kinds of servers of `slicer serve` that run by themselves


def gather(environ: Mapping[str, str]) -> ConfigurationFacts:
    """Reads the files, and leaves nothing in the cache."""
    try:
        config = profiles.load(environ, profiles.host(), remembers=False)
        servers = serve.load(config)
    except SlicerError as error:
        where = f"{error.where}: " if error.where else ""
        is_no_file = os.path.exists(error.where) and not _is_readable(error.where)
        place = error.where if is_no_file else ""
        return ConfigurationFacts(f"{where}{error.message}", error.hint, (), (), "", (), place)
    served = tuple(each.kind for each in servers.values() if not each.command)
    built_in = len(builtin_profiles(config.host, config.slots[CPU]))
    return ConfigurationFacts(
        error="", hint="", warnings=config.warnings,
        profiles=tuple(_profile(config, name) for name in config.names()),
        default_profile=config.default_profile,
        files=tuple(os.path.abspath(layer.path) for layer in config.layers[built_in:]), served=served,
    )  # fmt: skip


def _is_readable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _profile(config: Config, name: str) -> ProfileFacts:
    try:
        made = config.profile(name)
    except SlicerError as error:
        return ProfileFacts(name, (), str(error))
    share = "" if made.share == "off" else made.share
    return ProfileFacts(name, tuple(made.properties), "", share)
