"""The place of a user's ledger: a directory of that user alone, in memory, removed at a reboot.

Root's is /run/slicer. Another user's is slicer-UID in the first open one of :data:`PUBLIC_DIRS`. It is
the same with and without a login session, and outlives the session. (Not in /dev/shm, where logind deletes
it at the user's last logout: RemoveIPC=.) It stays where it is when root opens or closes such a directory,
because it may hold leases. No two users write to one directory, so nothing in it comes from another user.

Simulated GPUs (``SLICER_SIM``) have their own directory inside it, of the same form. So their jobs never meet
those of real GPUs. So has a job of Slurm, which shares out what Slurm gave to it.
"""

from __future__ import annotations

import errno
import os
import stat

from slicer.errors import StateError
from slicer.kernel import on_host
from slicer.record import record, replace
from slicer.state.allocation import slurm_job
from slicer.state.directory import HINT, LEDGER, Directory, failed, open_trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_DIR = "/run/slicer"
SHM = "/dev/shm"
# In memory, and anybody may create directories there. The second one is the mount of `slicer install`.
PUBLIC_DIRS = ("/run/lock", "/run/slicer.users", SHM)
VERSION = 6  # of the directory's contents; slicer touches no other version
LOST = "lost"  # the name of a file: an earlier ledger was deleted under its jobs
_VERSION_LINE = b"%d\n" % VERSION  # the content of its file "version"
_BASE = replace(LEDGER, is_closed=False)  # only its contents are closed to others
_SYSTEM_UIDS = 999  # the last uid of systemd's system users, whom RemoveIPC= spares
_NAMES = 64
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_FOR_ALL = stat.S_ISVTX | stat.S_IWOTH


@record
class StateDir:
    notes: tuple[str, ...]  # for its user
    base: Directory
    leases: Directory
    tickets: Directory
    bells: Directory

    @property
    def path(self) -> str:
        return self.base.path

    def descriptors(self) -> tuple[int, ...]:
        return tuple(each.fd for each in (self.base, self.leases, self.tickets, self.bells))

    def is_in_place(self) -> bool:
        """Whether the path still leads here. For read-only callers: a lease counts wherever its file is."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self.base.fd))
        except FileNotFoundError:
            return False

    def check_alone(self) -> None:
        """Refuse decisions while jobs hold leases of this ledger that were deleted. Raises LedgerLost."""
        if self.base.has(LOST):
            from slicer.state import version

            version.check_lost(self.base, LOST, _same_ledger)

    def close(self) -> None:
        for fd in self.descriptors():
            os.close(fd)


def locate(environ: Mapping[str, str], uid: int) -> StateDir:
    """Open the state directory of this user; create it if it is missing.

    Raises StateError if that is impossible or a slicer of another version uses it, and UsageError for an
    invalid SLICER_SIM.
    """
    below = _below(environ)
    base, notes = _base(environ, uid)
    opened = [base]
    try:
        base.check(_BASE)
        if below:
            opened.append(base.own_folder(below))
            opened.pop(0).close()
        for name in ("leases", "tickets", "bells"):
            opened.append(opened[0].own_folder(name))
        made = StateDir(notes, *opened)
        if made.base.read("version", len(_VERSION_LINE) + 1) != _VERSION_LINE:
            from slicer.state import version  # once for each boot

            version.claim(made.base, VERSION, LOST, _same_ledger)
        return made
    except BaseException:
        for each in opened:
            each.close()
        raise


def existing(environ: Mapping[str, str], uid: int) -> StateDir | None:
    """As :func:`locate`, but None if it does not exist. For read-only callers."""
    return locate(environ, uid) if os.path.lexists(where(environ, uid)) else None


def where(environ: Mapping[str, str], uid: int) -> str:
    """The path of this user's state directory, whether it exists or not.

    Raises StateError, and UsageError for an invalid SLICER_SIM.
    """
    below = _below(environ)
    path = _chosen(environ, uid)
    if path is None:
        found = _found(uid)
        opened = _public() if found is None else found
        opened.close()
        path = f"{opened.path}/{_name(uid)}" if found is None else found.path
    return f"{path}/{below}" if below else path


def may_be_emptied(path: str, uid: int) -> bool:
    """Whether logind deletes that ledger at its user's last logout, unless logind has RemoveIPC=no."""
    if not path.startswith(f"{SHM}/{_name(uid)}") or uid <= _SYSTEM_UIDS:
        return False
    from slicer.kernel.users import lingers

    return os.path.isdir(on_host("/run/systemd/users")) and not lingers(uid)


def _below(environ: Mapping[str, str]) -> str:
    """The name of the directory of simulated GPUs, or of a job of Slurm; "" for the machine's own.

    Raises UsageError.
    """
    text, job = environ.get("SLICER_SIM"), slurm_job(environ)
    name = f"slurm-{job}" if job else ""
    if not text:
        return name
    from slicer.state.simulated import canonical, parse_spec

    return f"sim-{canonical(parse_spec(text))}{'-' if name else ''}{name}"


