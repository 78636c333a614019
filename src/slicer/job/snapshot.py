"""Copies of work trees of git: a job runs from the code as it was when somebody asked for the job.

Beside the history, ``snapshots/NAME`` has the copy, under the work tree's name; ``of``, a link to that; and
``lock``, which jobs hold, shared, while they run. It says what the copy was like when it was made: only one
that is still the same is removed.

git only lists the files, which are copied as they are: no hook or filter runs, and nothing is written in the
repository. What git ignores, or leaves to another repository, is a link to the original.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import time
from contextlib import contextmanager
from glob import escape, glob
from hashlib import sha256

from slicer.errors import UsageError
from slicer.job.git import ENVIRONMENT, GUARDS, trusted_path
from slicer.kernel.signals import signal
from slicer.outcome.history import default_path
from slicer.outcome.job_files import RULES, open_folder
from slicer.quantity import format_size
from slicer.state.directory import failing, try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from slicer.state.directory import Directory

_MOST_UNTRACKED, _PAGE = 256 << 20, 4096  # bytes; each file counts as a page at least
_GIT_S = 120.0  # the longest that git may take
_OWNED_S = 3600.0  # whoever made a copy has handed it to its job by then
_CACHE = "__pycache__"  # shared, it could have the code of a file that was edited within the same second
_INDEX = re.compile(r"/\.git/(index|sharedindex\.\w+)$")  # git looks after these
_SAME = "[core]\n\tcheckStat = minimal\n\ttrustctime = false\n"  # so the index knows copies of its files
_FORMATS = {40: "sha1", 64: "sha256"}  # by the length of a commit's name
# By which git would look elsewhere: a hook has them.
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
_LINES = 6  # that git says, the last one empty: more, if a path has a line break
_HINT = "it takes a work tree of git with a commit; without --snapshot the job runs in place"


def take(directory: str, environ: Mapping[str, str], kind: str = "run-") -> str:
    """Copy the work tree around a directory; the path of that directory there. Raises SlicerError.

    ``kind``: how NAME begins.
    """
    words = "--show-toplevel", "--git-path", "objects", "--git-path", "index", "HEAD", "--symbolic-full-name"
    said = os.fsdecode(_git(directory, environ, "rev-parse", *words, "HEAD")).split("\n")
    root, objects, index = (os.path.join(directory, each) for each in said[:3])
    below = os.path.relpath(os.path.realpath(directory), root)
    owners = {os.lstat(each).st_uid for each in (root, f"{root}/.git") if os.path.lexists(f"{root}/.git")}
    if owners != {os.geteuid()} or _is_above(below) or len(said) != _LINES:
        raise UsageError("is not your work tree: no snapshot is made of it", where=root, hint="git clone it")
    with _room(environ) as room:
        _remove_rest(room)
        for each in room.names():
            if each.startswith("run-"):  # perhaps of a job that was killed
                _removed(room, each, _OWNED_S)
        name = f"{kind}{os.urandom(6).hex()}"
        new, tree = f"{room.path}/.{name}", os.path.basename(root)
        copy = f"{new}/{tree}"
        try:
            with failing(f"{room.path}/{name}", "the snapshot cannot be made", RULES):
                _copy(root, copy, environ)
                _git(copy, environ, "init", "-q", "--template=", f"--object-format={_FORMATS[len(said[3])]}")
                _set_up(f"{copy}/.git", objects, index, *said[3:5])
                os.makedirs(f"{copy}/{below}", exist_ok=True)
                os.symlink(root, f"{new}/of")
                with open(f"{new}/lock", "x") as lock:
                    lock.write(_likeness(new))
                if kind != "run-":
                    os.sync()  # a queue goes on after a loss of power
                os.rename(new, f"{room.path}/{name}")
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    return os.path.normpath(f"{room.path}/{name}/{tree}/{below}")


def copy_of(directory: str, environ: Mapping[str, str]) -> str:
    """The copy in which that directory is. Raises UsageError if there is none."""
    room, directory = _folder(environ), os.path.normpath(directory)
    name, _, below = directory.removeprefix(f"{room}/").partition("/")
    if not directory.startswith(f"{room}/") or not os.path.lexists(f"{room}/{name}/lock"):
        raise UsageError("there is no such snapshot any more", where=directory, hint="ask for the job again")
    return f"{room}/{name}/{below.partition('/')[0]}"


def hold(copy: str) -> int:
    """A descriptor that keeps the copy as long as somebody has it open. Raises OSError."""
    lock = os.open(f"{os.path.dirname(copy)}/lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def environment(copy: str, directory: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that runs there, in that directory."""
    of = os.readlink(f"{os.path.dirname(copy)}/of")
    found = {name: value for name, value in environ.items() if name not in _ELSEWHERE}
    found |= {"SLICER_SNAPSHOT_OF": of, "PWD": directory}
    if "PYTHONPATH" in environ:
        found["PYTHONPATH"] = ":".join(moved(each, of, copy) for each in environ["PYTHONPATH"].split(":"))
    return found


