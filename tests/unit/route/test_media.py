"""What ffprobe's answers mean. (C1, C4) Real media: tests/process/test_probe_media.py"""

from __future__ import annotations

import pytest

from slicer.errors import ProbeError
from slicer.route.media import Media, duration_s, pixels, read
from slicer.route.probe_program import ProgramOutput


def media(*lines: str, stderr: bytes = b"", **format: str) -> Media:
    said = [f'format.{key}="{value}"' for key, value in format.items()]
    return read(ProgramOutput("\n".join([*lines, *said, ""]).encode(), stderr))


def stream(number: int, kind: str, **fields: object) -> str:
    said = [f'streams.stream.{number}.codec_type="{kind}"']
    said += [f"streams.stream.{number}.{key.replace('__', '.')}={value}" for key, value in fields.items()]
    return "\n".join(said)


VIDEO = stream(0, "video", width=1920, height=1080, duration='"59.9"', disposition__attached_pic=0)
AUDIO = stream(0, "audio", duration='"N/A"', disposition__attached_pic=0)
COVER = stream(1, "video", width=3000, height=3000, duration='"60.0"', disposition__attached_pic=1)


@pytest.mark.parametrize(
    ("lines", "format", "expected"),
    [
        ((VIDEO,), {"duration": "60.5"}, 60.5),  # of the file: its longest stream
        ((VIDEO,), {"duration": "N/A"}, 59.9),
        ((VIDEO,), {}, 59.9),
        ((AUDIO, COVER), {"duration": "180.25"}, 180.25),
        ((AUDIO, COVER), {"duration": "N/A"}, None),  # a cover lasts as long as its file is said to
        ((AUDIO,), {"duration": "-5"}, None),
        ((AUDIO,), {"duration": "nan"}, None),
        ((AUDIO,), {"duration": "inf"}, None),
        ((AUDIO,), {"duration": "0.000000"}, None),
        ((AUDIO,), {"duration": "abc"}, None),
    ],
)
def test_the_duration_is_the_files(
    lines: tuple[str, ...], format: dict[str, str], expected: float | None
) -> None:
    assert duration_s(media(*lines, **format)) == expected


def test_a_guess_from_the_bit_rate_is_no_measurement() -> None:  # C4
    warning = b"[mp3 @ 0x1] Estimating duration from bitrate, this may be inaccurate\n"
    assert duration_s(media(AUDIO, duration="180", stderr=warning)) is None


@pytest.mark.parametrize(
    ("lines", "format", "said"),
    [
        ((), {"duration": "60"}, "contains no audio and no video"),
        ((stream(0, "subtitle"),), {"duration": "60"}, "contains no audio and no video"),
        ((COVER.replace("stream.1", "stream.0"),), {"duration": "60"}, "contains no audio and no video"),
        ((VIDEO,), {"format_name": "tty", "duration": "0.04"}, "contains no audio and no video"),
        ((VIDEO,), {"format_name": "png_pipe"}, "is a picture, which has no duration"),
        ((VIDEO,), {"format_name": "image2", "duration": "0.04"}, "is a picture, which has no duration"),
        ((VIDEO,), {"format_name": "mov,mp4", "tags.major_brand": "avif"}, "is a picture"),
        ((VIDEO,), {"duration": "9999999999999"}, "an impossible duration of 1e+13 s: the file is damaged"),
    ],
)
def test_what_has_no_duration_is_an_error(
    lines: tuple[str, ...], format: dict[str, str], said: str
) -> None:  # C4
    with pytest.raises(ProbeError, match=said.replace("+", r"\+")):
        duration_s(media(*lines, **format))


def test_pixels_are_those_of_the_largest_video_stream() -> None:
    small = stream(2, "video", width=640, height=480, disposition__attached_pic=0)
    assert pixels(media(VIDEO, COVER, small)) == 1920 * 1080
    assert pixels(media(VIDEO, format_name="png_pipe")) == 1920 * 1080


@pytest.mark.parametrize(
    ("lines", "format", "said"),
    [
        ((AUDIO, COVER), {}, "contains no picture and no video"),
        ((stream(0, "video", width=0, height=0),), {}, "contains no picture"),
        ((stream(0, "video", width="N/A", height=-4),), {}, "contains no picture"),
        ((VIDEO,), {"format_name": "tty"}, "contains no picture"),
        ((VIDEO, VIDEO.replace("stream.0", "stream.1")), {"tags.major_brand": "heic"}, "several tiles"),
    ],
)
def test_what_has_no_size_is_an_error(
    lines: tuple[str, ...], format: dict[str, str], said: str
) -> None:  # C4
    with pytest.raises(ProbeError, match=said):
        pixels(media(*lines, **format))


def test_rubbish_is_no_media() -> None:  # C4
    for answer in (b"", b"\0\xff\n=\n==", b"streams.stream.1.codec_type=video\n"):
        with pytest.raises(ProbeError):
            duration_s(read(ProgramOutput(answer, b"")))