def _chosen(environ: Mapping[str, str], uid: int) -> str | None:
    """The path that the user chose, or root's; None: one in a public directory. Raises StateError."""
    chosen = environ.get("SLICER_STATE_DIR")
    if not chosen:
        return SYSTEM_DIR if uid == 0 else None
    if not os.path.isabs(chosen):
        raise StateError("must be an absolute path", where=f"SLICER_STATE_DIR={chosen}", hint=HINT)
    return os.path.normpath(chosen)


def _base(environ: Mapping[str, str], uid: int) -> tuple[Directory, tuple[str, ...]]:
    path = _chosen(environ, uid)
    if path is None:
        return _among_all(uid)
    parent, name = os.path.split(path)
    if not name:
        raise StateError("is not a suitable directory", where=path, hint=HINT)
    above = open_trusted(parent)
    try:
        return above.folder(name), ()
    except StateError as error:
        from slicer.kernel.users import hidden_root

        if path == SYSTEM_DIR and hidden_root() >= 0:
            error.hint = "you are root in this user namespace only: start slicer outside of it"
        raise
    finally:
        above.close()


# -- in a directory of all users --------------------------------------------------------------------------


def _name(uid: int) -> str:
    return f"slicer-{uid}"


def _same_ledger(path: str) -> str:
    """A text that is the same for all paths that one ledger can have, one after the other."""
    for public in PUBLIC_DIRS:
        if path.startswith(f"{public}/"):
            name, slash, below = path[len(public) + 1 :].partition("/")
            return f"{name.partition('.')[0]}{slash}{below}"
    return path


def is_open_to_all(path: str) -> bool:
    """Whether every user may create a directory there, and nobody remove another's."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_mode & _FOR_ALL == _FOR_ALL


def _public() -> Directory:
    """The directory in which every user may create one. Raises StateError."""
    for path in PUBLIC_DIRS:
        if is_open_to_all(path):
            return open_trusted(path)
    raise StateError("no directory in memory is open to all users", where=" ".join(PUBLIC_DIRS), hint=HINT)


def _found(uid: int) -> Directory | None:
    """Our directory, in whichever public one it is. Raises StateError."""
    for path in PUBLIC_DIRS:
        try:
            public = open_trusted(path)
        except StateError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _SHORTAGES:
                raise  # a second ledger, made because of that, would grant everything again
            continue  # it does not exist, or its contents could be exchanged
        try:
            found = _find(public, uid)
        finally:
            public.close()
        if found is not None:
            return found
    return None


def _among_all(uid: int) -> tuple[Directory, tuple[str, ...]]:
    """This user's directory in a public one, under another name if somebody took the usual one.

    The public directory is sticky: nobody else can create a directory that belongs to us, or remove or rename
    ours. So the owner identifies ours, and the usual name is only the first place to look.
    """
    found = _found(uid) or _make(uid)
    public, _, name = found.path.rpartition("/")
    note = f"another user has made {public}/{_name(uid)}: your leases are in {found.path}"
    return found, () if name == _name(uid) else (note,)


def _make(uid: int) -> Directory:
    """Create it, or open what another slicer of ours has created since.

    All try the same names, so those that start at once meet even if somebody took the first few.
    """
    public, name = _public(), _name(uid)
    try:
        for each in (name, *(f"{name}.{number}" for number in range(_NAMES))):
            found = _open_ours(public, each) if public.has(each) else public.folder(each)
            if found is not None and _is_ours(found):
                return found
            if found is not None:  # taken at this very moment
                found.close()
        return public.folder(f"{name}.{os.urandom(6).hex()}")
    finally:
        public.close()


def _find(public: Directory, uid: int) -> Directory | None:
    """Our directory, if it exists already. Raises StateError."""
    name = _name(uid)
    if public.has(name):
        found = _open_ours(public, name)
        if found is not None:
            return found
    others = sorted(each for each in public.names() if each.startswith(f"{name}."))
    return next((found for each in others if (found := _open_ours(public, each)) is not None), None)


def _open_ours(public: Directory, name: str) -> Directory | None:
    """The directory of that name, if it is a directory and ours."""
    try:
        found = public.open_folder(name)
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise failed(f"{public.path}/{name}", error) from error
        return None  # it does not exist, is a file or a link, or somebody plays tricks
    if _is_ours(found):
        return found
    found.close()
    return None


def _is_ours(directory: Directory) -> bool:
    return os.fstat(directory.fd).st_uid == os.geteuid()


def first_time(directory: StateDir, what: str) -> bool:
    """Whether this is the first call for ``what`` since the directory was made (a boot, mostly)."""
    try:
        os.close(directory.base.open(what, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except OSError:
        return False
    return True
