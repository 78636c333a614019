"""One installed file: its state, its installation and its removal.

Each installed file ends in a checksum of itself. So an upgrade can distinguish its own old version, which it
replaces, from an edited one, which it leaves alone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from typing import Literal

from slicer.errors import SlicerError
from slicer.record import record, replace

State = Literal["missing", "current", "outdated", "edited"]
Status = Literal["created", "unchanged", "updated", "overwritten", "edited", "removed", "absent"]
# Where the system manager looks for the administrator's units.
SYSTEM_UNITS = "/usr/local/lib/systemd/system"

_STAMP = b"Installed by slicer; unchanged as long as its checksum is "
_COMMENTS = (b"# ", b'.\\" ')  # in unit files and shells, and in man pages
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-@:~,=")


@record
class Action:
    """One file to install: source, destination, and description.

    ``content`` is for a generated file, which has no source.
    """

    source: str
    destination: str
    what: str
    content: bytes = b""


@record
class FileResult:
    """The result for one file.

    ``status`` is created, unchanged, updated (an older version of ours), edited (left alone), overwritten
    (edited, but forced), removed or absent.
    """

    action: Action
    status: Status


def with_program(action: Action, packaged: str, program: str) -> Action:
    """The file, changed so that it starts ``program`` in place of the package's. Raises SlicerError.

    A path that systemd would interpret (spaces, %, $) is refused.
    """
    if program == packaged:
        return action
    if not (os.path.isabs(program) and is_plain(program)):
        hint = "install slicer in a directory with a plain name, such as /opt/slicer"
        raise SlicerError("a unit cannot name this program", where=program, hint=hint)
    with open(action.source, "rb") as file:
        text = file.read()
    if packaged.encode() not in text:
        raise SlicerError(f"does not name {packaged}", where=action.source, hint="install slicer again")
    return replace(action, content=text.replace(packaged.encode(), program.encode()))


def is_plain(word: str) -> bool:
    """Whether systemd takes the word in a unit literally."""
    return bool(word) and _PLAIN.issuperset(word)


def program_in(path: str, packaged: str) -> str:
    """The program that the unit at ``path`` starts, or the package's; "" without such a unit."""
    text = read(path)
    if text is None:
        return ""
    lines = text.decode("utf-8", "replace").splitlines()
    found = [line.partition("=")[2].partition(" ")[0] for line in lines if line.startswith("ExecStart=")]
    return found[0] if len(found) == 1 and found[0].startswith("/") and is_plain(found[0]) else packaged


def state(action: Action, *, is_wanted: bool = True) -> State:
    """The state of a file. Touches nothing.

    It is missing, current (as this version installs it), outdated (as another version of slicer installed it)
    or edited (somebody changed it, or it was never slicer's). An unwanted file is never current. Raises
    SlicerError if it cannot be read.
    """
    try:
        return _state(_wanted(action) if is_wanted else None, read(action.destination))
    except OSError as error:
        raise failed("read", action, error) from error


def _state(wanted: bytes | None, found: bytes | None) -> State:
    if found is None:
        return "missing"
    # A wheel contains manual pages without the stamp.
    if wanted is not None and found in (wanted, _without_stamp(wanted)):
        return "current"
    return "outdated" if is_ours(found) else "edited"


def install(action: Action, *, force: bool) -> FileResult:
    """Put a file in its place, in one step. An edited one stays unless ``force``.

    Raises SlicerError if it cannot be written.
    """
    try:
        wanted = _wanted(action)
        before = _state(wanted, read(action.destination))
        if before == "current":
            return FileResult(action, "unchanged")
        if before == "edited" and not force:
            return FileResult(action, "edited")
        _replace(action.destination, wanted)
    except OSError as error:
        raise failed("installed", action, error) from error
    became: dict[State, Status] = {"missing": "created", "outdated": "updated", "edited": "overwritten"}
    return FileResult(action, became[before])


def uninstall(action: Action, *, force: bool) -> FileResult:
    """Remove a file. An edited one stays unless ``force``. Raises SlicerError."""
    try:
        found = read(action.destination)
        if found is None:
            return FileResult(action, "absent")
        if not is_ours(found) and not force:
            return FileResult(action, "edited")
        os.unlink(action.destination)
    except OSError as error:
        raise failed("removed", action, error) from error
    return FileResult(action, "removed")


def failed(what: str, action: Action, error: OSError) -> SlicerError:
    """The error for a file that could not be ``what`` (installed, removed, read)."""
    message = f"{action.what} cannot be {what}: {error.strerror}"
    return SlicerError(message, where=action.destination, hint=_way_out(error))


def _way_out(error: OSError) -> str:
    if error.errno == errno.EROFS:
        return "nothing can be written there: slicer install --user installs for you alone"
    if isinstance(error, PermissionError):
        if os.geteuid() == 0:
            return "even root may not: is it immutable (lsattr), or on a file server?"
        return "run it as root, or with --user"
    return ""


def is_ours(installed: bytes) -> bool:
    """Whether a file is as some version of slicer installed it."""
    text, stamp, _ = installed.rpartition(_STAMP)
    return bool(stamp) and any(_stamped(text.removesuffix(c), c) == installed for c in _COMMENTS)


def read(path: str) -> bytes | None:
    """The file's content, None if there is none, b"" if it is not a regular file (so: not ours)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link (a masked unit), a socket
            return b""
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def _wanted(action: Action) -> bytes:
    if action.content:
        return _stamped(action.content, _COMMENTS[0])
    with open(action.source, "rb") as file:
        content = file.read()
    return _stamped(content, _COMMENTS["/man/" in action.destination])


def _without_stamp(stamped: bytes) -> bytes:
    text, _, _ = stamped.rpartition(_STAMP)
    return next((text.removesuffix(comment) for comment in _COMMENTS if text.endswith(comment)), text)


def _stamped(content: bytes, comment: bytes) -> bytes:
    return b"%b%b%b%b\n" % (content, comment, _STAMP, hashlib.sha256(content).hexdigest().encode())


def _replace(path: str, content: bytes) -> None:
    directory = os.path.dirname(path)
    make_directory(directory)
    fd, temporary = tempfile.mkstemp(prefix=".slicer-", dir=directory)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o755 if content.startswith(b"#!") else 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def make_directory(path: str) -> None:
    """Create it and those above it, readable by all whatever the umask: not only systemd reads them."""
    if path and not os.path.isdir(path):
        make_directory(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, 0o755)
