"""What a job used over time, in a bounded size. (X8)"""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.model import Usage
from slicer.outcome import series
from slicer.outcome.series import GpuSeries, Reading, Recorder, Series

MIB = 1 << 20


def reading(
    cpu_s: float = 0.0, *, mib: int = 0, gpu: tuple[int, ...] = (), busy: tuple[int, ...] = ()
) -> Reading:
    return Reading(Usage(cpu_s=cpu_s, io_read_bytes=int(cpu_s * MIB)), mib * MIB, gpu, busy)


def recorded(count: int, gpus: int = 1) -> Recorder:
    """One that was read as often as was due: 1.5 CPUs in use."""
    made = Recorder(reading(), gpus, 100.0, 1e9)
    for _ in range(count):
        now_s = made.due_s
        cpu_s = 1.5 * (now_s - 100.0)
        made.add(reading(cpu_s, mib=int(now_s), gpu=(7,) * gpus, busy=(50,) * gpus), now_s)
    return made


def of(made: Recorder) -> Series:
    found = made.series()
    assert found is not None
    return found


def test_there_is_nothing_before_the_first_interval_is_over() -> None:
    made = Recorder(reading(), 1, 100.0, 1e9)
    made.add(reading(1.0), 100.4)
    assert made.series() is None


def test_each_interval_has_its_own_figures() -> None:
    made = Recorder(reading(3.0), 2, 100.0, 1e9)
    made.add(reading(5.0, mib=10, gpu=(1, 2), busy=(30, 40)), 101.0)
    made.add(reading(5.5, mib=4), 102.0)
    found = of(made)
    assert (found.started_at, found.step_s, found.ended_at) == (1e9, 1.0, 1e9 + 2)
    assert (found.cpu, found.memory_mib, found.read_mib) == ((2.0, 0.5), (10.0, 4.0), (2.0, 0.5))
    assert found.gpus == (GpuSeries((1, None), (30, None)), GpuSeries((2, None), (40, None)))
    assert (found.written_mib, found.stalled_io) == ((None, None), (None, None))


def test_a_late_reading_counts_for_all_intervals_that_it_missed() -> None:
    """As after a job that was frozen with its supervisor, or on a busy machine."""
    made = Recorder(reading(), 0, 100.0, 1e9)
    made.add(reading(1.0), 101.2)
    made.add(reading(4.8), 104.9)
    assert of(made).cpu == pytest.approx((1 / 1.2, *(3.8 / 3.7,) * 4))
    assert made.due_s == 106.0


@pytest.mark.parametrize("count", [series.MOST, series.MOST + 1, 5 * series.MOST])
def test_a_long_job_has_longer_intervals(count: int) -> None:
    found = of(recorded(count))
    assert series.MOST // 2 <= len(found.cpu) <= series.MOST
    assert set(found.cpu) == {1.5}
    assert found.memory_mib[-1] == 100 + found.ended_at - found.started_at
    assert found.step_s == (1.0 if count == series.MOST else 2.0 if count == series.MOST + 1 else 2.0**8)


def test_joined_intervals_keep_the_larger_memory_and_the_mean_of_the_rest() -> None:
    made = Recorder(reading(), 1, 0.0, 1e9)
    for second in range(1, series.MOST + 3):
        cpu_s, odd = second // 2 * 2.0, second % 2
        made.add(reading(cpu_s, mib=9 - odd, gpu=(3 + odd,), busy=(20 * odd,)), float(second))
    found = of(made)
    assert (set(found.cpu), set(found.memory_mib)) == ({1.0}, {9.0})
    assert found.gpus[0].mib[0] == 4
    assert found.gpus[0].busy[0] == 10


def test_a_week_is_noted_at_once() -> None:
    """However long the process that samples did not run, that takes no memory."""
    made = recorded(3)
    made.add(reading(7 * 86400.0), 100.0 + 7 * 86400.0)
    found = of(made)
    assert len(found.cpu) <= series.MOST
    assert found.ended_at - found.started_at == pytest.approx(7 * 86400.0, abs=found.step_s)


def test_eight_gpus_of_a_week_take_less_than_64_kib() -> None:
    chance, made = random.Random(1), Recorder(reading(), 8, 0.0, 1e9)
    cpu_s = 0.0
    for _ in range(series.MOST - 1):
        cpu_s += chance.random()
        mib = tuple(chance.randrange(80_000) for _ in range(8))
        busy = tuple(chance.randrange(101) for _ in range(8))
        made.add(reading(cpu_s, mib=chance.randrange(80_000), gpu=mib, busy=busy), made.due_s)
    assert len(series.encode(of(made))) < series.LARGEST


VALUES = st.one_of(st.none(), st.floats(0, 1e6, width=32))


@given(st.integers(1, 20), st.integers(0, 9), st.data())
def test_a_series_survives_as_bytes(count: int, gpus: int, data: st.DataObject) -> None:
    def column() -> tuple[float | None, ...]:
        return tuple(data.draw(st.lists(VALUES, min_size=count, max_size=count)))

    made = Series(
        1e9, 4.0, column(), column(), column(), column(), column(), column(), column(),
        tuple(GpuSeries(column(), column()) for _ in range(gpus)),
    )  # fmt: skip
    assert series.decode(series.encode(made)) == made


@given(st.binary(max_size=200))
def test_what_is_no_series_is_none(data: bytes) -> None:
    assert series.decode(data) is None
    series.decode(zlib.compress(data))


def test_a_damaged_series_is_none() -> None:
    good = series.encode(of(recorded(5)))
    assert series.decode(good[:-9]) is None
    raw = bytearray(zlib.decompress(good))
    assert series.decode(zlib.compress(bytes(raw[:-4]))) is None
    raw[0] = 2
    assert series.decode(zlib.compress(bytes(raw))) is None
    assert series.decode(zlib.compress(bytes(50_000_000))) is None