def moved(path: str, of: str, copy: str) -> str:
    """The path, in the copy if it was in the original. Pure."""
    return copy + path[len(of) :] if f"{path}/".startswith(f"{of}/") else path


def drop(copy: str, environ: Mapping[str, str]) -> bool:
    """Remove the copy if no job has changed it and nobody holds it; whether it is gone. Raises StateError."""
    with _room(environ) as room:
        return _removed(room, os.path.basename(os.path.dirname(copy)))


def _removed(room: Directory, name: str, older_than_s: float = 0.0) -> bool:
    try:
        lock = room.open(f"{name}/lock", os.O_RDWR)
    except FileNotFoundError:
        return True  # somebody else has removed it
    try:
        is_due = time.time() - os.fstat(lock).st_mtime >= older_than_s and try_lock(lock)
        if not is_due or os.read(lock, 64).decode() != _likeness(f"{room.path}/{name}"):
            return False
        os.rename(name, f".{name}", src_dir_fd=room.fd, dst_dir_fd=room.fd)
    finally:
        os.close(lock)
    _remove_rest(room)
    return True


def _remove_rest(room: Directory) -> None:
    """Remove what is half made or half removed, also by a killed process. Links are not followed."""
    for name in room.names():
        if name.startswith("."):
            shutil.rmtree(name, ignore_errors=True, dir_fd=room.fd)  # what stays is tried again


def _likeness(place: str) -> str:
    """A digest that is another one once a file there was made, changed or removed, or something mounted."""
    device, places, found = os.lstat(place).st_dev, [place], list[str]()
    try:
        while places:
            with os.scandir(places.pop()) as entries:
                for each in entries:
                    info, name = each.stat(follow_symlinks=False), each.path[len(place) :]
                    if stat.S_ISDIR(info.st_mode) and info.st_dev == device:
                        places += [each.path] if each.name != _CACHE else []
                    elif name != "/lock" and not _INDEX.search(name):
                        found.append(f"{name} {info.st_ino} {info.st_size} {info.st_ctime_ns}")
    except OSError as error:
        return str(error)  # a directory there is closed to us, or too deep
    return sha256("\0".join(sorted(found)).encode(errors="surrogateescape")).hexdigest()


# -- making one ---------------------------------------------------------------------------------------------


def _folder(environ: Mapping[str, str]) -> str:
    return os.path.realpath(f"{os.path.dirname(default_path(environ))}/snapshots")


