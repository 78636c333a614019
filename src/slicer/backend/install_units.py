"""Installs units, completion and manual pages for systemd, shells and man, and removes them again.

Everything goes below ``/usr/local`` (a user's own below ``~/.local/share``), where all of these look for the
administrator's installations: ``systemctl edit`` keeps its changes in ``/etc``, and these files stay
slicer's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from slicer.backend import closed_shop, feature_units, is_booted, slice_limits
from slicer.backend.closed_shop import has_unit
from slicer.backend.unit_files import (
    SYSTEM_UNITS,
    Action,
    FileResult,
    State,
    failed,
    install,
    is_ours,
    make_directory,
    read,
    state,
    uninstall,
    with_program,
)
from slicer.config import slices
from slicer.config.files import SYSTEM_DIR
from slicer.config.profiles import host
from slicer.errors import SlicerError
from slicer.kernel import home, on_host
from slicer.model import SLICES
from slicer.record import record, replace
from slicer.state import statedir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.slices import Limits

Runner = Callable[[tuple[str, ...]], "Ran"]
_PREFIX = "/usr/local"
_PACKAGED = "/usr"  # the prefix of distributions' packages
_NIXOS = "/etc/NIXOS"
_SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Source below src/slicer/, destination below the prefix, description.
_SYSTEM = (
    ("_units/system/gpu.slice", "lib/systemd/system/gpu.slice", "slice of GPU jobs"),
    ("_units/system/cpu.slice", "lib/systemd/system/cpu.slice", "slice of CPU jobs"),
    ("_units/user/gpu.slice", "lib/systemd/user/gpu.slice", "slice of GPU jobs, for user managers"),
    ("_units/user/cpu.slice", "lib/systemd/user/cpu.slice", "slice of CPU jobs, for user managers"),
    ("_units/catalog/slicer.catalog", "lib/systemd/catalog/slicer.catalog", "explanations for journalctl -x"),
)
_ZSH = "share/zsh/site-functions/_slicer"
_FISH = "share/fish/vendor_completions.d/slicer.fish"
_SHELLS = (
    ("_completions/slicer.bash", "share/bash-completion/completions/slicer", "completion for bash"),
    ("_completions/_slicer", _ZSH, "completion for zsh"),
    ("_completions/slicer.fish", _FISH, "completion for fish"),
)
# fish looks below /usr/local only if XDG_DATA_DIRS names it, which is not the case over ssh.
_FISH_OF_ADMIN = "/etc/fish/completions/slicer.fish"
_ZSH_OF_DEBIAN = "share/zsh/vendor-completions/_slicer"
_DELEGATION = (
    "_units/system/user@.service.d/50-slicer-delegate.conf",
    "lib/systemd/system/user@.service.d/50-slicer-delegate.conf",
    "IOWeight and AllowedCPUs for user managers",
)
_USER = (
    ("_units/user/gpu.slice", "systemd/user/gpu.slice", "slice of your GPU jobs"),
    ("_units/user/cpu.slice", "systemd/user/cpu.slice", "slice of your CPU jobs"),
    ("_completions/slicer.bash", "bash-completion/completions/slicer", "completion for bash"),
    ("_completions/slicer.fish", "fish/vendor_completions.d/slicer.fish", "completion for fish"),
)
# For users' ledgers, where /run/lock is not open to all.
_MOUNT = "run-slicer.users.mount"
_MOUNT_ENABLED = f"/etc/systemd/system/local-fs.target.wants/{_MOUNT}"
_USERS_PLACE = (f"_units/system/{_MOUNT}", f"lib/systemd/system/{_MOUNT}", "place of users' ledgers")
_SYSTEM_COMMANDS = (
    ("journalctl", "--update-catalog"),
    ("systemctl", "daemon-reload"),
)
_CHANGED = ("created", "updated", "overwritten", "removed")
_USER_COMMANDS = (("systemctl", "--user", "daemon-reload"),)


@record
class InstallPlan:
    actions: tuple[Action, ...]
    unwanted: tuple[Action, ...]  # of an earlier configuration, or a package's by now: to be removed
    commands: tuple[tuple[str, ...], ...]
    user: bool  # whether it is for the caller's own user manager
    stops: tuple[tuple[str, ...], ...] = ()  # commands to run before the files are removed
    settings: str = ""  # the administrator's configuration directory to create; "": none


@record
class Ran:
    """The result of one command. ``exit_code`` is None if it was not run; ``output`` is the reason."""

    command: tuple[str, ...]
    exit_code: int | None
    output: str


@record
class InstallReport:
    """The work that was done. ``made``: new directories."""

    files: tuple[FileResult, ...]
    commands: tuple[Ran, ...]
    made: tuple[str, ...] = ()


def plan(
    *,
    user: bool = False,
    user_delegation: bool = False,
    environ: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    broker: str = "",
    program: str = "",
) -> InstallPlan:
    """What to install on this machine. Touches nothing.

    ``user`` is for the caller's own user manager alone, below $XDG_DATA_HOME. ``user_delegation`` adds the
    drop-in that lets all user managers set IOWeight and AllowedCPUs. ``limits`` of the slices become drop-ins
    (see :func:`configured`); None leaves existing ones unchanged. ``broker`` is the program of the broker,
    whose units are to be installed, too; "": they are left out. ``program``: the same of the slicer that
    resumes detached queues. Raises SlicerError if both user and user_delegation are requested.
    """
    if user and user_delegation:
        message = "delegation to user managers is a system setting, not a user's"
        raise SlicerError(message, hint="use either --user or --user-delegation")
    top = data_home(os.environ if environ is None else environ) if user else on_host(_PREFIX)
    actions: list[Action] = []
    unwanted: list[Action] = []
    table = _table(user=user, user_delegation=user_delegation)
    programs = {
        feature_units.BROKER_SOCKET: (feature_units.BROKER, broker),
        feature_units.BROKER_SERVICE: (feature_units.BROKER, broker),
        feature_units.QUEUES: (feature_units.PROGRAM, program),
    }
    if program:
        table = (*table, *feature_units.queues_table(user=user))
    for source, place, what in (*table, *(feature_units.table("broker") if broker else ())):
        path = on_host(_FISH_OF_ADMIN) if place == _FISH else os.path.join(top, place)
        action = Action(os.path.join(_SOURCES, source), path, what)
        if not user and _is_packaged(action, place):
            unwanted.append(action)
        else:
            packaged, ours = programs.get(os.path.basename(place), ("", ""))
            actions.append(with_program(action, packaged, ours))
    for each in [] if limits is None else _limits(limits, top, user=user):
        (actions if each.content else unwanted).append(each)
    enable = feature_units.enable_queues(user=user) if program else ()
    if user:
        return InstallPlan(tuple(actions), tuple(unwanted), (*_USER_COMMANDS, *enable), user)
    commands = (*_SYSTEM_COMMANDS, *enable, *(feature_units.enable("broker") if broker else ()))
    if _USERS_PLACE in table:
        commands = (*commands, ("systemctl", "enable", "--now", _MOUNT))
    return InstallPlan(tuple(actions), tuple(unwanted), commands, user, settings=on_host(SYSTEM_DIR))


def going(made: InstallPlan, *, only_broker: bool = False) -> InstallPlan:
    """What to remove of a plan with ``broker``: all of it, or only the broker. Touches nothing.

    What was switched on is switched off before its files are removed.
    """
    disable = () if only_broker else feature_units.disable_queues(os.environ, user=made.user)
    if made.user:
        return replace(made, commands=_USER_COMMANDS, stops=disable)
    stops = (*disable, *(feature_units.disable("broker") if feature_units.is_there("broker") else ()))
    if not only_broker and os.path.lexists(on_host(_MOUNT_ENABLED)):
        stops = (*stops, ("systemctl", "disable", _MOUNT))  # only at the next boot: jobs hold leases there
    names = {os.path.basename(name) for _, name, _ in feature_units.table("broker")}

    def chosen(actions: tuple[Action, ...]) -> tuple[Action, ...]:
        ours = [action for action in actions if os.path.basename(action.destination) in names]
        if only_broker:
            return tuple(ours)
        return tuple(each for each in actions if each not in ours or os.path.lexists(each.destination))

    actions, unwanted = chosen(made.actions), chosen(made.unwanted)
    if only_broker:
        made = replace(made, settings="")
    commands = _SYSTEM_COMMANDS[-1:] if only_broker else _SYSTEM_COMMANDS
    return replace(made, actions=actions, unwanted=unwanted, commands=commands, stops=stops)


def _table(*, user: bool, user_delegation: bool) -> tuple[tuple[str, str, str], ...]:
    """The possible files: source below src/slicer/, destination below the prefix, description."""
    if user:
        return (*_USER, *_man_pages("man"))
    files = (*_SYSTEM, *_SHELLS, *_man_pages("share/man"))
    is_there = os.path.lexists(on_host(f"{SYSTEM_UNITS}/{_MOUNT}"))
    if is_there or not statedir.is_open_to_all(on_host(statedir.PUBLIC_DIRS[0])):
        files = (*files, _USERS_PLACE)
    return (*files, _DELEGATION) if user_delegation else files


def _man_pages(folder: str) -> tuple[tuple[str, str, str], ...]:
    pages = os.path.join(_SOURCES, "_man")
    names = sorted(name for name in os.listdir(pages) if name[-2:-1] == ".") if os.path.isdir(pages) else ()
    return tuple(
        (f"_man/{name}", f"{folder}/man{name[-1]}/{name}", f"manual page {name[:-2]}({name[-1]})")
        for name in names
    )


def configured(
    *, environ: Mapping[str, str], user: bool = False, **options: Any
) -> tuple[InstallPlan, tuple[str, ...]]:
    """:func:`plan` with the configuration's limits of the slices, and warnings for the user.

    Raises ConfigError.
    """
    limits, warnings = slices.read(environ, host(), user=user)
    return plan(user=user, environ=environ, limits=limits, **options), warnings


def _is_packaged(action: Action, place: str) -> bool:
    """Whether a package installed the same file. A second one would hide that, and miss its updates."""
    for each in (_ZSH, _ZSH_OF_DEBIAN) if place == _ZSH else (place,):
        packaged = on_host(f"{_PACKAGED}/{each}")
        found = read(packaged)
        if found is None:
            is_same = os.path.lexists(f"{packaged}.gz")  # a manual page
        else:
            is_same = is_ours(found) or found == read(action.source)
        if is_same:
            return True
    return False


def _limits(limits: Limits, top: str, *, user: bool) -> list[Action]:
    """A drop-in for each slice; without content if the configuration sets no limit."""
    folder = os.path.join(top, "systemd/user" if user else "lib/systemd/system")
    return [
        Action(
            "",
            os.path.join(folder, f"{name}.slice.d", slice_limits.NAME),
            f"limits of {name}.slice, from the configuration",
            slice_limits.drop_in(name, limits[name], user=user) if name in limits else b"",
        )
        for name in SLICES
    ]


def closed_plan(*, only_there: bool = False) -> InstallPlan:
    """The files of a closed shop. ``only_there``: only those that exist."""
    job_runners = (unit for unit in closed_shop.JOB_RUNNERS if only_there or has_unit(unit))
    made = closed_shop.actions((closed_shop.SLICE, *job_runners))
    if only_there:
        made = tuple(action for action in made if os.path.lexists(action.destination))
    return InstallPlan(made, (), closed_shop.COMMANDS if made else (), user=False)


def feature_plan(feature: str, program: str, *, removing: bool) -> InstallPlan:
    """The units of a feature (:mod:`slicer.backend.feature_units`), to install or to remove."""
    kept: dict[bool, list[Action]] = {False: [], True: []}  # by whether a package has them
    for source, place, what in feature_units.table(feature):
        action = Action(os.path.join(_SOURCES, source), os.path.join(on_host(_PREFIX), place), what)
        kept[_is_packaged(action, place)].append(with_program(action, feature_units.PROGRAM, program))
    commands = _SYSTEM_COMMANDS[-1:]
    if removing:
        stops = feature_units.disable(feature)
        return InstallPlan((*kept[False], *kept[True]), (), commands, user=False, stops=stops)
    enable = feature_units.enable(feature)
    return InstallPlan(tuple(kept[False]), tuple(kept[True]), (*commands, *enable), user=False)


def refuse_nixos(setting: str) -> None:
    """Raise SlicerError on NixOS, where modules do all this: with ``setting`` of the configuration."""
    if os.path.exists(on_host(_NIXOS)):
        hint = f"set programs.slicer.{setting} in the configuration: docs/nixos.md"
        raise SlicerError("NixOS uses only the units that its modules install", hint=hint)


def states(plan: InstallPlan) -> tuple[tuple[Action, State], ...]:
    """The state of each file of a plan (see :func:`slicer.backend.unit_files.state`). Touches nothing.

    For existing unwanted files: outdated, or edited. Raises SlicerError for a file that cannot be read.
    """
    wanted = [(action, state(action)) for action in plan.actions]
    found = [(action, state(action, is_wanted=False)) for action in plan.unwanted]
    return (*wanted, *((action, how) for action, how in found if how != "missing"))


def apply(plan: InstallPlan, *, force: bool = False, run: Runner | None = None) -> InstallReport:
    """Install the files, then notify systemd. Safe to repeat.

    An edited file stays unchanged unless ``force``. Each file is replaced in one step. Raises SlicerError on
    NixOS, and if a file cannot be written; those written before stay.
    """
    if plan.settings:
        refuse_nixos("enable = true (and userDelegation)")
    files = tuple(install(action, force=force) for action in plan.actions)
    made = _make_settings(unmade_settings(plan))
    files += _clear(plan.unwanted, force)
    return InstallReport(files, _tell_systemd(plan, files, run), made)


def _tell_systemd(plan: InstallPlan, files: tuple[FileResult, ...], run: Runner | None) -> tuple[Ran, ...]:
    run = run or _run
    return tuple(map(run, plan.commands)) + _reach_running_slices(plan, files, run)


def remove(plan: InstallPlan, *, force: bool = False, run: Runner | None = None) -> InstallReport:
    """Remove the files of :func:`apply`, except (without ``force``) edited ones.

    A plan with ``user_delegation`` covers all possible files. The ledger and the history stay. Raises
    SlicerError if a file cannot be removed.
    """
    stopped = tuple(map(run or _run, plan.stops))
    files = tuple(uninstall(action, force=force) for action in plan.actions) + _clear(plan.unwanted, force)
    commands = stopped + _tell_systemd(plan, files, run)
    _remove_empty(plan.actions)
    with contextlib.suppress(OSError):  # it is not empty, or does not exist
        os.rmdir(plan.settings)
    return InstallReport(files, commands)


def _reach_running_slices(plan: InstallPlan, files: tuple[FileResult, ...], run: Runner) -> tuple[Ran, ...]:
    """Make systemd apply the changed limits of running slices to the kernel.

    After daemon-reload systemd shows the new values, but it writes them when something starts in the slice.
    """
    manager = ("--user",) if plan.user else ()
    folder = "systemd/user/" if plan.user else "systemd/system/"
    changed = [done.action.destination for done in files if done.status in _CHANGED]
    ran = []
    for name in SLICES:
        unit = f"{name}.slice"
        if not any(f"{folder}{unit}" in path for path in changed):
            continue
        if run(("systemctl", *manager, "is-active", "--quiet", unit)).exit_code == 0:
            options = ("--quiet", "--collect", "--wait", f"--slice={unit}", f"--description=limits of {unit}")
            ran.append(run(("systemd-run", *manager, *options, "true")))
    return tuple(ran)


def _clear(actions: tuple[Action, ...], force: bool) -> tuple[FileResult, ...]:
    """Remove the existing ones of these files."""
    done = tuple(uninstall(action, force=force) for action in actions)
    _remove_empty(actions)
    return tuple(each for each in done if each.status != "absent")


def unmade_settings(plan: InstallPlan) -> str:
    """The administrator's configuration directory, if it is to be created; else "". Touches nothing."""
    return "" if os.path.lexists(plan.settings) else plan.settings


def _make_settings(path: str) -> tuple[str, ...]:
    if not path:
        return ()
    try:
        make_directory(path)
    except OSError as error:
        raise failed("made", Action("", path, "the directory of the configuration"), error) from error
    return (path,)


def _remove_empty(actions: tuple[Action, ...]) -> None:
    """Remove the directories of drop-ins and of shims, which exist for these alone."""
    for action in actions:
        directory = os.path.dirname(action.destination)
        if directory.endswith((".service.d", ".slice.d", "/slicer/slurm")):
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def data_home(environ: Mapping[str, str]) -> str:
    """The directory of a user's own data: $XDG_DATA_HOME."""
    said = environ.get("XDG_DATA_HOME", "")
    return said if said.startswith("/") else os.path.join(home(environ) or "/", ".local/share")


def _run(command: tuple[str, ...]) -> Ran:
    if not is_booted():  # in a chroot, for example
        return Ran(command, None, "systemd is not running")
    program = shutil.which(command[0])
    if program is None:
        return Ran(command, None, f"{command[0]} is not installed")
    done = subprocess.run(
        [program, *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return Ran(command, done.returncode, done.stdout.strip())
