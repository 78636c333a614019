"""What all users' jobs took is kept: once each, through kills and bad clocks, and without end of room."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slicer.broker import accounts as reading
from slicer.broker.accounts import jobs, samples
from slicer.broker.protocol.messages import Finished, UsageRow
from slicer.broker.server import accounts as module
from slicer.broker.server.accounts import Accounts, EndedLease
from slicer.model import Usage
from slicer.outcome.series import Series, encode
from slicer.outcome.totals import WAITS_S
from slicer.record import replace
from tests.unit import made_up

pytestmark = pytest.mark.both_pythons

DAY_S = 86400.0


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ended(
    job: str = "aaaaaaaaaaaa", *, ago_s: float = 0.0, held_s: float = 100.0, **fields: object
) -> EndedLease:
    """A lease of one GPU that ended so long ago."""
    end_s = now_s() - ago_s
    fields = {"gpus": ("GPU-a",), "profile": "heavy", **fields}
    lease = made_up.lease(job, since_s=end_s - held_s, **fields)
    told = Finished(job, "exited", 3, held_s, 5.0, 40.0, 1 << 30, (900,))
    return EndedLease(lease, 100, end_s, 5.0, float(len(lease.gpus)), 8000, told, Usage(cpu_s=50.0))


@pytest.fixture
def said() -> list[str]:
    return []


OPENED: list[Accounts] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Python 3.13 warns of connections that are left to the garbage."""
    yield
    while OPENED:
        OPENED.pop().close()


def opened(path: Path, said: list[str], half_life_s: float = 7 * DAY_S) -> Accounts:
    OPENED.append(Accounts(lambda: half_life_s, directory=str(path / "lib"), warn=said.append))
    return OPENED[-1]


def add(accounts: Accounts, job: EndedLease) -> None:
    accounts.note(job)
    accounts.write()


def test_a_job_is_counted_once_and_for_its_user(tmp_path: Path, said: list[str]) -> None:  # L5
    accounts = opened(tmp_path, said)
    mine, other = ended(), ended("bbbbbbbbbbbb", uid=1001, profile="cpu", gpus=(), held_s=10.0)
    for each in (mine, mine, other):
        add(accounts, each)
    accounts.close()
    again = opened(tmp_path, said)
    add(again, mine)  # the broker was killed before it knew that this was written
    assert again.past()[1000].gpu_s == pytest.approx(100.0, rel=1e-3)
    row = UsageRow("1000", 1, 0, 100.0, 8000 * 100.0, 50.0, 5.0)
    assert again.usage(None, 1000, "user") == [made(row)]
    assert [each.of for each in again.usage(None, None, "profile")] == ["heavy", "cpu"]
    assert [each.jobs for each in again.usage(None, None, "group")] == [2]
    assert oct((tmp_path / "lib" / "usage.db").stat().st_mode & 0o777) == "0o600"
    assert not said


def made(row: UsageRow) -> UsageRow:
    """Equal to a row whose numbers are as good as the same."""
    return UsageRow(row.of, row.jobs, row.running, *(
        pytest.approx(getattr(row, name), rel=1e-6) for name in ("gpu_s", "vram_mib_s", "cpu_s", "waited_s")
    ))  # fmt: skip


def test_a_job_id_that_comes_again_is_another_job(tmp_path: Path, said: list[str]) -> None:  # L5
    accounts = opened(tmp_path, said)
    add(accounts, ended(ago_s=500.0))
    add(accounts, ended())  # a user chooses its jobs' ids: that must not make the second one free
    assert accounts.usage(None, 1000, "user")[0].jobs == 2


def test_since_takes_the_part_of_a_job_that_lies_within(tmp_path: Path, said: list[str]) -> None:  # L5
    accounts = opened(tmp_path, said)
    add(accounts, ended(ago_s=50.0, held_s=100.0))
    add(accounts, ended("bbbbbbbbbbbb", ago_s=1000.0))
    [row] = accounts.usage(time.time() - 100.0, None, "user")
    assert row.jobs == 1
    assert row.gpu_s == pytest.approx(50.0, abs=1.0)
    assert row.waited_s == 0.0  # it waited before