@contextmanager
def _room(environ: Mapping[str, str]) -> Iterator[Directory]:
    """The directory of all copies. One process at a time makes or removes some. Raises StateError."""
    room = open_folder(_folder(environ))
    lock = room.open_lock()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})  # everybody would wait for us
    try:
        with failing(room.path, rules=RULES):
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield room
    finally:
        os.close(lock)
        room.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _git(place: str, environ: Mapping[str, str], *words: str) -> bytes:
    """What git says. Raises UsageError."""
    homes = {name: environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in environ}  # with gitignore
    path = trusted_path(environ.get("PATH", ""))
    env = {**ENVIRONMENT, **homes, "PATH": path, "GIT_DEFAULT_REF_FORMAT": "files"}  # as _set_up writes them
    line, pipe = ("git", *GUARDS, *words), subprocess.PIPE
    try:
        done = subprocess.run(line, check=True, cwd=place, env=env, stdout=pipe, stderr=pipe, timeout=_GIT_S)
        return done.stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(getattr(error, "strerror", error)).encode()
        why = said.decode("utf-8", "replace").partition("\n")[0].removeprefix("fatal: ")
        raise UsageError(f"no snapshot: git: {why}", where=place, hint=_HINT) from error


def _copy(root: str, copy: str, environ: Mapping[str, str]) -> None:
    def listed(*words: str) -> list[str]:
        found = os.fsdecode(_git(root, environ, "ls-files", "-z", "--exclude-standard", *words))
        return [name.rstrip("/") for name in found.split("\0") if name]

    untracked = listed("--others")
    sizes = {name: max(_size(f"{root}/{name}"), _PAGE) for name in untracked}
    if (total := sum(sizes.values())) > _MOST_UNTRACKED:
        message = f"untracked files have {format_size(total)}, more than {format_size(_MOST_UNTRACKED)}"
        largest = max(sizes, key=sizes.__getitem__)
        hint = f"name them in .gitignore: what is ignored is linked, not copied; the largest is {largest}"
        raise UsageError(f"no snapshot: {message}", where=root, hint=hint)
    os.makedirs(copy)
    copied, linked = [*untracked, *listed("--cached")], listed("--others", "--ignored", "--directory")
    links = {name: True for name in linked if _CACHE not in name.split("/")}
    for name, is_linked in {**dict.fromkeys(copied, False), **links}.items():
        try:
            _put(root, copy, name, is_linked=is_linked)
        except FileNotFoundError:
            pass  # it was removed meanwhile
        except PermissionError as error:
            message = f"no snapshot: {error.strerror}"
            raise UsageError(message, where=f"{root}/{name}", hint="chmod u+r makes it readable") from error


def _put(root: str, copy: str, name: str, *, is_linked: bool) -> None:
    """Copy a file, or link to what is none; nothing if it is not there, or lies behind a link."""
    source, target = f"{root}/{name}", f"{copy}/{name}"
    above = [os.path.dirname(each) for each in (source, target)]
    if not os.path.lexists(source) or [os.path.realpath(each) for each in above] != above:
        return
    os.makedirs(above[1], exist_ok=True)
    file = os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # nobody can put a FIFO in its place
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISLNK(mode) and not is_linked:
            to = os.readlink("", dir_fd=file)
            is_out = _is_above(os.path.relpath(f"{above[0]}/{to}", root))
            os.symlink(f"{above[0]}/{to}" if is_out else to, target)
        elif stat.S_ISREG(mode) and not is_linked:
            shutil.copy2(f"/proc/self/fd/{file}", target)
        elif not os.path.lexists(target):
            os.symlink(source, target)
    finally:
        os.close(file)


def _size(path: str) -> int:
    """In bytes; 0 if it was removed."""
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


def _is_above(path: str) -> bool:
    return f"{path}/".startswith("../")


def _set_up(git: str, objects: str, index: str, commit: str, branch: str) -> None:
    """Give a new repository that commit, branch and index, for what asks git there."""
    above = os.path.realpath(objects)
    files = {"objects/info/alternates": f"{above}\n", "HEAD": f"{commit}\n", "config": _SAME}
    if branch != "HEAD":
        files |= {"HEAD": f"ref: {branch}\n", "packed-refs": f"{commit} {branch}\n"}
    for name, text in files.items():
        with open(f"{git}/{name}", "a" if name == "config" else "w", errors="surrogateescape") as file:
            file.write(text)
    for path in (*glob(escape(index)), *glob(f"{escape(os.path.dirname(index))}/sharedindex.*")):
        shutil.copy2(path, git)
