"""Wrapping real files: what is exactly kept, what a kill leaves, and whom slicer does not believe."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slicer import faults
from slicer.errors import SlicerError, StateError
from slicer.wrap import look, records, wrapping
from slicer.wrap.terms import WrapError, WrapRefused
from tests.patience import LONGEST_S, until
from tests.unit.wrap.box import Box

pytest_plugins = ["tests.unit.wrap.box"]

OTHER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")


def says(path: Path, *arguments: str) -> str:
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=LONGEST_S, check=False)
    return done.stdout.strip() if not done.returncode else f"exit {done.returncode}: {done.stderr}"


def traits(path: Path) -> tuple[object, ...]:
    info = path.lstat()
    what = os.readlink(path) if path.is_symlink() else path.read_bytes()
    shown = {} if path.is_symlink() else {name: os.getxattr(path, name) for name in os.listxattr(path)}
    return (info.st_ino, info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns, info.st_nlink, what, shown)


def test_unwrapped_it_is_exactly_what_it_was(box: Box) -> None:  # C5
    os.utime(box.program, ns=(1, 1_500_000_000_123_456_789))
    box.program.chmod(0o751)
    try:
        os.setxattr(box.program, "user.note", b"mine")
    except OSError:
        pass  # a file system without them
    before = traits(box.program)
    box.install()
    assert traits(box.real) == before
    assert says(box.program) == "first"
    assert oct(box.program.stat().st_mode & 0o7777) == "0o755"
    box.remove()
    assert traits(box.program) == before
    assert box.names() == ["whisper"]
    assert box.state() == ""


def test_it_is_safe_to_repeat(box: Box) -> None:  # C5
    box.install()
    before = traits(box.program), traits(box.real)
    assert box.install().steps == ()
    assert (traits(box.program), traits(box.real)) == before
    box.remove()
    with pytest.raises(WrapRefused, match="is not wrapped"):
        box.remove()


def test_a_link_is_renamed_itself_and_still_leads_where_it_led(box: Box) -> None:  # C5
    (box.root / "lib").mkdir()
    box.put("behind", box.root / "lib" / "tool")
    link = box.bin / "tool"
    link.symlink_to("../lib/tool")
    before = traits(link)
    box.install(link)
    assert traits(box.bin / "tool-real") == before
    assert says(link) == "behind"
    box.remove(link)
    assert traits(link) == before


def test_python_of_a_venv_stays_in_its_venv(box: Box) -> None:  # C5
    """It finds its packages by the name that it is called by."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", box.root / "venv"], check=True)
    python = box.root / "venv" / "bin" / "python"
    line = "import sys; print(sys.prefix, sys.executable)"
    before = says(python, "-c", line)
    box.install(python)
    assert says(python, "-c", line) == before == f"{box.root}/venv {python}"


def test_a_running_program_can_be_wrapped_and_goes_on(box: Box) -> None:  # C5
    box.program.unlink()
    shutil.copy(shutil.which("bash") or "", box.program)
    line = [box.program, "-c", "read line"]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as process:
        box.install()
        assert process.poll() is None
        with subprocess.Popen(line, stdin=subprocess.PIPE) as through_shim:
            until(lambda: os.readlink(f"/proc/{through_shim.pid}/exe") == str(box.real), "it runs")
            box.remove()
            assert through_shim.poll() is None
            through_shim.kill()
        process.kill()


def test_a_file_in_the_way_is_neither_overwritten_nor_left_with_a_record(box: Box) -> None:  # C5
    box.real.write_text("somebody's")
    with pytest.raises(WrapRefused, match="already exists"):
        box.install()
    assert box.real.read_text() == "somebody's"
    assert (box.state(), says(box.program)) == ("", "first")


