"""Put slicer's unit files where systemd finds them, and take them away again.

Everything goes below ``/usr/local/lib`` (a user's own below ``~/.local/share``), where systemd looks for what
the administrator installed: ``systemctl edit`` keeps its changes in ``/etc``, and these files stay slicer's.
Each installed file ends in a checksum of itself, so that an upgrade can tell its own old version, which it
replaces, from one that somebody edited, which it leaves alone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile

from slicer.backend import has_systemd
from slicer.errors import SlicerError
from slicer.record import record
from slicer.state.directory import Directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Literal

    Status = Literal["created", "unchanged", "updated", "overwritten", "edited", "removed", "absent"]
    Runner = Callable[[tuple[str, ...]], "Ran"]

PREFIX = "/usr/local"
_SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_units")
_STAMP = b"# Installed by slicer; unchanged as long as its checksum is "

# Source below units/, destination below PREFIX, what it is.
_SYSTEM = (
    ("system/gpu.slice", "lib/systemd/system/gpu.slice", "slice of GPU jobs"),
    ("system/cpu.slice", "lib/systemd/system/cpu.slice", "slice of CPU jobs"),
    ("user/gpu.slice", "lib/systemd/user/gpu.slice", "slice of GPU jobs, for user managers"),
    ("user/cpu.slice", "lib/systemd/user/cpu.slice", "slice of CPU jobs, for user managers"),
    ("catalog/slicer.catalog", "lib/systemd/catalog/slicer.catalog", "explanations for journalctl -x"),
)
# What older versions installed: a group whose members shared the ledger.
_RETIRED = (
    ("lib/sysusers.d/slicer.conf", "group slicer, of an older version"),
    ("lib/tmpfiles.d/slicer.conf", "shared directories, of an older version"),
)
_GROUP = "slicer"
_SHARED = ("run/slicer", "var/lib/slicer")
_DEPTH = 2  # how deep older versions made directories in there: sim-4x24G/leases
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DELEGATION = (
    "system/user@.service.d/50-slicer-delegate.conf",
    "lib/systemd/system/user@.service.d/50-slicer-delegate.conf",
    "IOWeight and AllowedCPUs for user managers",
)
_USER = (
    ("user/gpu.slice", "systemd/user/gpu.slice", "slice of your GPU jobs"),
    ("user/cpu.slice", "systemd/user/cpu.slice", "slice of your CPU jobs"),
)
_SYSTEM_COMMANDS = (
    ("journalctl", "--update-catalog"),
    ("systemctl", "daemon-reload"),
)
_USER_COMMANDS = (("systemctl", "--user", "daemon-reload"),)


@record
class Action:
    """One file to install: from where, to where, and what it is for people."""

    source: str
    destination: str
    what: str


@record
class Plan:
    """What an installation consists of. ``live``: it is for the running system, whose managers are told.

    ``retired``: files that only older versions installed, to be taken away. ``shared``: directories that
    they shared with a group, to be root's alone.
    """

    actions: tuple[Action, ...]
    retired: tuple[Action, ...]
    shared: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    live: bool


@record
class Outdated:
    """What only older versions had: files to take away, commands for the rest, and directories to close."""

    files: tuple[Action, ...]
    commands: tuple[tuple[str, ...], ...]
    shared: tuple[str, ...]


@record
class Done:
    """What became of one file.

    ``status`` is created, unchanged, updated (an older version of ours), edited (somebody changed it: left
    alone), overwritten (edited, but forced), removed or absent.
    """

    action: Action
    status: Status


@record
class Ran:
    """What became of one command. ``exit_code`` is None where it was not run; ``output`` says why."""

    command: tuple[str, ...]
    exit_code: int | None
    output: str


@record
class Report:
    """What was done. ``commands`` of a plan that is not live are what its target has to run itself.

    ``closed``: directories that an older version shared with a group, and that are root's alone now.
    """

    files: tuple[Done, ...]
    commands: tuple[Ran, ...]
    closed: tuple[str, ...] = ()


def plan(
    root: str = "/",
    *,
    user: bool = False,
    user_delegation: bool = False,
    prefix: str = PREFIX,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """What to install under ``root`` (a DESTDIR; "/" is the running system). Touches nothing.

    ``user`` is for the caller's own user manager alone, below $XDG_DATA_HOME. ``user_delegation`` adds the
    drop-in that lets all user managers set IOWeight and AllowedCPUs. ``prefix`` is ``/usr`` for a
    distribution's package. Raises SlicerError when user and user_delegation are both asked for.
    """
    if user and user_delegation:
        message = "delegation to user managers is a setting of the system, not of one user"
        raise SlicerError(message, hint="leave out either --user or --user-delegation")
    base = _data_home(os.environ if environ is None else environ) if user else prefix
    files = _USER if user else (*_SYSTEM, _DELEGATION) if user_delegation else _SYSTEM
    top = os.path.join(root, base.lstrip("/"))
    actions = tuple(
        Action(os.path.join(_SOURCES, source), os.path.join(top, destination), what)
        for source, destination, what in files
    )
    live = os.path.realpath(root) == "/"
    if user:
        return Plan(actions, (), (), _USER_COMMANDS, live)
    retired = tuple(Action("", os.path.join(top, name), what) for name, what in _RETIRED)
    shared = tuple(os.path.join(root, path) for path in _SHARED)
    return Plan(actions, retired, shared, _SYSTEM_COMMANDS, live)


def apply(plan: Plan, *, force: bool = False, run: Runner | None = None) -> Report:
    """Install the files, then tell systemd if the plan is live. Safe to repeat.

    A file that somebody edited stays as it is unless ``force``. Each file is replaced in one step. The files
    and directories of older versions are taken back. Raises SlicerError when a file cannot be written; those
    written before stay.
    """
    return _finish(plan, tuple(_install(action, force) for action in plan.actions), force, run)


def outdated(plan: Plan, *, force: bool = False) -> Outdated:
    """What only older versions installed, as far as it is there and is to go. Touches nothing.

    The group goes with the last of its files: one that somebody edited may still name it.
    """
    there = [(each, found) for each in plan.retired if (found := _read(each.destination)) is not None]
    files = tuple(each for each, found in there if force or _is_ours(found))
    has_group = not plan.live or _has_group(_GROUP)
    commands = (("groupdel", _GROUP),) if files and len(files) == len(there) and has_group else ()
    return Outdated(files, commands, tuple(path for path in plan.shared if plan.live and _is_shared(path)))


def _finish(plan: Plan, files: tuple[Done, ...], force: bool, run: Runner | None) -> Report:
    """Tell systemd, then take away what only older versions had: files, a group, and its directories."""
    commands = _commands(plan.commands, plan.live, run)
    old = outdated(plan, force=force)
    gone = tuple(done for each in plan.retired if (done := _uninstall(each, force)).status != "absent")
    commands += _commands(old.commands, plan.live, run)
    # Last, because members of the group may have put things there that make it fail.
    closed = tuple(path for path in plan.shared if plan.live and _close(path))
    return Report((*files, *gone), commands, closed)


def _has_group(name: str) -> bool:
    import grp

    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _is_shared(path: str) -> bool:
    """Whether it is a directory that a group may enter."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(info.st_mode) and not _is_roots_alone(info)


