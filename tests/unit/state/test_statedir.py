"""The state directory: where it is, whose version, and that nothing of somebody else's in it is trusted."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.errors import EX_SLICER, EX_TEMPFAIL, LedgerLost, StateError
from slicer.ledger.ledger import Ledger
from slicer.state import statedir
from slicer.state.directory import Directory
from slicer.state.statedir import StateDir
from tests.patience import LONGEST_S
from tests.process.harness import SRC
from tests.unit import made_up
from tests.unit.ledger.box import UnusedGpus

pytestmark = pytest.mark.both_pythons

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def locate(path: Path | str) -> StateDir:
    return statedir.locate({"SLICER_STATE_DIR": str(path)}, os.geteuid())


def refusal(path: Path | str) -> StateError:
    with pytest.raises(StateError) as caught:
        locate(path)
    assert caught.value.exit_code == EX_SLICER
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


# A5
def test_is_made_private_where_the_variable_says(tmp_path: Path) -> None:
    assert locate(tmp_path / "state").path == str(tmp_path / "state")
    for name in ("state", "state/leases", "state/tickets", "state/bells"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) & 0o077 == 0
    assert locate(tmp_path / "state").path == str(tmp_path / "state")


@pytest.mark.parametrize("path", ["state", "./state", "../state", " /state"])
def test_a_relative_path_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "absolute" in str(refusal(path))
    assert os.listdir(tmp_path) == []


# D14: what is compared as text later on has one form
def test_a_trailing_slash_changes_nothing(tmp_path: Path) -> None:
    assert locate(f"{tmp_path}/state/").path == str(tmp_path / "state")
    environ = {"SLICER_STATE_DIR": f"{tmp_path}//state/"}
    assert statedir.where(environ, os.geteuid()) == str(tmp_path / "state")


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(statedir, "SYSTEM_DIR", str(tmp_path / "system"))
    environ = {"SLICER_STATE_DIR": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert statedir.locate(environ, 0).path == str(tmp_path / "system")


# -- among the directories of all users --------------------------------------------------------------------


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory like /run/lock."""
    path = tmp_path / "public"
    path.mkdir()
    path.chmod(0o1777)
    monkeypatch.setattr(statedir, "PUBLIC_DIRS", (str(tmp_path / "missing"), str(path)))
    return path


# B7, D12
def test_a_users_ledger_is_the_same_with_and_without_a_session(public: Path) -> None:
    for environ in ({}, {"XDG_RUNTIME_DIR": "/run/user/1000"}, {"XDG_RUNTIME_DIR": "/nowhere"}):
        found = statedir.locate(environ, 1000)
        assert (found.path, found.notes) == (f"{public}/slicer-1000", ())
        assert statedir.where(environ, 1000) == f"{public}/slicer-1000"
    assert os.listdir(public) == ["slicer-1000"]
    assert stat.S_IMODE((public / "slicer-1000").stat().st_mode) == 0o700


# S12
@ROOT_ONLY
@pytest.mark.parametrize("squat", [Path.mkdir, Path.touch, lambda path: path.symlink_to("/"), os.mkfifo])
def test_who_takes_a_users_name_locks_nobody_out(public: Path, squat: Callable[[Path], None]) -> None:
    name = public / "slicer-1000"
    squat(name)
    os.chown(name, 65534, 65534, follow_symlinks=False)
    found = statedir.locate({}, 1000)
    assert found.path.startswith(f"{name}.")
    assert found.notes == (f"another user has made {name}: your leases are in {found.path}",)
    # It is found again, also when the name is free again.
    assert statedir.locate({}, 1000).path == found.path
    name.rmdir() if squat is Path.mkdir else name.unlink()
    assert statedir.locate({}, 1000).path == found.path
    assert statedir.where({}, 1000) == found.path
    assert sorted(os.listdir(public)) == [os.path.basename(found.path)]


# S12
@ROOT_ONLY
def test_a_directory_that_somebody_else_made_is_not_taken_for_ours(public: Path) -> None:
    for name in ("slicer-1000", "slicer-1000.0", "slicer-1000.zz"):
        (public / name).mkdir()
        os.chown(public / name, 65534, 65534)
    found = statedir.locate({}, 1000)
    assert os.path.basename(found.path) not in ("slicer-1000", "slicer-1000.0", "slicer-1000.zz")
    assert Path(found.path).stat().st_uid == os.geteuid()


TAKER_AMONG_ALL = """
import os, sys
sys.path.insert(0, sys.argv[1])
from slicer.state import statedir
statedir.PUBLIC_DIRS = sys.argv[2:]
print("ready", flush=True)
sys.stdin.readline()
print(statedir.locate({}, 1000).path)
"""


