"""A wrapped program, what is seen of it, and what is to be done. Plain data.

BIN is the name that people call, REAL the name beside it that the program has once it is wrapped.
"""

from __future__ import annotations

from typing import Literal

from slicer.errors import SlicerError, UsageError
from slicer.record import record

# "shim": a file that `slicer wrap install` made. "other": a device, a FIFO, a socket.
SeenKind = Literal["absent", "file", "shim", "link", "directory", "other"]
# What is wanted in the end: the shim; REAL back at BIN; what is at BIN now, without REAL.
Intent = Literal["install", "restore", "drop"]
Step = Literal[
    "record",  # write down what is wanted
    "link",  # BIN gets its second name, REAL
    "exchange",  # REAL becomes a second name of what is at BIN, in place of what it was
    "divert",  # dpkg is told to put the package's file at REAL from now on
    "place",  # the shim takes BIN's place
    "restore",  # REAL takes BIN's place
    "drop",  # REAL is removed
    "unlink",  # the shim is removed
    "undivert",  # dpkg is told that BIN is BIN again
    "forget",  # the record is removed
]
Situation = Literal[
    "whole", "outdated", "program-gone", "shim-gone", "gone", "unfinished", "unwrapped", "replaced",
    "unclear", "leaving",
]  # fmt: skip
ProblemId = Situation | Literal["slicer-gone", "no-route", "diversion-gone"]
STORES = ("/nix/store/", "/gnu/store/")  # read-only by convention, and checked against their checksums
SUFFIX = "-real"
INTENTS: tuple[Intent, ...] = ("install", "restore", "drop")


class WrapRefused(UsageError):
    """The program cannot be wrapped (or unwrapped) as it is; nothing was changed."""

    kind = "wrap-refused"


class WrapError(SlicerError):
    """The system did not let slicer wrap or unwrap a program."""

    kind = "wrap"


@record
class Wrap:
    """A wrapped program, as it is recorded. Paths have no link in them, but for their last name."""

    path: str  # BIN
    real: str  # REAL
    route: str
    slicer: str  # which the shim calls
    intent: Intent
    ino: int  # the inode of the program when it was wrapped
    size: int  # likewise, in bytes
    mtime_ns: int  # likewise, in nanoseconds since the epoch
    package: str  # that it belongs to; "" for none, or not known
    diverted: str  # BIN as dpkg calls it; "" without a diversion
    since_s: float  # seconds since the epoch


@record
class Seen:
    """What is at a name, links not followed. ``head``: a shim's text, else the first bytes of a file."""

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
        """Whether it may be a program that was, or is to be, wrapped."""
        return self.kind in ("file", "link")


ABSENT = Seen("absent")


@record
class Ancestor:
    """A directory on the way to a file. ``is_private``: its group has nobody in it but the caller."""

    path: str
    uid: int
    gid: int
    mode: int
    is_private: bool


@record
class Diversion:
    """An entry in dpkg's list: ``path`` is put at ``to``. ``by``: a package, "" for a local one."""

    path: str
    to: str
    by: str


@record
class Owner:
    """The package that a file belongs to, and the file's name in it (/bin/x of /usr/bin/x)."""

    package: str
    name: str


NOBODY = Owner("", "")


@record
class Site:
    """All that decides whether, and how, a program is wrapped."""

    path: str
    real_path: str
    way: tuple[Ancestor, ...]  # from "/" to the directory
    is_writable: bool  # the directory, for the caller
    is_read_only: bool  # its file system
    bin: Seen
    real: Seen
    end: Seen  # where BIN leads, if it is a link; else BIN itself
    end_path: str
    shimmed: str  # the BIN whose REAL this file is; "" for none
    owner: Owner
    diversions: tuple[Diversion, ...]  # of BIN, by any of its names


@record
class Tool:
    """The slicer that the shim is to call, and all that runs when it is called.

    ``names``: each file that its start goes through (links, the interpreter, sh), with what it is.
    ``way``: the directories that these lie in, and those above. ``is_for_all``: other users can call it.
    """

    path: str
    is_executable: bool
    names: tuple[tuple[str, str], ...]
    way: tuple[Ancestor, ...]
    is_for_all: bool


@record
class Plan:
    """Steps to be taken in this order, and the record that goes with them; ``notes`` are for people."""

    wrap: Wrap
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()


@record
class Problem:
    """One thing that is wrong with a wrap. ``mend`` are lines for a shell, ``is_mendable``: --fix does it."""

    id: ProblemId
    message: str
    mend: tuple[str, ...]
    is_mendable: bool


@record
class Status:
    """A recorded wrap and how it is."""

    wrap: Wrap
    problems: tuple[Problem, ...]

    @property
    def state(self) -> str:
        """One word: "ok", or the first problem's."""
        return self.problems[0].id if self.problems else "ok"
