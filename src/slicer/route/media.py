"""Duration and pixels of media: the calls of ffprobe, and the meaning of its answers."""

from __future__ import annotations

from slicer.config.metric_units import LONGEST_S
from slicer.errors import ProbeError
from slicer.record import record
from slicer.route.probe_program import FFPROBE, MOST_BYTES, ProgramOutput, ProgramStart, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


_FFPROBE = (FFPROBE, "-hide_banner", "-v", "warning")
# A playlist may name any URL. Measuring a file must not fetch anything.
_SAFE = ("-protocol_whitelist", "file,crypto,data")
_ENTRIES = (
    "format=format_name,duration,start_time:format_tags=major_brand"
    ":stream=codec_type,width,height,duration:stream_disposition=attached_pic"
)
_ESTIMATED = b"Estimating duration from bitrate"
_STILL = ("avif", "heic", "heix", "heim", "heis", "mif1")  # brands of ISO media files with pictures


@record
class Stream:
    """A stream of a file. A number is 0 if ffprobe does not report it."""

    kind: str  # "video", "audio", "subtitle", …
    is_cover: bool  # a picture attached to the file, such as an album cover
    duration_s: float
    pixels: int


@record
class Media:
    format: str  # such as "mov,mp4,m4a"
    brand: str
    duration_s: float
    start_s: float
    is_estimated: bool  # the duration is a guess by the bit rate
    streams: tuple[Stream, ...]


def look(path: str, timeout_s: float, setting: ProgramStart) -> Media:
    """Ask ffprobe about a file. Raises ProbeError."""
    command = (*_FFPROBE, *_SAFE, "-show_entries", _ENTRIES, "-of", "flat", "-i", f"file:{path}")
    return read(ask(command, timeout_s, setting))


def read(answer: ProgramOutput) -> Media:
    fields = {}
    for line in answer.stdout.decode("utf-8", "replace").split("\n"):
        key, _, value = line.strip().partition("=")
        fields[key] = value.strip('"')
    streams: list[Stream] = []
    while (head := f"streams.stream.{len(streams)}") + ".codec_type" in fields:
        pixels = int(_number(fields, f"{head}.width") * _number(fields, f"{head}.height"))
        is_cover = fields.get(f"{head}.disposition.attached_pic") == "1"
        duration_s = _number(fields, f"{head}.duration")
        streams.append(Stream(fields[f"{head}.codec_type"], is_cover, duration_s, pixels))
    return Media(
        format=fields.get("format.format_name", ""),
        brand=fields.get("format.tags.major_brand", ""),
        duration_s=_number(fields, "format.duration"),
        start_s=_number(fields, "format.start_time"),
        is_estimated=_ESTIMATED in answer.stderr,
        streams=tuple(streams),
    )


def _number(fields: Mapping[str, str], key: str) -> float:
    """A number that is not negative; 0 for anything else ("N/A")."""
    try:
        found = float(fields.get(key, "0"))
    except ValueError:
        return 0.0
    return found if 0 <= found < 2**63 else 0.0


def duration_s(media: Media) -> float | None:
    """The duration of the file, or of its longest audio or video stream if the file has none.

    None if ffprobe does not know it. Raises ProbeError if the file can have no duration.
    """
    if media.format.endswith("_pipe") or media.format == "image2" or media.brand in _STILL:
        raise ProbeError("is a picture, which has no duration")
    playing = [each for each in media.streams if each.kind in ("audio", "video") and not each.is_cover]
    if not playing or media.format == "tty":  # ffprobe's format for any text file
        raise ProbeError("contains no audio and no video")
    found = media.duration_s or max(each.duration_s for each in playing)
    if found >= LONGEST_S:
        raise ProbeError(f"has an impossible duration of {found:.6g} s: the file is damaged")
    return found if found and not media.is_estimated else None


def scan_duration_s(path: str, media: Media, timeout_s: float, setting: ProgramStart) -> float:
    """The duration of a file that does not state it: the end of its last packets. Reads the whole file.

    Raises ProbeError.
    """
    command = (*_FFPROBE, *_SAFE, "-show_entries", "packet=pts_time,duration_time", "-of", "csv=p=0")
    answer = ask((*command, "-i", f"file:{path}"), timeout_s, setting, keeps_end=True)
    end_s = 0.0
    packets = answer.stdout.decode("ascii", "replace").split("\n")
    is_cut = len(answer.stdout) >= MOST_BYTES  # then the first line lacks its beginning
    for line in packets[is_cut:]:
        begins, _, lasts = line.partition(",")
        fields = {"begins": begins, "lasts": lasts.rstrip(",")}
        if begin_s := _number(fields, "begins"):  # packets of a raw stream have a duration and no time
            end_s = max(end_s, begin_s + _number(fields, "lasts"))
    found = end_s - media.start_s
    if found <= 0 or found >= LONGEST_S:
        hint = "copy it with ffmpeg -c copy, which adds one"
        raise ProbeError("has no duration, and its packets have no times", hint=hint)
    return found


def pixels(media: Media) -> int:
    """The pixels of one frame of the largest video stream, or of the picture. Raises ProbeError."""
    seen = [each.pixels for each in media.streams if each.kind == "video" and not each.is_cover]
    if not any(seen) or media.format == "tty":
        raise ProbeError("contains no picture and no video")
    if media.brand in _STILL and len(seen) > 1:
        hint = "measure it with a probe_command"
        raise ProbeError("consists of several tiles, and ffprobe does not report its size", hint=hint)
    return max(seen)