# U23, K2: after a boot, whoever took the names before
@ROOT_ONLY
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_users_first_jobs_at_once_have_one_ledger(public: Path, taken: int) -> None:
    for name in ("slicer-1000", "slicer-1000.0", "slicer-1000.1")[:taken]:
        (public / name).mkdir()
        os.chown(public / name, 65534, 65534)
    command = [sys.executable, "-c", TAKER_AMONG_ALL, SRC, str(public)]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(16)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    paths = {process.communicate(timeout=LONGEST_S)[0] for process in started}
    assert len(paths) == 1
    assert len(os.listdir(public)) == taken + 1


# D12: a user's first jobs after a boot, started at once
def test_a_directory_that_we_make_this_very_moment_is_ours(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = statedir._find

    def find_too_early(place: Directory, uid: int) -> Directory | None:
        found = find(place, uid)
        (public / "slicer-1000").mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(statedir, "_find", find_too_early)
    found = statedir.locate({}, 1000)
    assert (found.path, found.notes) == (str(public / "slicer-1000"), ())


def test_a_place_where_anybody_could_exchange_things_is_not_used(public: Path) -> None:
    public.chmod(0o777)
    with pytest.raises(StateError, match="no directory in memory is open to all users"):
        statedir.locate({}, 1000)
    assert os.listdir(public) == []


# K2: leases are in it
def test_a_ledger_stays_where_it_is_whatever_is_opened_to_all_meanwhile(public: Path) -> None:
    first = statedir.locate({}, 1000)
    (public.parent / "missing").mkdir()
    (public.parent / "missing").chmod(0o1777)  # as by `slicer install`, which comes before it
    assert statedir.locate({}, 1000).path == statedir.where({}, 1000) == first.path
    public.chmod(0o755)
    assert statedir.locate({}, 1000).path == first.path
    shutil.rmtree(public / "slicer-1000")  # as at the next boot
    assert statedir.locate({}, 1000).path == f"{public.parent}/missing/slicer-1000"


# K2: a second ledger would grant everything again
@pytest.mark.parametrize("where", ["the place", "the ledger"])
def test_a_shortage_of_the_moment_makes_no_second_ledger(
    public: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    missing = public.parent / "missing"
    found = statedir.locate({}, 1000).path
    missing.mkdir()
    missing.chmod(0o1777)
    short, real = public.name if where == "the place" else "slicer-1000", os.open

    def once(path: str, *rest: int, **more: int) -> int:
        nonlocal short
        if path == short:
            short = ""
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", once)
    with pytest.raises(StateError, match="Too many open files in system"):
        statedir.locate({}, 1000)
    assert statedir.locate({}, 1000).path == found
    assert os.listdir(missing) == []


# K2, S12: logind's RemoveIPC=, or a user's rm -r
@pytest.mark.parametrize("taken", [False, True])
def test_a_ledger_that_was_deleted_under_its_jobs_is_missed(public: Path, taken: bool) -> None:
    sim = {"SLICER_SIM": "1x8G"}
    if taken:
        (public / "slicer-1000").touch()
    found = statedir.locate(sim, 1000)
    held = os.open(f"{found.path}/leases/0123456789ab", os.O_RDWR | os.O_CREAT)
    shutil.rmtree(os.path.dirname(found.path))
    if taken:
        (public / "slicer-1000.0").touch()
    statedir.locate({}, 1000).check_alone()  # real GPUs are another ledger's
    again = statedir.locate(sim, 1000)
    assert (again.path != found.path) is taken
    with pytest.raises(LedgerLost, match=f"pid {os.getpid()}") as caught:
        again.check_alone()
    assert caught.value.exit_code == EX_TEMPFAIL
    with pytest.raises(LedgerLost):
        Ledger(again, pytest.fail).decide(made_up.request(cpu_slots=1), UnusedGpus(()))
    with pytest.raises(LedgerLost):
        statedir.locate(sim, 1000).check_alone()
    os.close(held)
    again.check_alone()
    statedir.locate(sim, 1000).check_alone()


# S12
@ROOT_ONLY
@pytest.mark.parametrize("what", ["somebody else's", "another ledger's", "not a lease", "with a name"])
def test_what_is_no_lease_of_a_deleted_ledger_keeps_nobody_waiting(public: Path, what: str) -> None:
    folder = public / ("slicer-1001" if what == "another ledger's" else "slicer-1000")
    folder /= "bells" if what == "not a lease" else "leases"
    folder.mkdir(parents=True)
    held = os.open(folder / "0123456789ab", os.O_RDWR | os.O_CREAT)
    if what == "somebody else's":
        os.chown(held, 65534, 65534)
    if what == "with a name":
        os.link(folder / "0123456789ab", public / "kept")
    shutil.rmtree(folder.parent)
    try:
        statedir.locate({}, 1000).check_alone()
        assert not os.path.lexists(public / "slicer-1000" / "lost")
    finally:
        os.close(held)


# -- hostile surroundings ----------------------------------------------------------------------------------


# S2, S12
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o757])
def test_above_it_nobody_else_may_write(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a").chmod(mode)
    refused = refusal(tmp_path / "a" / "b" / "state")
    assert refused.where == str(tmp_path / "a")
    assert "is writable by" in refused.message
    (tmp_path / "a").chmod(mode | stat.S_ISVTX)  # as /tmp: what is ours stays where it is
    locate(tmp_path / "a" / "b" / "state")


# S2
@ROOT_ONLY
def test_above_it_nobody_else_may_be_the_owner(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.chown(tmp_path / "a", 65534, 65534)
    refused = refusal(tmp_path / "a" / "state")
    assert refused.where == str(tmp_path / "a")
    assert "belongs to uid 65534" in refused.message


# S1, S2
def test_what_was_opened_is_used_whatever_the_path_leads_to_now(tmp_path: Path) -> None:
    found = locate(tmp_path / "state")
    (tmp_path / "state").rename(tmp_path / "moved")
    (tmp_path / "precious").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "precious")
    Ledger(found, pytest.fail).snapshot()
    assert statedir.first_time(found, "said")
    assert os.listdir(tmp_path / "precious") == []
    assert "said" in os.listdir(tmp_path / "moved")


def test_a_refusal_leaves_nothing_open(tmp_path: Path) -> None:
    locate(tmp_path / "state").close()
    (tmp_path / "state" / "bells").chmod(0o777)
    before = set(os.listdir("/proc/self/fd"))
    refusal(tmp_path / "state")
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("part", ["", "leases", "tickets", "bells"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, part: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = tmp_path / "state" / part
    place.parent.mkdir(exist_ok=True, mode=0o700)
    if part:
        place.parent.chmod(0o700)
    (tmp_path / "state" / part).symlink_to(elsewhere)
    assert "symbolic link" in str(refusal(tmp_path / "state"))
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("part", ["", "leases", "tickets", "bells"])
def test_a_file_in_its_place_is_refused(tmp_path: Path, part: str) -> None:
    place = tmp_path / "state" / part
    place.parent.mkdir(exist_ok=True)
    (tmp_path / "state" / part).write_text("")
    assert "not a directory" in str(refusal(tmp_path / "state"))


def test_a_missing_parent_is_said(tmp_path: Path) -> None:
    refused = refusal(tmp_path / "no" / "state")
    assert refused.where == str(tmp_path / "no")
    assert "No such file or directory" in refused.message


@pytest.mark.parametrize("part", ["", "leases", "tickets", "bells"])
@pytest.mark.parametrize(("mode", "who"), [(0o777, "everybody"), (0o770, "its group (gid ")])
def test_what_others_can_write_is_refused(tmp_path: Path, part: str, mode: int, who: str) -> None:
    locate(tmp_path / "state")
    (tmp_path / "state" / part).chmod(mode)
    assert f"writable by {who}" in str(refusal(tmp_path / "state"))


@pytest.mark.parametrize("part", ["leases", "tickets", "bells"])
def test_what_others_can_only_read_is_closed(tmp_path: Path, part: str) -> None:
    """Whoever can open a file can lock it."""
    locate(tmp_path / "state")
    (tmp_path / "state" / part).chmod(0o755)
    locate(tmp_path / "state")
    assert stat.S_IMODE((tmp_path / "state" / part).stat().st_mode) == 0o700


@ROOT_ONLY
@pytest.mark.parametrize("part", ["", "leases", "tickets", "bells"])
def test_what_somebody_else_owns_is_refused(tmp_path: Path, part: str) -> None:
    locate(tmp_path / "state")
    os.chown(tmp_path / "state" / part, 65534, -1)
    assert "belongs to uid 65534" in str(refusal(tmp_path / "state"))


# ---- the version ----

TAKER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from slicer.state import statedir
statedir.locate({"SLICER_STATE_DIR": sys.argv[2]}, os.geteuid())
print("ready", flush=True)
"""


def takers(path: Path, number: int = 1) -> list[subprocess.Popen[str]]:
    """Processes that use the directory, all at once."""
    command = [sys.executable, "-c", TAKER, SRC, str(path)]
    pipe = subprocess.PIPE
    return [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(number)]


@pytest.mark.usefixtures("umask")
def test_two_that_make_a_directory_at_once_both_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # K2
    rename, others = Directory.rename, iter([True])

    def slow(self: Directory, name: str, there: Directory, new: str) -> None:
        if next(others, False):
            locate(tmp_path / "state").close()  # another slicer comes first, and takes the temporary name
        rename(self, name, there, new)

    monkeypatch.setattr(Directory, "rename", slow)
    locate(tmp_path / "state").close()
    assert (tmp_path / "state" / "version").read_text() == "6\n"


def test_a_new_directory_says_its_version_whatever_the_umask(tmp_path: Path) -> None:
    locate(tmp_path / "state")
    version = tmp_path / "state" / "version"
    assert version.read_text() == "6\n"
    assert stat.S_IMODE(version.stat().st_mode) & 0o077 == 0
    before = version.stat()
    locate(tmp_path / "state")
    assert version.stat().st_mtime_ns == before.st_mtime_ns
    assert version.stat().st_ino == before.st_ino


def test_many_may_make_it_at_once(tmp_path: Path) -> None:
    for process in takers(tmp_path / "state", 8):
        out, err = process.communicate(timeout=LONGEST_S)
        assert (process.returncode, out, err) == (0, "ready\n", "")
    assert (tmp_path / "state" / "version").read_text() == "6\n"
    assert sorted(os.listdir(tmp_path / "state")) == ["bells", "leases", "tickets", "version"]


def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    locate(tmp_path / "state")
    (tmp_path / "state" / "version").write_text("7\n")
    lease = tmp_path / "state" / "leases" / "0123456789ab"
    lease.touch()
    refused = refusal(tmp_path / "state")
    assert refused.message == "made by a newer slicer: version 7, this one supports 6"
    assert refused.where == f"{tmp_path}/state/version"
    assert "update this slicer" in refused.hint
    assert lease.exists()
    assert (tmp_path / "state" / "version").read_text() == "7\n"


def test_an_older_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    locate(tmp_path / "state")
    (tmp_path / "state" / "version").write_text("4\n")
    refused = refusal(tmp_path / "state")
    assert refused.message == "made by an older slicer: version 4, this one supports 6"
    assert "let its jobs end, then remove the directory" in refused.hint


@pytest.mark.parametrize("text", ["two\n", "-1\n", "2.0\n", "\x00\xff", "9" * 100])
def test_what_is_no_version_is_refused(tmp_path: Path, text: str) -> None:
    locate(tmp_path / "state")
    (tmp_path / "state" / "version").write_text(text, encoding="latin-1")
    refused = refusal(tmp_path / "state")
    assert refused.where == f"{tmp_path}/state/version"
    assert len(str(refused)) < 400


def test_a_version_that_was_cut_short_is_written_again(tmp_path: Path) -> None:  # A2
    locate(tmp_path / "state")
    (tmp_path / "state" / "version").write_text("")  # its maker was killed
    locate(tmp_path / "state")
    assert (tmp_path / "state" / "version").read_text() == "6\n"


# ---- the lock file ----


def opened(path: Path) -> Directory:
    return Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))


def test_opening_a_lock_file_makes_it_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        fd = opened(tmp_path).open_lock()
        assert not os.get_inheritable(fd)
        assert os.fstat(fd).st_ino == path.stat().st_ino
        os.close(fd)
    assert path.read_bytes() == b""


# S9
def test_nobody_else_can_open_the_lock_file(tmp_path: Path) -> None:
    (tmp_path / "lock").touch(0o666)
    os.close(opened(tmp_path).open_lock())
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def make_link(path: Path) -> None:
    (path.parent / "target").write_text("precious")
    path.symlink_to(path.parent / "target")


def make_dangling(path: Path) -> None:
    path.symlink_to(path.parent / "target")


def make_hard_link(path: Path) -> None:
    (path.parent / "target").write_text("precious")
    os.link(path.parent / "target", path)


@pytest.mark.parametrize("make", [make_link, make_dangling, make_hard_link, os.mkfifo, Path.mkdir])
def test_a_lock_file_that_is_no_plain_file_is_refused(tmp_path: Path, make: object) -> None:
    path = tmp_path / "lock"
    make(path)  # type: ignore[operator]
    directory = opened(tmp_path)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(StateError) as caught:
        directory.open_lock()
    assert set(os.listdir("/proc/self/fd")) == before
    assert str(path) in str(caught.value)
    target = tmp_path / "target"
    assert not target.exists() or target.read_text() == "precious"
    assert make is not make_dangling or not target.exists()
