"""Recordings, films and images that ffmpeg makes, for tests that measure them with the real ffprobe."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from tests.machines import host
from tests.machines.settings import ci

TIMEOUT_S = 120

# Two seconds of a film of 320x240, and of a tone.
_FILM = ("-f", "lavfi", "-i", "testsrc=size=320x240:rate=10:duration=2")
_TONE = ("-f", "lavfi", "-i", "sine=duration=2")
_COVER = ("-f", "lavfi", "-i", "color=size=600x600:duration=0.04")
_ONE_IMAGE = ("-frames:v", "1", "-update", "1")

# A file's name and how ffmpeg makes it.
_MADE = {
    "film.mp4": (*_FILM, *_TONE, "-shortest"),
    "film.mkv": (*_FILM, *_TONE, "-shortest"),
    "silent.mp4": _FILM,
    "talk.wav": _TONE,
    "talk.mp3": (*_TONE, *_COVER, "-map", "0", "-map", "1", "-disposition:v", "attached_pic"),
    "raw.h264": (*_FILM, "-f", "h264"),
    "image.png": ("-f", "lavfi", "-i", "color=size=640x480", *_ONE_IMAGE),
    "image.jpg": ("-f", "lavfi", "-i", "color=size=1920x1080", *_ONE_IMAGE),
    "image.webp": ("-f", "lavfi", "-i", "color=size=800x600", *_ONE_IMAGE),
}


def need_tools() -> None:
    """Without ffmpeg and ffprobe the test is skipped, and fails in CI."""
    missing = [name for name in host.MEDIA_TOOLS if host.tool(name) is None]
    if missing:
        reason = f"{missing[0]} is not installed (Debian's ffmpeg; `make test` installs it)"
        if ci():
            pytest.fail(f"{reason} (CI=true, so this is no skip)")
        pytest.skip(reason)


def ffmpeg(*arguments: str | Path) -> bytes:
    """What ffmpeg writes to standard output."""
    line = ("ffmpeg", "-v", "error", "-nostdin", "-y", *map(str, arguments))
    done = subprocess.run(line, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def make(directory: Path) -> None:
    """Write them all into the directory."""
    need_tools()
    for name, arguments in _MADE.items():
        ffmpeg(*arguments, directory / name)
    # To a pipe ffmpeg cannot write how long it became. (The packets of raw.h264 do not even have times.)
    (directory / "live.mkv").write_bytes(ffmpeg(*_TONE, "-f", "matroska", "-"))
    # The index of an mp4 stands at its end; the duration of an mkv stands at its beginning.
    for kind in ("mp4", "mkv"):
        film = (directory / f"film.{kind}").read_bytes()
        (directory / f"cut.{kind}").write_bytes(film[: len(film) // 2])
    (directory / "empty.wav").touch()
    (directory / "text.txt").write_text("no recording\n")


def silence(path: Path | str, seconds: int, *, rate: int = 8, channels: int = 1) -> None:
    """A WAV file of any length. Its samples are a hole in the file."""
    size = seconds * rate * channels
    form = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * channels, channels, 8)
    head = b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + form + b"data" + struct.pack("<I", size)
    with open(path, "wb") as file:
        file.write(head)
        os.ftruncate(file.fileno(), len(head) + size)
