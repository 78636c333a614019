"""A job's figures over time, in a bounded size. Pure.

A recorder keeps one value an interval, of each figure. When it is full, it joins neighbouring intervals, and
an interval is twice as long from then on. So a job of any length has between 240 and 480 intervals, or fewer
in its first minutes.
"""

from __future__ import annotations

import struct
import zlib

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicer.model import Usage

    Values = tuple[float | None, ...]  # one an interval; None: unknown
    _Join = Callable[[float | None, float | None], float | None]

STEP_S = 1.0  # the first intervals
MOST = 480  # intervals; an even number
LARGEST = 64 << 10  # bytes of an encoded series
_VERSION = 1
_HEADER = struct.Struct("<BxHIdd")  # version, GPUs, intervals, beginning, step
_MOST_GPUS = 64


@record
class Reading:
    """What a job has used so far, and what it uses now; None, or (): unknown."""

    usage: Usage  # its sums
    memory_bytes: int | None
    gpu_mib: tuple[int, ...] = ()  # in the order of the lease's GPUs
    gpu_busy: tuple[int | None, ...] = ()  # their utilisation, in percent


@record
class GpuSeries:
    mib: Values  # the job's memory on this GPU; of joined intervals the larger
    busy: Values  # the GPU's utilisation in percent; of joined intervals the mean


@record
class Series:
    """A job's figures, one value an interval. Of joined intervals the mean counts, of memory the larger."""

    started_at: float  # of the first interval, in seconds since 1970
    step_s: float  # the length of an interval
    cpu: Values  # CPUs in use, 1.5 for one and a half
    memory_mib: Values
    read_mib: Values  # MiB a second
    written_mib: Values
    stalled_cpu: Values  # the fraction of the interval in which some process waited for it (PSI "some")
    stalled_memory: Values
    stalled_io: Values
    gpus: tuple[GpuSeries, ...]  # in the order of the lease's GPUs

    @property
    def ended_at(self) -> float:
        """The end of the last interval, in seconds since 1970."""
        return self.started_at + self.step_s * len(self.cpu)


