"""``slicer install --serve NAME``: a configured server as a socket and a service of systemd."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator

from slicer.backend import feature_units, serve_units
from slicer.backend.install_units import InstallPlan, refuse_nixos
from slicer.backend.serve_units import Units
from slicer.backend.unit_files import Action, is_plain, state
from slicer.cli import common, install_broker, say
from slicer.cli.install_words import Way, carry_out
from slicer.cli.serve_look import beside, need_aiohttp
from slicer.columns import Line
from slicer.config import files
from slicer.config import serve as configured
from slicer.config.serve import Server
from slicer.doctor.facts.host import gather_session
from slicer.errors import SlicerError, UsageError
from slicer.kernel import is_elsewhere, on_host
from slicer.text import quote
from slicer.wrap import look
from slicer.wrap.terms import WrapRefused


def act(name: str | None, run_as: str | None, way: Way, *, is_alone: bool) -> int:
    """Do what --serve and --as ask for. ``is_alone``: no other option asks for more. Raises SlicerError."""
    if name is None or (run_as is not None and (way.is_user or way.removing)):
        raise UsageError("only valid for a system service", where="--as", hint="add --serve NAME")
    if not is_alone:
        raise UsageError("cannot be combined", where="--serve", hint="call slicer install twice")
    if way.removing:
        return carry_out(_taken_away(way, name), way, list)
    units = _wanted(way, name, run_as)
    return carry_out(_plan(way, (units,)), way, lambda: _next(units))


def _wanted(way: Way, name: str, run_as: str | None) -> Units:
    """The units of a server, and of those at the same address."""
    if not way.is_user:
        refuse_nixos("serve")
    need_aiohttp()
    units = _units(way, name, serve_units.run_as_of(way.folder, name) if run_as is None else run_as)
    for each in units.servers:  # servers at one address have one socket
        if each.name != units.name and each.name in serve_units.there(way.folder):
            message = f"{each.name} listens at the same address, and its unit also serves {units.name}"
            hint = f"slicer install {'--user ' if way.is_user else ''}--serve {quote(each.name)} renews it"
            raise UsageError(message, where="--serve", hint=hint)
    return units


def _taken_away(way: Way, name: str) -> InstallPlan:
    there = serve_units.there(way.folder)
    if name not in there:
        hint = f"installed: {', '.join(there)}" if there else "none is installed"
        raise UsageError(f"no server with this name is installed: {name!r:.60}", where="--serve", hint=hint)
    return _going(way, (name,))


def there(way: Way) -> Iterator[InstallPlan]:
    """The plan to update the units of installed servers, or to remove them."""
    names = serve_units.there(way.folder)
    if way.removing:
        names = tuple(name for name in names if not _is_of_another(way, name))
    if names:
        yield _going(way, names) if way.removing else _plan(way, _again(way, names))


def _is_of_another(way: Way, name: str) -> bool:
    program = serve_units.program_of(way.folder, name)
    if is_elsewhere() or program == _own_path() or not os.access(program, os.X_OK):
        return False
    say.line(f"{serve_units.service_of(name)} belongs to another slicer ({program}) and stays")
    return True


def _again(way: Way, names: tuple[str, ...]) -> tuple[Units, ...]:
    """The units of installed servers. Units of a server that the configuration lacks stay as they are."""
    found = []
    for name in names:
        try:
            found.append(_units(way, name, serve_units.run_as_of(way.folder, name)))
        except UsageError as error:
            hint = f"slicer install {'--user ' if way.is_user else ''}--remove --serve {quote(name)}"
            say.line(f"{serve_units.service_of(name)} stays as it is: {error.message} ({hint})")
    return tuple(found)


def _units(way: Way, name: str, run_as: str) -> Units:
    """Raises UsageError if the configuration has no such server, ConfigError, SlicerError."""
    config = common.config()
    server = configured.find(config, name)
    _refuse_unseen(way, server)
    group = (server, *beside(server, configured.load(config).values()))
    if run_as and not is_plain(run_as):
        raise UsageError("a unit cannot name this user", where="--as", hint="use the plain user name")
    try:
        if run_as:
            pwd.getpwnam(run_as)
    except KeyError:
        raise UsageError(f"no such user: {run_as:.60}", where="--as", hint="see getent passwd") from None
    return Units(server.name, group, program(way), way.is_user, run_as)


def _refuse_unseen(way: Way, server: Server) -> None:
    """The service reads fewer files than this command may: neither SLICER_CONFIG's nor another user's."""
    seen = [f"{on_host(files.SYSTEM_DIR)}/"]
    seen += [files.user_file(os.environ)] if way.is_user else []
    source = server.sources.get("kind", "")
    if not any(path and source.startswith(path) for path in seen):
        path = seen[-1] if way.is_user else f"{files.SYSTEM_DIR}/config.toml"
        message = f"the service would not find [serve.{server.name}] there"
        raise SlicerError(message, where=source, hint=f"describe it in {path}")


def program(way: Way) -> str:
    """This slicer's path for a unit. Raises SlicerError."""
    if not way.is_user:
        return install_broker.program("slicer")
    if path := _own_path():
        return path
    raise SlicerError("the path of this slicer is unknown", hint="call slicer by its full path")


def _own_path() -> str:
    """The path by which this slicer was called; "" if unknown."""
    try:
        return look.own_path(sys.argv[0])
    except WrapRefused:
        return ""


def _plan(way: Way, all_units: tuple[Units, ...]) -> InstallPlan:
    actions: list[Action] = []
    commands = [way.reload]
    for units in all_units:
        made = serve_units.actions(units, way.folder)
        actions += made
        is_changed = any(state(action) != "current" for action in made)
        commands += serve_units.enable(units, is_changed=is_changed)
    return InstallPlan(tuple(actions), (), tuple(commands), way.is_user)


def _going(way: Way, names: tuple[str, ...]) -> InstallPlan:
    actions: list[Action] = []
    stops: list[tuple[str, ...]] = []
    for name in names:
        for unit in (serve_units.socket_of(name), serve_units.service_of(name)):
            actions.append(Action("", f"{way.folder}/{unit}", f"slicer serve {name}"))
        stops += serve_units.disable(name, is_user=way.is_user)
    return InstallPlan((), tuple(actions), (way.reload,), way.is_user, tuple(stops))


def _next(units: Units) -> list[Line]:
    where = ", ".join(dict.fromkeys(address for each in units.servers for address in each.listen))
    scope = "--user " if units.is_user else ""
    lines = [
        f"{units.name}: listens at {where}; the first request starts it, and it exits when it is idle",
        f"see: slicer status; journalctl {scope}-u {units.service}; slicer serve {units.name} --dry-run",
    ]
    if units.run_as not in ("", "root") and feature_units.is_there("broker"):
        lines.append("the broker accepts a service's jobs only if the policy has allow_services = true")
    if units.is_user and not gather_session(os.geteuid()).lingers:
        lines.append("it ends at your last logout, unless you linger: loginctl enable-linger")
    return list(map(Line, lines))
