"""Standard input that is read twice. (C1)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, sys
from slicer.route.source import SpoolError, keep_stdin
try:
    keep_stdin(sys.argv[1])
except SpoolError as error:
    print(error, end="")
    sys.exit(9)
sys.stdout.buffer.write(os.pread(0, 100, 0) + b"|" + os.read(0, 100))
try:
    os.write(0, b"x")
except OSError as error:
    print("", error.strerror, sep="|", end="")
"""


def kept(directory: Path | str, **stdin: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", CODE, str(directory)]
    return subprocess.run(command, stdout=subprocess.PIPE, check=False, **stdin)  # type: ignore[call-overload,no-any-return]


def test_a_pipe_becomes_a_file_without_a_name_that_nobody_can_change(tmp_path: Path) -> None:
    done = kept(tmp_path, input=b"hello")
    assert done.stdout == b"hello|hello|Bad file descriptor"
    assert os.listdir(tmp_path) == []


def test_a_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"head body")
    with path.open("rb") as file:
        os.lseek(file.fileno(), 5, os.SEEK_SET)
        assert kept("/nonexistent", stdin=file).stdout.startswith(b"head body|body")


def test_nothing_is_an_empty_file(tmp_path: Path) -> None:
    assert kept(tmp_path, stdin=subprocess.DEVNULL).stdout.startswith(b"|")


def test_a_directory_that_is_not_there_is_an_error_with_its_reason() -> None:
    done = kept("/nonexistent", input=b"hello")
    assert done.returncode == 9
    assert done.stdout == (
        b"/nonexistent: standard input cannot be saved: No such file or directory "
        b"(set TMPDIR to a directory with more room)"
    )


def test_a_full_disk_is_an_error_with_its_reason(tmp_path: Path) -> None:
    done = kept(tmp_path, input=b"x" * 100_000, preexec_fn=_small_files)
    assert done.returncode == 9
    assert b"standard input cannot be saved: File too large" in done.stdout
    assert os.listdir(tmp_path) == []


def _small_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_where_files_need_names_it_loses_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On file systems without O_TMPFILE. A link that somebody put there is not followed."""
    import errno

    from slicer.route import source as spool

    opened = os.open

    def old(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        assert flags & os.O_EXCL
        assert flags & os.O_NOFOLLOW
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", old)
    fd = spool._nameless_file(str(tmp_path))
    assert os.listdir(tmp_path) == []
    os.close(fd)