def _mean(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else (one + other) / 2


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


_JOINS: tuple[_Join, ...] = (_mean, _larger, _mean, _mean, _mean, _mean, _mean)
_GPU_JOINS = (_larger, _mean)


class Recorder:
    """The series of a running job. Times are monotonic, but for ``started_at``."""

    def __init__(self, first: Reading, gpus: int, now_s: float, started_at: float) -> None:
        """``first``: what was used before the first interval."""
        self._last, self._last_s = first, now_s
        self._gpus = gpus
        self._began_s = now_s
        self._started_at = started_at
        self._step_s = STEP_S
        self._joins = _JOINS + _GPU_JOINS * gpus
        self._columns: list[list[float | None]] = [[] for _ in self._joins]

    @property
    def due_s(self) -> float:
        """When the current interval ends."""
        return self._began_s + self._step_s * (len(self._columns[0]) + 1)

    def add(self, reading: Reading, now_s: float) -> None:
        """Note the intervals since the last reading. They get the same values, if there are several."""
        while len(self._columns[0]) + (count := self._count_until(now_s)) > MOST:
            self._step_s *= 2
            self._columns = list(map(_joined, self._columns, self._joins))
        if count < 1:
            return
        values = self._values(reading, now_s - self._last_s)
        for column, value in zip(self._columns, values, strict=True):
            column += [value] * count
        self._last, self._last_s = reading, now_s

    def series(self) -> Series | None:
        """None: the job was over before the first interval was."""
        if not self._columns[0]:
            return None
        return _series(self._started_at, self._step_s, [tuple(column) for column in self._columns])

    def _count_until(self, now_s: float) -> int:
        return round((now_s - self._began_s) / self._step_s) - len(self._columns[0])

    def _values(self, reading: Reading, passed_s: float) -> list[float | None]:
        then, now, memory = self._last.usage, reading.usage, reading.memory_bytes

        def rate(name: str, unit: float = 1.0, most: float = float("inf")) -> float | None:
            before: float | None = getattr(then, name)
            after: float | None = getattr(now, name)
            if before is None or after is None:
                return None
            return min(most, max(0.0, after - before) / unit / passed_s)

        values = [
            rate("cpu_s"),
            None if memory is None else memory / _MIB,
            rate("io_read_bytes", _MIB),
            rate("io_write_bytes", _MIB),
            *(rate(f"pressure_{what}_s", most=1.0) for what in ("cpu", "memory", "io")),
        ]
        for number in range(self._gpus):
            values += [_at(reading.gpu_mib, number), _at(reading.gpu_busy, number)]
        return values


_MIB = float(1 << 20)


def _joined(column: Sequence[float | None], join: _Join) -> list[float | None]:
    """Half as many values. The last one of an odd number stays by itself."""
    pairs = zip(column[::2], column[1::2], strict=False)
    return [join(one, other) for one, other in pairs] + list(column[len(column) // 2 * 2 :])


def _at(values: Sequence[int | None], number: int) -> float | None:
    return values[number] if number < len(values) else None


def _series(started_at: float, step_s: float, columns: list[Values]) -> Series:
    cpu, memory, read, written, for_cpu, for_memory, for_io, *more = columns
    gpus = tuple(map(GpuSeries, more[::2], more[1::2]))
    return Series(started_at, step_s, cpu, memory, read, written, for_cpu, for_memory, for_io, gpus)


# -- as bytes -----------------------------------------------------------------------------------------------


def encode(series: Series, most: int = LARGEST) -> bytes:
    """The series as 32-bit numbers, compressed: at most ``most`` bytes, with longer intervals if need be."""
    columns: list[Sequence[float | None]] = [getattr(series, name) for name in _OWN]
    columns += [values for gpu in series.gpus for values in (gpu.mib, gpu.busy)]
    step_s = series.step_s
    while True:
        header = _HEADER.pack(_VERSION, len(series.gpus), len(columns[0]), series.started_at, step_s)
        data = zlib.compress(header + b"".join(map(_packed, columns)))
        if len(data) <= most or len(columns[0]) == 1:
            return data
        joins = _JOINS + _GPU_JOINS * len(series.gpus)
        columns, step_s = list(map(_joined, columns, joins)), step_s * 2


def decode(data: bytes) -> Series | None:
    """None: it is damaged, or of another version. Anybody may have written it: it takes little memory."""
    reader, most = zlib.decompressobj(), _HEADER.size + 4 * MOST * (len(_OWN) + 2 * _MOST_GPUS)
    try:
        text = reader.decompress(data, most)
        version, gpus, count, started_at, step_s = _HEADER.unpack_from(text)
    except (zlib.error, struct.error):
        return None
    columns = len(_OWN) + len(_GPU_JOINS) * gpus
    is_whole = reader.eof and not reader.unused_data and version == _VERSION and count
    is_whole = is_whole and len(text) == _HEADER.size + 4 * count * columns
    if not is_whole or not 0 < step_s < _LONG_S or not 0 <= started_at < _LONG_S:
        return None
    starts = range(_HEADER.size, len(text), 4 * count)
    found = [_unpacked(text[start : start + 4 * count]) for start in starts]
    if not all(map(_are_figures, found)):
        return None
    return _series(started_at, step_s, found)


def _are_figures(values: Values) -> bool:
    known = [value for value in values if value is not None]
    return not known or (min(known) >= 0 and max(known) <= _LARGE)


_OWN = tuple(name for name in Series.__annotations__ if name not in ("started_at", "step_s", "gpus"))
_LONG_S, _LARGE = 1e11, 1e12  # more than any clock and any figure


def _packed(values: Sequence[float | None]) -> bytes:
    unknown = float("nan")
    return struct.pack(f"<{len(values)}f", *[unknown if value is None else value for value in values])


def _unpacked(data: bytes) -> Values:
    return tuple([None if value != value else value for value in struct.unpack(f"<{len(data) // 4}f", data)])