def _is_roots_alone(info: os.stat_result) -> bool:
    return info.st_uid == info.st_gid == 0 and not info.st_mode & _OTHERS_WRITE


def _close(path: str) -> bool:
    """Make a directory root's alone, and those in it. Returns whether one of them was not.

    Each is opened before it is changed, and listed only then. So members of the group can neither exchange
    nor add anything meanwhile. Raises SlicerError.
    """
    parent, name = os.path.split(path)
    try:
        above = Directory(os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), parent)
    except FileNotFoundError:
        return False
    try:
        return any([_take_back(each) for each in _directories(above, name, _DEPTH)])
    except OSError as error:
        raise _failed("closed", Action("", path, "a directory of older versions"), error) from error
    finally:
        above.close()


def _take_back(directory: Directory) -> bool:
    if _is_roots_alone(os.fstat(directory.fd)):
        return False
    os.fchown(directory.fd, 0, 0)
    os.fchmod(directory.fd, 0o700)
    return True


def _directories(above: Directory, name: str, depth: int) -> Iterator[Directory]:
    """The directory of that name and those in it, each open until the next one is asked for.

    What is no directory is left out, links too.
    """
    try:
        found = above.open_folder(name)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return
        raise
    try:
        yield found
        for below in found.names() if depth else ():
            yield from _directories(found, below, depth - 1)
    finally:
        found.close()


