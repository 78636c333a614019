"""What probes of routes say of real media, by the real ffprobe (C1, C4)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from slicer.config.routes import Destination, Probe, Route
from slicer.errors import ProbeError
from slicer.route import probing
from tests import media


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("media")
    media.make(directory)
    return directory


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: files of odd names can be named as they are."""
    media.need_tools()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def route(kind: str) -> Route:
    probe = Probe(kind, (), 30.0, 1.3)  # type: ignore[arg-type]
    destination = Destination("gpu", "gpu", (None,), (), (), (), "gpu", None, "", None, None, "fail", 75)
    return Route("captions", "", (probe,), -1, (destination,), "fail", "fail", True, None, {})


def measured(kind: str, path: Path | str) -> float:
    _, (metric,) = probing.measure(route(kind), ("whisper", str(path)), 0)
    assert metric.kind == kind
    return float(metric.value)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("film.mp4", 2),
        ("film.mkv", 2),
        ("silent.mp4", 2),
        ("talk.wav", 2),
        ("talk.mp3", 2),
        ("live.mkv", 2),  # by its packets: nobody has written down how long it is
        ("cut.mkv", 2),  # as its beginning says
    ],
)
def test_a_recordings_duration_is_what_ffprobe_says(made: Path, name: str, seconds: float) -> None:  # C1
    assert measured("duration", made / name) == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("image.png", 640 * 480),
        ("image.jpg", 1920 * 1080),
        ("image.webp", 800 * 600),
        ("film.mp4", 320 * 240),
        ("film.mkv", 320 * 240),
        ("silent.mp4", 320 * 240),
    ],
)
def test_pixels_are_those_of_one_frame(made: Path, name: str, pixels: int) -> None:  # C1
    assert measured("pixels", made / name) == pixels


def test_a_films_size_is_its_duration_times_its_frame(made: Path) -> None:  # C1, N9
    assert measured("megapixel_seconds", made / "film.mp4") == pytest.approx(2 * 0.0768, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("megapixel_seconds", "talk.wav"),
        ("megapixel_seconds", "image.png"),
        ("duration", "raw.h264"),
        ("duration", "image.png"),
        ("duration", "image.jpg"),  # 0.04 s, ffprobe says
        ("duration", "cut.mp4"),
        ("duration", "empty.wav"),
        ("duration", "text.txt"),
        ("duration", "."),
        ("pixels", "talk.wav"),
        ("pixels", "talk.mp3"),  # its cover is no film
        ("pixels", "cut.mp4"),
        ("pixels", "text.txt"),
        ("pixels", "."),
    ],
)
def test_what_has_no_such_measure_is_an_error_with_a_reason(made: Path, kind: str, name: str) -> None:  # C4
    with pytest.raises(ProbeError) as failure:
        measured(kind, made / name)
    assert failure.value.kind == "probe"
    assert "\n" not in str(failure.value)


def test_hours_take_no_room_to_measure(here: Path) -> None:  # C1
    media.silence("long.wav", 3 * 3600)
    assert measured("duration", "long.wav") == 3 * 3600
    assert measured("size", "long.wav") == 44 + 3 * 3600 * 8


@pytest.mark.parametrize(
    "name",
    [
        "-version", "-i.wav", "a b.wav", "a\nb.wav", "a:b.wav", "http:a.wav", "file:a.wav", "pipe:0", "fd:0",
        "concat:a.wav|b.wav", "subfile,,start,0,end,0,,:a.wav", "talk%03d.wav", "image%03d.png", "*.wav",
        "~", "$HOME.wav", "\x1b[31m.wav", "ä.wav", os.fsdecode(b"\xff\xfe.wav"),
    ],
)  # fmt: skip
def test_a_name_is_a_name_whatever_it_looks_like(here: Path, name: str) -> None:  # C1, C4
    media.silence(name, 7200)
    assert measured("duration", name) == 7200


def test_an_image_whose_name_is_a_pattern_is_one_image(here: Path, made: Path) -> None:  # C1
    for name, source in (("%03d.png", "image.png"), ("001.png", "image.jpg")):
        Path(name).write_bytes((made / source).read_bytes())
    assert measured("pixels", "%03d.png") == 640 * 480


@pytest.mark.parametrize("end", ["", "#EXT-X-ENDLIST\n"], ids=["live", "ended"])
def test_a_playlist_is_an_error_at_once_and_opens_nothing(here: Path, end: str) -> None:  # C4, N9
    """A file may name others, and addresses. What is measured is what the command line names."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        Path("list.m3u8").write_text(
            f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nhttp://127.0.0.1:{port}/a.ts\n{end}"
        )
        with pytest.raises(ProbeError, match="is a playlist"):
            measured("duration", "list.m3u8")
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()