@pytest.mark.parametrize(("jump_s", "left"), [(0.0, 1.0), (-400 * DAY_S, 1.0), (7 * DAY_S, 0.5)])
def test_use_decays_by_the_clock_and_a_clock_set_back_takes_nothing_off(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, jump_s: float, left: float
) -> None:  # L3
    accounts = opened(tmp_path, said)
    add(accounts, ended())
    accounts.close()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    past = opened(tmp_path, said).past()[1000]
    assert past.gpu_s * 2 ** -((now_s() - past.at_s) / (7 * DAY_S)) == pytest.approx(100.0 * left, rel=1e-2)


def test_only_so_many_jobs_of_a_user_are_kept_and_their_sums_stay(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # L5
    monkeypatch.setattr(module, "MOST_JOBS", 5)
    monkeypatch.setattr(module, "_FOLDED", 3)
    monkeypatch.setattr(module, "_MOST_PROFILES", 2)
    accounts = opened(tmp_path, said)
    add(accounts, ended("cccccccccccc", uid=1001))
    for number in range(40):
        add(accounts, ended(f"{number:012x}", profile=f"p{number}", ago_s=100.0 - number))
    sums = accounts.usage(None, None, "user")
    assert [(each.of, each.jobs) for each in sums] == [("1000", 40), ("1001", 1)]
    assert sums[0].gpu_s == pytest.approx(4000.0)
    profiles = {each.of: each.jobs for each in accounts.usage(None, 1000, "profile")}
    assert sum(profiles.values()) == 40
    assert len(profiles) <= 5 + 3 + 2 + 1  # those kept one by one, two names in the days, and the others
    with closing(sqlite3.connect(tmp_path / "lib" / "usage.db")) as connection, connection:
        assert connection.execute("SELECT count(*) FROM jobs WHERE uid = 1000").fetchone()[0] <= 5 + 3


def test_without_a_database_shares_still_count_and_the_trouble_is_told_once(
    tmp_path: Path, said: list[str]
) -> None:  # L3
    (tmp_path / "lib").mkdir()
    os.symlink("/etc/passwd", tmp_path / "lib" / "usage.db")
    accounts = opened(tmp_path, said)
    add(accounts, ended())
    add(accounts, ended("bbbbbbbbbbbb"))
    assert accounts.past()[1000].gpu_s == pytest.approx(200.0, rel=1e-3)
    assert len(said) == 1
    assert "usage.db" in said[0]


def test_what_a_full_disk_keeps_out_is_booked_later(tmp_path: Path, said: list[str]) -> None:  # L5
    accounts = opened(tmp_path, said)
    blocker = sqlite3.connect(tmp_path / "lib" / "usage.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    add(accounts, ended())
    assert accounts.past()[1000].gpu_s == pytest.approx(100.0, rel=1e-3)
    blocker.execute("ROLLBACK")
    blocker.close()
    add(accounts, ended("bbbbbbbbbbbb"))
    assert accounts.usage(None, None, "user")[0].jobs == 2
    assert accounts.past()[1000].gpu_s == pytest.approx(200.0, rel=1e-3)
    assert len(said) == 1


def test_a_damaged_database_is_kept_aside(tmp_path: Path, said: list[str]) -> None:  # L5
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "usage.db").write_bytes(b"nonsense" * 200)
    accounts = opened(tmp_path, said)
    add(accounts, ended())
    assert accounts.usage(None, None, "user")[0].jobs == 1
    assert (tmp_path / "lib" / "usage.db.damaged").exists()
    assert "damaged" in said[0]


SERIES = Series(1e9, 1.0, (1.0,), (2.0,), (3.0,), (None,), (0.0,), (0.0,), (0.0,), ())


def test_series_belong_to_the_users_last_job_of_that_id(tmp_path: Path, said: list[str]) -> None:  # X8, L5
    """Before its lease ends, or after; the first one counts; nobody writes to another's."""
    accounts, data = opened(tmp_path, said), encode(SERIES)
    path = str(tmp_path / "lib" / "usage.db")
    mine, other = ended(), ended("bbbbbbbbbbbb", uid=1001)
    accounts.note_series(1000, mine.lease.job, mine.lease, data)
    accounts.note(mine)
    accounts.note(other)
    accounts.note_series(1000, mine.lease.job, None, encode(replace(SERIES, step_s=9.0)))
    accounts.note_series(1000, other.lease.job, None, data)  # it is user 1001's
    accounts.note_series(1000, "cccccccccccc", None, data)
    keys = {each.job: each.grant_key for each in jobs(path)}
    assert samples(path, keys.values()) == {keys[mine.lease.job]: SERIES}
    accounts.note_series(1001, other.lease.job, None, data)
    assert samples(path, keys.values()).keys() == set(keys.values())


def test_only_the_series_of_a_users_last_jobs_are_kept(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # X8, L6
    monkeypatch.setattr("slicer.broker.server.accounts.MOST_SERIES", 3)
    accounts, data = opened(tmp_path, said), encode(SERIES)
    for number in range(6):
        for uid in (1000, 1001):
            one = ended(f"{uid:08d}{number:04d}", uid=uid)
            accounts.note_series(uid, one.lease.job, one.lease, data)
            accounts.note(one)
    accounts.write()
    path = str(tmp_path / "lib" / "usage.db")
    keys = {each.grant_key: each.job for each in jobs(path)}
    found = {keys[key] for key in samples(path, keys)}
    assert found == {f"{uid:08d}{number:04d}" for uid in (1000, 1001) for number in (3, 4, 5)}


def test_who_held_gpus_lately_is_told_without_jobs(tmp_path: Path, said: list[str]) -> None:  # U13
    accounts = opened(tmp_path, said)
    add(accounts, ended("a" * 12, ago_s=2 * DAY_S))
    add(accounts, ended("b" * 12, ago_s=50.0, held_s=DAY_S, gpus=("GPU-a", "GPU-b"), uid=1001))
    add(accounts, ended("c" * 12, gpus=()))
    add(accounts, ended("d" * 12, ago_s=5.0))
    found = accounts.recent(time.time() - DAY_S)
    assert [(each.uid, each.gpus) for each in found] == [(1000, ("GPU-a",)), (1001, ("GPU-a", "GPU-b"))]
    assert found[1].held_s == pytest.approx(DAY_S)
    assert found[1].granted_at + found[1].held_s == pytest.approx(time.time() - 50.0, abs=5.0)
    assert not said


def test_sums_are_those_of_all_jobs_that_ever_ended(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # X8
    monkeypatch.setattr(module, "MOST_JOBS", 2)
    monkeypatch.setattr(module, "_FOLDED", 1)
    accounts = opened(tmp_path, said)
    for number in range(9):
        add(accounts, ended(f"{number:012x}"))
        add(accounts, ended(f"{number:012x}"))  # another lease of that id
    book = str(tmp_path / "lib" / "usage.db")
    (row,) = reading.all_totals(book)
    assert (row.jobs, row.result, row.gpu_s) == (18, "failed", pytest.approx(1800.0, rel=1e-3))
    assert len(reading.jobs(book)) < 18
    assert row.waits == tuple(18 if bound >= 5 else 0 for bound in WAITS_S)


def length_of(accounts: Accounts, command: str) -> float | None:
    ticket = made_up.ticket(uid=1000, gpus=1, command=command)
    return accounts.runs.estimated(ticket, None).est_s


@pytest.mark.parametrize("is_of_an_older_broker", [False, True])
def test_a_paused_run_counts_as_long_as_it_ran(
    tmp_path: Path, said: list[str], is_of_an_older_broker: bool
) -> None:  # U7
    """Also for the next broker, and in accounts of one that kept no pauses."""
    accounts = opened(tmp_path, said)
    if is_of_an_older_broker:
        accounts.close()
        with closing(sqlite3.connect(tmp_path / "lib" / "usage.db")) as database:
            database.execute("ALTER TABLE jobs DROP COLUMN paused_s")
        accounts = opened(tmp_path, said)
    run = ended(held_s=100.0, command="train")
    told = replace(run.finished, exit_code=0, paused_s=70.0)
    add(accounts, replace(run, finished=told))
    assert length_of(accounts, "train") == pytest.approx(2 * 30.0)
    accounts.close()
    assert length_of(opened(tmp_path, said), "train") == pytest.approx(2 * 30.0)
    assert not said