def remove(plan: Plan, *, force: bool = False, run: Runner | None = None) -> Report:
    """Take away what :func:`apply` put there, except (without ``force``) what somebody edited.

    A plan with ``user_delegation`` covers everything that may be there. The ledger and the history stay.
    Raises SlicerError when a file cannot be removed.
    """
    files = tuple(_uninstall(action, force) for action in plan.actions)
    for action in plan.actions:
        directory = os.path.dirname(action.destination)
        if directory.endswith(".service.d"):  # the one directory that exists for a drop-in of ours
            with contextlib.suppress(OSError):
                os.rmdir(directory)
    return _finish(plan, files, force, run)


def _data_home(environ: Mapping[str, str]) -> str:
    home = environ.get("XDG_DATA_HOME", "")
    if home.startswith("/"):
        return home
    return os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/share")


# -- files --------------------------------------------------------------------------------------------


def _stamped(content: bytes) -> bytes:
    return content + _STAMP + hashlib.sha256(content).hexdigest().encode() + b"\n"


def _is_ours(installed: bytes) -> bool:
    """Whether a file is as some version of slicer installed it."""
    content, stamp, _ = installed.rpartition(_STAMP)
    return bool(stamp) and _stamped(content) == installed


def _read(path: str) -> bytes | None:
    """The file's content, None where there is none, b"" for what is no regular file (so: not ours)."""
    if not os.path.lexists(path):
        return None
    if os.path.islink(path) or not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read()


def _install(action: Action, force: bool) -> Done:
    try:
        with open(action.source, "rb") as file:
            wanted = _stamped(file.read())
        found = _read(action.destination)
        if found == wanted:
            return Done(action, "unchanged")
        ours = found is None or _is_ours(found)
        if not ours and not force:
            return Done(action, "edited")
        _replace(action.destination, wanted)
    except OSError as error:
        raise _failed("installed", action, error) from error
    return Done(action, "created" if found is None else "updated" if ours else "overwritten")


def _replace(path: str, content: bytes) -> None:
    directory = os.path.dirname(path)
    _make_directory(directory)
    fd, temporary = tempfile.mkstemp(prefix=".slicer-", dir=directory)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _make_directory(path: str) -> None:
    """With those above it, for everybody to read whatever the umask: systemd is not the only reader."""
    if path and not os.path.isdir(path):
        _make_directory(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, 0o755)


def _uninstall(action: Action, force: bool) -> Done:
    try:
        found = _read(action.destination)
        if found is None:
            return Done(action, "absent")
        if not _is_ours(found) and not force:
            return Done(action, "edited")
        os.unlink(action.destination)
    except OSError as error:
        raise _failed("removed", action, error) from error
    return Done(action, "removed")


def _failed(what: str, action: Action, error: OSError) -> SlicerError:
    message = f"{action.what} cannot be {what}: {error.strerror}"
    hint = "run it as root, or with --user" if isinstance(error, PermissionError) else ""
    return SlicerError(message, where=action.destination, hint=hint)


# -- commands -----------------------------------------------------------------------------------------


def _commands(commands: tuple[tuple[str, ...], ...], live: bool, run: Runner | None) -> tuple[Ran, ...]:
    if not live:
        return tuple(Ran(command, None, "to be run on the target") for command in commands)
    return tuple((run or _run)(command) for command in commands)


def _run(command: tuple[str, ...]) -> Ran:
    if command[0] == "systemctl" and not has_systemd():
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
