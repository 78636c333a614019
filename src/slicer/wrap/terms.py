"""A wrapped program, what was found, and what has to be done. Plain data.

BIN is the name that people call. REAL is the name of the program next to it once it is wrapped.
"""

from __future__ import annotations

from typing import Literal

from slicer.errors import SlicerError, UsageError
from slicer.record import record

# "shim": a file that `slicer wrap install` wrote. "other": a device, a FIFO, a socket.
SeenKind = Literal["absent", "file", "shim", "link", "directory", "other"]
# The goal: the shim; REAL back at BIN; the present file at BIN, without REAL.
Intent = Literal["install", "restore", "drop"]
Step = Literal[
    "record",  # write the goal down
    "link",  # give BIN its second name, REAL
    "exchange",  # make REAL a second name of the file at BIN, replacing the old REAL
    "divert",  # tell dpkg to put the package's file at REAL from now on
    "place",  # put the shim at BIN
    "restore",  # rename REAL to BIN
    "drop",  # remove REAL
    "unlink",  # remove the shim
    "undivert",  # tell dpkg to put the package's file at BIN again
    "forget",  # remove the record
]
Situation = Literal[
    "whole", "outdated", "program-gone", "shim-gone", "gone", "unfinished", "unwrapped", "replaced",
    "unclear", "leaving",
]  # fmt: skip
ProblemId = Situation | Literal["slicer-gone", "no-route", "diversion-gone"]
STORES = ("/nix/store/", "/gnu/store/")  # read-only by convention, and verified by checksums
SUFFIX = "-real"
INTENTS: tuple[Intent, ...] = ("install", "restore", "drop")


class WrapRefused(UsageError):
    """The program cannot be wrapped (or unwrapped); nothing was changed."""

    kind = "wrap-refused"


class WrapError(SlicerError):
    """An operation failed while slicer wrapped or unwrapped a program."""

    kind = "wrap"


@record
class Wrap:
    """The record of a wrapped program. Paths contain no links, except as their last name."""

    path: str  # BIN
    real: str  # REAL
    route: str
    slicer: str  # for the shim to call
    intent: Intent
    ino: int  # the inode of the program when it was wrapped
    size: int  # its size, in bytes
    mtime_ns: int  # its modification time, in nanoseconds since the epoch
    package: str  # its package; "" if none, or unknown
    diverted: str  # dpkg's name for BIN; "" without a diversion
    since_s: float  # seconds since the epoch


@record
class FileState:
    """The file of a name, or the link itself. ``head``: all of a shim's text, else the file's first bytes."""

    kind: SeenKind
    dev: int = 0
    ino: int = 0
    size: int = 0
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    mode: int = 0
    head: bytes = b""
    has_capabilities: bool = False
    has_acl: bool = False

    @property
    def is_program(self) -> bool:
        """Whether it may be a program to wrap, or that was wrapped."""
        return self.kind in ("file", "link")


ABSENT = FileState("absent")


@record
class Ancestor:
    """A directory on the way to a file. ``is_private``: its group has no other member than the caller."""

    path: str
    uid: int
    gid: int
    mode: int
    is_private: bool


@record
class Diversion:
    """An entry in dpkg's list: dpkg puts ``path`` at ``to``. ``by``: a package, or "" for a local one."""

    path: str
    to: str
    by: str


@record
class PackageOwner:
    """The package that owns a file, and the file's name in it (/bin/x for /usr/bin/x)."""

    package: str
    name: str


NOBODY = PackageOwner("", "")


@record
class Site:
    """Everything that decides whether, and how, a program is wrapped."""

    path: str
    real_path: str
    way: tuple[Ancestor, ...]  # from "/" to the directory
    is_writable: bool  # the directory, for the caller
    is_read_only: bool  # its file system
    bin: FileState
    real: FileState
    end: FileState  # the target of BIN if it is a link; otherwise BIN itself
    end_path: str
    shimmed: str  # the BIN whose REAL this file is; "" if none
    owner: PackageOwner
    diversions: tuple[Diversion, ...]  # of BIN, under any of its names


@record
class Tool:
    """The slicer for the shim to call, and everything that runs when it is called.

    ``names``: each file that its start involves (links, the interpreter, sh), with a description. ``way``:
    their directories, and those above. ``is_for_all``: other users can call it.
    """

    path: str
    is_executable: bool
    names: tuple[tuple[str, str], ...]
    way: tuple[Ancestor, ...]
    is_for_all: bool


@record
class WrapPlan:
    """Steps to take in this order, and the record that belongs to them; ``notes`` are for people."""

    wrap: Wrap
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()


@record
class Problem:
    """A fault of a wrap. ``mend`` has lines for a shell; ``is_mendable``: --fix can repair it."""

    id: ProblemId
    message: str
    mend: tuple[str, ...]
    is_mendable: bool


@record
class WrapStatus:
    wrap: Wrap
    problems: tuple[Problem, ...]

    @property
    def state(self) -> str:
        """One word: "ok", or the id of the first problem."""
        return self.problems[0].id if self.problems else "ok"