def test_what_fails_half_way_is_taken_back(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:  # C5
    before = traits(box.program)

    def full(fd: int, mode: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fchmod", full)  # of the shim
        with pytest.raises(WrapError, match="the shim cannot be put in place: No space left"):
            box.install()
    assert traits(box.program) == before
    assert box.names() == ["whisper"]
    assert box.state() == ""


@pytest.mark.parametrize("what", ["link", "rename"])
def test_what_may_not_be_changed_is_told_and_stays(
    box: Box, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:  # C5
    """An immutable file or directory says so only when it is tried."""
    rename = os.rename

    def refuses(source: str, *arguments: object, **options: object) -> None:
        if what == "rename" and not source.startswith(".slicer-wrap"):
            return rename(source, *arguments, **options)  # type: ignore[arg-type]
        raise PermissionError(1, os.strerror(1))

    before = traits(box.program)
    monkeypatch.setattr(os, what, refuses)
    with pytest.raises(WrapError, match=r"Operation not permitted \(is it immutable \(lsattr"):
        box.install()
    monkeypatch.undo()
    assert (traits(box.program), box.names()) == (before, ["whisper"])
    assert records.read(box.environ) == ((), ())


def test_ctrl_c_takes_it_back(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:  # C5
    def interrupted(fd: int, mode: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(os, "fchmod", interrupted)
        with pytest.raises(KeyboardInterrupt):
            box.install()
    assert (box.names(), box.state()) == (["whisper"], "")


def test_an_upgrade_in_the_middle_is_not_undone(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:  # C5
    link = os.link

    def overtaken(*arguments: object, **options: object) -> None:
        link(*arguments, **options)  # type: ignore[arg-type]
        box.put("upgraded, and longer")

    monkeypatch.setattr(os, "link", overtaken)
    with pytest.raises(WrapError, match="was replaced meanwhile"):
        box.install()
    assert says(box.program) == "upgraded, and longer"
    assert box.names() == ["whisper"]


def test_after_an_upgrade_it_is_wrapped_anew_with_the_new_program(box: Box) -> None:  # C5
    box.install()
    box.put("second, by pip")
    assert box.state() == "replaced"
    box.install()
    assert (box.state(), says(box.program)) == ("ok", "second, by pip")
    box.remove()
    assert says(box.program) == "second, by pip"
    assert box.names() == ["whisper"]


def test_what_replaced_the_shim_goes_only_if_somebody_says_so(box: Box) -> None:  # C5
    for keep, left in (("new", "second one"), ("real", "first")):
        box.put("first")
        box.install()
        box.put("second one")
        with pytest.raises(WrapRefused, match="--keep new"):
            box.remove()
        box.remove(keep=keep)
        assert says(box.program) == left
        assert (box.names(), box.state()) == (["whisper"], "")


def test_a_shim_that_is_there_cannot_be_kept_as_the_new_program(box: Box) -> None:  # C5
    box.install()
    with pytest.raises(WrapRefused, match="is still the shim"):
        box.remove(keep="new")
    assert box.state() == "ok"


def test_the_program_gone_the_shim_can_go_too(box: Box) -> None:  # C5
    box.install()
    box.real.unlink()
    assert box.state() == "program-gone"
    box.remove()
    assert (box.names(), box.state()) == ([], "")


def test_a_link_behind_the_shim_that_leads_nowhere_any_more_is_noticed(box: Box) -> None:  # C5
    link = box.bin / "tool"
    link.symlink_to("whisper")
    box.install(link)
    box.program.rename(box.bin / "moved")
    assert box.state() == "program-gone"
    assert says(link).startswith("exit 127")
    box.remove(link)
    assert os.readlink(link) == "whisper"


def test_a_wrap_whose_directory_is_gone_can_be_forgotten(box: Box) -> None:  # C5
    box.install()
    for name in box.names():
        (box.bin / name).unlink()
    box.bin.rmdir()
    assert box.state() == "gone"
    box.remove()
    assert box.state() == ""


def test_slicer_gone_another_takes_its_place(box: Box) -> None:  # C5
    box.install()
    moved = box.root / "moved"
    box.slicer.rename(moved)
    assert box.state() == "slicer-gone"
    assert says(box.program).startswith("exit 127")
    assert wrapping.mend(str(box.program), box.environ, str(moved)) == ""
    assert (box.state(), says(box.program)) == ("ok", "first")


def test_names_lead_to_the_wrap_also_through_a_link_in_the_directories(box: Box) -> None:  # C5
    (box.root / "alias").symlink_to("bin")
    box.install(box.root / "alias" / "whisper")
    assert box.record().path == str(box.program)
    wrapping.remove("whisper", box.environ, None)  # its last name is enough
    assert says(box.program) == "first"


def test_links_may_go_through_routes_of_their_own(box: Box) -> None:  # C5
    """A link to a wrapped program is refused; two links to one program are two programs."""
    for name in ("one", "two"):
        (box.bin / name).symlink_to("whisper")
    box.install(box.bin / "one", route="small")
    box.install(box.bin / "two", route="large")
    assert says(box.bin / "one") == says(box.bin / "two") == "first"
    (box.bin / "three").symlink_to("one")
    with pytest.raises(WrapRefused, match="which is wrapped"):
        box.install(box.bin / "three")


# -- kills ---------------------------------------------------------------------------------------------------

POINTS = ("wrap-record", "wrap-link", "wrap-draft", "wrap-place")
ANEW = ("wrap-draft", "wrap-exchange", "wrap-record", "wrap-place")
BACK = ("wrap-record", "wrap-restore", "wrap-forget")


def killed_at(point: str, act: Callable[[], object]) -> None:
    """Act in a child, which kills itself with SIGKILL just there."""
    pid = os.fork()
    if not pid:
        try:
            faults.point = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None
            act()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("again", ["install", "check"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_wraps(box: Box, point: str, again: str) -> None:  # C5
    killed_at(point, box.install)
    assert says(box.program) == "first"
    assert box.state() == {"wrap-record": "unwrapped", "wrap-place": "ok"}.get(point, "unfinished")
    box.install() if again == "install" else box.mend()
    assert (box.state(), says(box.program)) == ("ok", "first")
    assert box.names() == ["whisper", "whisper-real"]
    box.remove()
    assert (box.names(), says(box.program)) == (["whisper"], "first")


@pytest.mark.parametrize("point", ANEW)
def test_killed_while_it_wraps_anew(box: Box, point: str) -> None:  # C5
    box.install()
    box.put("second one")
    killed_at(point, box.mend)
    assert says(box.program) == "second one"
    box.mend()
    assert (box.state(), box.names()) == ("ok", ["whisper", "whisper-real"])
    box.remove()
    assert says(box.program) == "second one"


@pytest.mark.parametrize("again", ["remove", "check"])
@pytest.mark.parametrize("point", BACK)
def test_killed_while_it_unwraps(box: Box, point: str, again: str) -> None:  # C5
    box.install()
    killed_at(point, box.remove)
    assert says(box.program) == "first"
    if box.state():
        with pytest.raises(WrapRefused, match="only half unwrapped"):
            box.install()
        box.remove() if again == "remove" else box.mend()
    assert (box.names(), box.state(), says(box.program)) == (["whisper"], "", "first")


def test_the_new_program_is_kept_whatever_kills_the_removal(box: Box) -> None:  # C5
    for point in ("wrap-record", "wrap-drop", "wrap-forget"):
        box.put("first")
        box.install()
        box.put("second one")
        killed_at(point, functools.partial(box.remove, keep="new"))
        if box.state():
            box.mend()
        assert (box.names(), box.state(), says(box.program)) == (["whisper"], "", "second one")


# -- whom it does not believe --------------------------------------------------------------------------------


def test_only_one_changes_wraps_at_a_time(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:  # C5
    monkeypatch.setattr(records, "_LOCK_WAIT_S", 0.0)
    with records.opened(box.environ), pytest.raises(StateError, match="lock has been held"):
        box.install()
    box.install()


@pytest.mark.parametrize("damage", ["torn", "other name", "elsewhere", "fifo", "link", "huge", "intent"])
def test_a_record_that_slicer_did_not_write_is_passed_over(box: Box, damage: str) -> None:  # C5
    box.install()
    (record,) = box.records.glob("*.wrap")
    text = record.read_text()
    if damage == "other name":
        record.rename(record.with_name("0" * 24 + ".wrap"))
    elif damage in ("fifo", "link"):
        record.unlink()
        os.mkfifo(record) if damage == "fifo" else record.symlink_to("/dev/zero")
    else:
        changed = {
            "torn": text[:40], "huge": text + "x" * (1 << 20), "intent": text.replace("install", "erase"),
            "elsewhere": text.replace("whisper-real", "../../etc/passwd"),
        }  # fmt: skip
        record.write_text(changed[damage])
    assert wrapping.statuses(box.environ, None) == ()
    (warning,) = records.read(box.environ)[1]
    assert "ignoring" in warning


@as_root
def test_records_of_another_user_are_not_believed(box: Box) -> None:  # C5
    box.install()
    folder = box.records
    (record,) = folder.glob("*.wrap")
    os.chown(record, OTHER, OTHER)
    assert wrapping.statuses(box.environ, None) == ()
    os.chown(folder, OTHER, OTHER)
    with pytest.raises(StateError, match="belongs to uid 54321"):
        wrapping.statuses(box.environ, None)
    with pytest.raises(StateError, match="belongs to uid 54321"):
        box.install()


@as_root
def test_root_wraps_nothing_where_a_user_could_exchange_it(box: Box) -> None:  # C5
    os.chown(box.bin, OTHER, OTHER)
    with pytest.raises(WrapRefused, match="belongs to uid 54321"):
        box.install()
    os.chown(box.bin, 0, 0)
    box.bin.chmod(0o777)
    with pytest.raises(WrapRefused, match="writable by everybody"):
        box.install()
    box.bin.chmod(0o755)
    os.chown(box.slicer, OTHER, OTHER)
    with pytest.raises(WrapRefused, match="root's shims may only call"):
        box.install()
    assert box.names() == ["whisper"]


@as_root
def test_root_mends_nothing_where_a_user_could_exchange_it_by_now(box: Box) -> None:  # C5
    box.install()
    box.put("second one")
    os.chown(box.bin, OTHER, OTHER)
    assert "belongs to uid 54321" in wrapping.mend(str(box.program), box.environ, str(box.slicer))
    assert (box.state(), says(box.program)) == ("replaced", "second one")
    box.remove(keep="new")  # to be rid of it harms nobody


def test_a_link_in_place_of_a_directory_is_not_followed(box: Box) -> None:  # C5
    """To what may be anybody's program of that name."""
    box.install()
    box.bin.rename(box.root / "moved")
    box.bin.symlink_to("moved")
    assert box.state() == "gone"
    assert "cannot be opened" in wrapping.mend(str(box.program), box.environ, str(box.slicer))


def test_a_fifo_where_a_program_should_be_is_not_waited_for(box: Box) -> None:  # C5
    box.install()
    box.program.unlink()
    os.mkfifo(box.program)
    assert box.state() == "unclear"
    box.program.unlink()
    box.real.unlink()
    os.mkfifo(box.real)
    assert box.state() == "gone"


def test_slicer_and_all_that_it_runs_on_is_found_by_every_name(tmp_path: Path) -> None:  # C5
    python = tmp_path / "python"
    python.symlink_to("/usr/bin/env")
    script = tmp_path / "slicer-1"
    script.write_text(f"#!{python} sh\n")
    script.chmod(0o755)
    link = tmp_path / "slicer"
    link.symlink_to("slicer-1")
    names = dict(look.tool(str(link)).names)
    for path in (link, script):
        assert names[str(path)] == "slicer itself"
    assert names[str(python)] == "what slicer runs on"
    for path in ("/bin/sh", os.path.realpath("/bin/sh")):
        assert look.canonical(path) in names


def test_what_a_slicer_in_c_runs_on_is_found_too(tmp_path: Path) -> None:  # C5
    program, script, python = tmp_path / "slicer", tmp_path / "slicer-python", tmp_path / "python"
    python.symlink_to("/usr/bin/env")
    program.write_bytes(b"\x7fELF")
    script.write_text(f"#!{python}\n")
    names = dict(look.tool(str(program)).names)
    assert [names[str(path)] for path in (program, script)] == ["slicer itself"] * 2
    assert names[str(python)] == "what slicer runs on"


@pytest.mark.parametrize("word", ["", "..", "bin/", "/", "."])
def test_what_is_no_name_of_a_program_is_refused(box: Box, word: str) -> None:  # C5
    with pytest.raises(SlicerError):
        wrapping.install(word, "small", box.environ, slicer=str(box.slicer))


def test_a_call_while_it_is_wrapped_and_unwrapped_always_finds_a_program(box: Box) -> None:  # C5
    """BIN is looked at all the time: it is there, and can be executed, at every instant."""
    watch = (
        "import os, sys, time\n"
        "print(flush=True)\n"
        "while not os.path.exists(sys.argv[2]):\n"
        "    assert os.access(sys.argv[1], os.X_OK)\n"
    )
    stop = box.root / "stop"
    command = [sys.executable, "-IS", "-c", watch, box.program, stop]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        for _ in range(10):
            box.install()
            box.remove()
        stop.touch()
        assert watcher.wait(LONGEST_S) == 0
