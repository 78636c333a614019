"""The input of a job, opened to be measured: it waits for nothing, and opens no FIFO and no device.

Standard input is first made a file, which a probe and the command can both read.
"""

from __future__ import annotations

import errno
import os
import stat

from slicer.errors import ProbeError, SlicerError
from slicer.route.finding import STANDARD_INPUT
from slicer.state.directory import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.route.finding import Kind

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_NAMES = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # a prompt, an address
_OF_PROGRAM = "/proc/self/fd/0"  # opened by its path, it gets its own offset
_STDIN = 0
_CHUNK = 1 << 20
_PLAYLIST = b"#EXTM3U"
_NOUNS = {"file": "a file", "directory": "a directory", "": "no file"}


def kind_of(word: str) -> Kind:
    """What a word names. Something that we may not examine counts as existing."""
    try:
        return _kind(os.stat(word).st_mode)
    except PermissionError:
        return "other"
    except (OSError, ValueError):
        return ""


def _kind(mode: int) -> Kind:
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"


class Source:
    """A file or directory, or standard input from its offset on, if that is a file.

    If there is nothing with that name, ``kind`` is "" and ``fd`` -1.
    """

    def __init__(self, word: str, stdin_fd: int, *, may_be_absent: bool) -> None:
        """``word`` is the input as in the command line. Raises ProbeError, OSError."""
        self._word = word
        self._is_stdin = word == STANDARD_INPUT
        self.start = 0
        self.fd = -1
        self.kind: Kind = ""
        if self._is_stdin:
            self.fd, self.kind = stdin_fd, _measurable(os.fstat(stdin_fd), is_stdin=True)
            self.start = os.lseek(stdin_fd, 0, os.SEEK_CUR) if self.kind == "file" else 0
            return
        try:
            _measurable(os.stat(word))
            self.fd = os.open(word, _OPEN)
        except OSError as error:
            if may_be_absent and error.errno in _NO_NAMES:
                return
            raise
        try:
            self.kind = _measurable(os.fstat(self.fd))  # the file may have been replaced
        except ProbeError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Restore the offset of standard input, because a probe may have read from it."""
        if self._is_stdin and self.kind == "file":
            os.lseek(self.fd, self.start, os.SEEK_SET)
        elif not self._is_stdin and self.fd >= 0:
            os.close(self.fd)

    def check(self, kind: Kind, probe: str) -> None:
        """Raise ProbeError if the probe cannot measure this."""
        if self.kind != kind:
            hint = 'probe "count" counts the files of a directory' if self.kind == "directory" else ""
            message = f"is {_NOUNS[self.kind]}, but probe {probe} measures {_NOUNS[kind]}"
            raise ProbeError(message, hint=hint)

    def check_no_playlist(self) -> None:
        """Raise ProbeError for a playlist (M3U): for a live one, ffprobe would wait until the timeout."""
        if os.pread(self.fd, len(_PLAYLIST), self.start) == _PLAYLIST:
            raise ProbeError("is a playlist: it has no duration of its own, and its entries are not opened")

    def size(self) -> int:
        """Its bytes; of standard input, those from its offset on."""
        return max(0, os.fstat(self.fd).st_size - self.start)

    def for_program(self, *, pattern: str = "") -> tuple[str, int]:
        """The path for a program, and the descriptor for its standard input (-1: none).

        A name with a character of ``pattern`` would mean other files to the program. Then the program gets no
        name.
        """
        if self._is_stdin or set(pattern) & set(self._word):
            os.lseek(self.fd, self.start, os.SEEK_SET)
            return _OF_PROGRAM, self.fd
        # A file's name must not look like an option.
        is_option = self._word[:1] == "-" and self.fd >= 0
        return f"./{self._word}" if is_option else self._word, -1


def _measurable(found: os.stat_result, *, is_stdin: bool = False) -> Kind:
    """Raises ProbeError for anything that would block, or that can be read only once."""
    kind = _kind(found.st_mode)
    if kind != "other":
        return kind
    is_pipe = stat.S_ISFIFO(found.st_mode)
    what = "a pipe" if is_pipe else "a socket" if stat.S_ISSOCK(found.st_mode) else "a device"
    hint = 'input = "stdin" in the route reads it into a file first' if is_pipe and is_stdin else ""
    raise ProbeError(f"is {what}, which cannot be measured and then read again", hint=hint)


# -- standard input -----------------------------------------------------------------------------------------


class SpoolError(SlicerError):
    """Standard input could not be saved for the command."""

    kind = "spool"


def keep_stdin(directory: str) -> None:
    """Make stdin a file: the content of a pipe is first written to a file in ``directory``.

    Nobody else can see the file. It vanishes with the last process that has it open. Raises SpoolError.
    """
    if stat.S_ISREG(os.fstat(_STDIN).st_mode):
        return
    fd = -1
    try:
        fd = _nameless_file(directory)
        size = 0
        while data := os.read(_STDIN, _CHUNK):
            write_all(fd, data, size)
            size += len(data)
        # A new open file description: the command reads from the beginning, and cannot write.
        read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(read_only, _STDIN)
        os.close(read_only)
    except OSError as error:
        hint = "set TMPDIR to a directory with more room"
        message = f"standard input cannot be saved: {error.strerror}"
        raise SpoolError(message, where=directory, hint=hint) from error
    finally:
        if fd >= 0:
            os.close(fd)


def _nameless_file(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # A file system or kernel may not know O_TMPFILE: open(2).
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT) or not os.path.isdir(directory):
            raise
    path = os.path.join(directory, f"slicer-{os.urandom(8).hex()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd
