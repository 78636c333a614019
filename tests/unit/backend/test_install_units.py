"""Installing units into a directory of our own; never over this machine's root."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.backend import feature_units, install_units, unit_files
from slicer.backend.install_units import (
    InstallPlan,
    InstallReport,
    Ran,
    apply,
    configured,
    feature_plan,
    going,
    plan,
    remove,
    states,
)
from slicer.config.slices import Limit
from slicer.errors import SlicerError
from slicer.kernel import SYSROOT
from slicer.outcome import journal
from slicer.record import replace

PACKAGE = Path(install_units.__file__).parents[1]
UNITS = PACKAGE / "_units"


@pytest.fixture(autouse=True)
def pages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """slicer's own files, and two manual pages whatever is packaged of these."""
    sources = tmp_path_factory.mktemp("sources")
    for name in ("_units", "_completions"):
        (sources / name).symlink_to(PACKAGE / name)
    made = sources / "_man"
    made.mkdir()
    for name in ("slicer.1", "slicer.toml.5"):
        (made / name).write_text('.TH SLICER\n')
    (made / "README").touch()
    monkeypatch.setattr(install_units, "_SOURCES", str(sources))
    return made


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to the machine lies below a directory of the test's own."""
    monkeypatch.setenv(SYSROOT, str(tmp_path))


def statuses(report: InstallReport) -> set[str]:
    return {done.status for done in report.files}


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def test_a_plan_touches_nothing_and_names_everything(tmp_path: Path) -> None:  # K5
    made = plan(user_delegation=True, broker=feature_units.BROKER, program=feature_units.PROGRAM)
    assert list(tmp_path.iterdir()) == []
    assert all(os.path.isfile(action.source) and action.what for action in made.actions)
    features = [feature_plan(each, feature_units.PROGRAM, removing=False) for each in feature_units.FEATURES]
    actions = [action for each in (made, *features) for action in each.actions]
    sources = {os.path.realpath(action.source) for action in actions}
    for folder in ("_units", "_completions"):
        there = {str(path) for path in (PACKAGE / folder).resolve().rglob("*") if path.is_file()}
        assert there <= sources


def test_the_units_of_a_feature_start_this_slicer_and_a_packages_are_not_hidden(tmp_path: Path) -> None:  # K5
    program = "/opt/slicer/bin/slicer"
    for feature in feature_units.FEATURES:
        made = feature_plan(feature, program, removing=False)
        assert all(program.encode() in action.content for action in made.actions)
        assert not any(feature_units.PROGRAM.encode() in action.content for action in made.actions)
        assert not feature_units.is_there(feature)
        for action in made.actions:
            packaged = tmp_path / "usr/lib/systemd/system" / os.path.basename(action.destination)
            packaged.parent.mkdir(parents=True, exist_ok=True)
            packaged.write_bytes(Path(action.source).read_bytes())
        made = feature_plan(feature, feature_units.PROGRAM, removing=False)
        assert (made.actions, len(made.unwanted)) == ((), 2)
        assert len(feature_plan(feature, program, removing=True).actions) == 2
    with pytest.raises(SlicerError, match="a unit cannot name this program"):
        feature_plan("web", "/opt/my slicer/bin/slicer", removing=False)


def note_in(ran: list[tuple[str, ...]]) -> Callable[[tuple[str, ...]], Ran]:
    """A runner that notes commands, all of which succeed."""

    def note(command: tuple[str, ...]) -> Ran:
        ran.append(command)
        return Ran(command, 0, "")

    return note


def test_systemd_is_told() -> None:  # K5
    ran: list[tuple[str, ...]] = []
    told = [("journalctl", "--update-catalog"), ("systemctl", "daemon-reload")]
    apply(plan(), run=note_in(ran))
    assert ran[:2] == told
    ran.clear()
    remove(plan(), run=note_in(ran))
    assert ran[:2] == told


def test_a_place_for_users_ledgers_is_mounted_only_where_there_is_none(tmp_path: Path) -> None:  # K2, U14
    name = "run-slicer.users.mount"
    commands = (*plan().commands, *going(plan(broker="/usr/bin/x")).stops)
    assert [each for each in commands if name in each] == [("systemctl", "enable", "--now", name)]
    lock = tmp_path / "run/lock"
    lock.mkdir(parents=True)
    lock.chmod(0o1777)
    assert not any(name in action.destination for action in plan().actions)
    lock.chmod(0o755)
    apply(plan(), run=note_in([]))
    enabled = tmp_path / "etc/systemd/system/local-fs.target.wants" / name
    enabled.parent.mkdir(parents=True)
    enabled.symlink_to("/dev/null")
    lock.chmod(0o1777)  # what was installed is removed, whatever is open by then
    leaving = going(plan(broker="/usr/bin/x"))
    assert ("systemctl", "disable", name) in leaving.stops
    remove(leaving, run=note_in([]))
    assert not [path for path in files_below(tmp_path) if name in path and "wants" not in path]


def test_a_slice_that_runs_is_reached_when_its_file_changes(tmp_path: Path) -> None:  # K5
    """systemd writes the new values when something starts in the slice, and not before."""
    ran: list[tuple[str, ...]] = []

    def note(command: tuple[str, ...]) -> Ran:
        ran.append(command)
        is_active = command[-2:] != ("--quiet", "cpu.slice")
        return Ran(command, 0 if is_active else 1, "")

    live = plan()
    assert [told.command[0] for told in apply(live, run=note).commands] == [
        "journalctl", "systemctl", "systemctl", "systemd-run",
    ]  # fmt: skip
    assert [command for command in ran if "--slice=gpu.slice" in command]
    ran.clear()
    apply(live, run=note)
    assert len(ran) == 3
    assert remove(live, run=note).commands[-1].command[0] == "systemd-run"
    ran.clear()
    mine = plan(user=True, environ={"HOME": f"{tmp_path}/home/alice"})
    apply(mine, run=note)
    assert {command[1] for command in ran} == {"--user"}


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:  # K5
    apply(plan())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert statuses(apply(plan())) == {"unchanged"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_older_version_of_ours_is_updated(tmp_path: Path) -> None:  # K5
    made = plan()
    old = tmp_path / "old"
    old.write_text("[Slice]\nCPUWeight=1\n")
    apply(replace(made, actions=tuple(replace(action, source=str(old)) for action in made.actions)))
    assert statuses(apply(made)) == {"updated"}
    assert statuses(apply(made)) == {"unchanged"}


@pytest.mark.parametrize("edit", [b"CPUWeight=99\n", None])
def test_what_somebody_changed_is_left_alone_unless_forced(tmp_path: Path, edit: bytes | None) -> None:  # K5
    made = plan()
    apply(made)
    gpu = Path(made.actions[0].destination)
    if edit is None:  # masked
        gpu.unlink()
        gpu.symlink_to("/dev/null")
    else:
        gpu.write_bytes(gpu.read_bytes() + edit)
    for report in (apply(made), remove(made)):
        assert report.files[0].status == "edited"
        assert os.path.lexists(gpu)
    assert apply(made, force=True).files[0].status == "overwritten"
    assert not gpu.is_symlink()
    assert statuses(apply(made)) == {"unchanged"}


def test_a_file_that_a_wheel_brought_counts_as_installed(tmp_path: Path) -> None:  # K5
    made = plan()
    for action in made.actions:
        Path(action.destination).parent.mkdir(parents=True, exist_ok=True)
        Path(action.destination).write_bytes(Path(action.source).read_bytes())
    assert statuses(apply(made)) == {"unchanged"}


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:  # K5
    made = plan()
    gpu = Path(made.actions[0].destination)
    gpu.parent.mkdir(parents=True)
    gpu.write_text("[Slice]\n")
    assert apply(made).files[0].status == "edited"
    assert gpu.read_text() == "[Slice]\n"


def test_the_state_of_each_file_is_told_without_touching_any(tmp_path: Path) -> None:  # K5, X10
    made = plan()
    gpu, cpu, catalog = (Path(made.actions[index].destination) for index in (0, 1, 4))
    assert {found for _, found in states(made)} == {"missing"}
    assert not list(tmp_path.iterdir())
    apply(made)
    assert {found for _, found in states(made)} == {"current"}
    gpu.write_bytes(gpu.read_bytes() + b"CPUWeight=99\n")
    cpu.write_bytes(unit_files._stamped(b"of an older version\n", b"# "))
    catalog.unlink()
    os.mkfifo(catalog)  # and nobody waits for a writer
    before = {path: path.lstat().st_ctime_ns for path in tmp_path.rglob("*")}
    found = [state for _, state in states(made)]
    assert found[:5] == ["edited", "outdated", "current", "current", "edited"]
    assert set(found[5:]) == {"current"}
    assert {path: path.lstat().st_ctime_ns for path in tmp_path.rglob("*")} == before


def test_a_drop_in_directory_with_others_files_stays(tmp_path: Path) -> None:  # K5
    made = plan(user_delegation=True)
    apply(made)
    other = tmp_path / "usr/local/lib/systemd/system/user@.service.d/other.conf"
    other.touch()
    remove(made)
    assert other.exists()


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "usr").touch()
    with pytest.raises(SlicerError, match=r"gpu\.slice: slice of GPU jobs cannot be installed"):
        apply(plan())


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan()
    apply(made)
    before = files_below(tmp_path)
    Path(made.actions[0].destination).write_text("edited")

    def fail(source: str, destination: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(SlicerError, match="No space left"):
        apply(made, force=True)
    assert files_below(tmp_path) == before
    assert Path(made.actions[0].destination).read_text() == "edited"


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_everybody_can_read_what_was_installed_whatever_the_umask(tmp_path: Path, umask: None) -> None:  # S12
    apply(plan(user_delegation=True))
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {path: 0o755 if path.is_dir() else 0o644 for path in modes}


# -- the broker -----------------------------------------------------------------------------------------


BROKER = "/opt/slicer/bin/slicer-broker"
OF_THE_BROKER = {
    f"usr/local/lib/systemd/system/{name}"
    for name in (
        "slicer-broker.service", "slicer-broker.socket", "slicer-broker-devices.service",
        "slicer-job-ended@.target",
    )
}  # fmt: skip


def test_the_broker_is_installed_on_request_with_its_own_program(tmp_path: Path) -> None:  # L1
    apply(plan())
    before = files_below(tmp_path)
    assert not before & OF_THE_BROKER
    made = plan(broker=BROKER)
    report = apply(made)
    assert files_below(tmp_path) - before == OF_THE_BROKER
    service = (tmp_path / "usr/local/lib/systemd/system/slicer-broker.service").read_text()
    assert feature_units.broker_program() == BROKER
    assert re.findall(r"^ExecStart=.*$", service, re.MULTILINE) == [f"ExecStart={BROKER}"]
    assert [ran.command[1:] for ran in report.commands][2:4] == [
        ("enable", "--now", "slicer-broker.socket"), ("try-restart", "slicer-broker.service"),
    ]  # fmt: skip
    assert statuses(apply(made)) == {"unchanged"}


@pytest.mark.parametrize("program", ["bin/slicer-broker", "/opt/my slicer/b", "/opt/%h/b", "/a\n/b", "/$A/b"])
def test_a_program_that_systemd_would_read_otherwise_is_refused(tmp_path: Path, program: str) -> None:
    with pytest.raises(SlicerError, match="a unit cannot name this program"):
        plan(broker=program)


def test_the_broker_is_stopped_before_its_files_go_and_may_go_alone(tmp_path: Path) -> None:  # L1
    ran: list[tuple[str, ...]] = []

    def note(command: tuple[str, ...]) -> Ran:
        ran.append((*command, str(is_there())))
        return Ran(command, 0, "")

    def is_there() -> bool:
        return bool(files_below(tmp_path) & OF_THE_BROKER)

    made = plan(broker=BROKER)
    apply(made, run=note)
    everything = files_below(tmp_path)
    ran.clear()
    alone = going(made, only_broker=True)
    assert statuses(remove(alone, run=note)) == {"removed"}
    assert ran == [
        ("systemctl", "disable", "--now", "slicer-broker.socket", "True"),
        ("systemctl", "daemon-reload", "False"),
    ]
    assert everything - files_below(tmp_path) == OF_THE_BROKER
    ran.clear()
    rest = going(made)
    assert not [action for action in rest.actions if "/slicer-broker" in action.destination]
    remove(rest, run=note)
    assert not [command for command in ran if "disable" in command]
    assert files_below(tmp_path) == set()


def test_a_packages_broker_is_not_installed_a_second_time(tmp_path: Path) -> None:  # L1
    packaged = tmp_path / "usr/lib/systemd/system"
    packaged.mkdir(parents=True)
    for name in ("slicer-broker.service", "slicer-broker.socket"):
        shutil.copy(UNITS / "system" / name, packaged)
    apply(plan(broker=BROKER))
    ours = [name for name in files_below(tmp_path / "usr/local") if "slicer-broker." in name]
    assert ours == []


# -- limits of the slices, from the configuration -----------------------------------------------------


def configure(root: Path, text: str) -> None:
    etc = root / "etc/slicer"
    etc.mkdir(parents=True, exist_ok=True)
    (etc / "config.toml").write_text(text)


def from_configuration(root: Path, **options: bool) -> InstallPlan:
    return configured(environ={"HOME": f"{root}/home"}, **options)[0]


def test_a_limit_that_is_no_longer_configured_goes_with_the_next_install(tmp_path: Path) -> None:  # K5
    configure(tmp_path, "[slices.gpu]\nmemory_max = '48G'\n[slices.cpu]\ncpu_weight = 7\n")
    apply(from_configuration(tmp_path))
    configure(tmp_path, "[slices.gpu]\nmemory_max = '24G'\n")
    made = from_configuration(tmp_path)
    assert [found for _, found in states(made)][-3:] == ["current", "outdated", "outdated"]
    assert [done.status for done in apply(made).files][-3:] == ["unchanged", "updated", "removed"]
    assert not list(tmp_path.rglob("cpu.slice.d"))
    assert apply(from_configuration(tmp_path)).files[-1].status == "unchanged"
    # A caller who does not know the configuration leaves them be.
    assert statuses(apply(plan())) == {"unchanged"}
    assert len(list(tmp_path.rglob("10-slicer-config.conf"))) == 1
    remove(plan(limits={}))
    assert not list(tmp_path.rglob("gpu.slice.d"))


def test_a_drop_in_that_somebody_edited_stays(tmp_path: Path) -> None:  # K5
    configure(tmp_path, "[slices.gpu]\nmemory_max = '48G'\n")
    apply(from_configuration(tmp_path))
    (drop_in,) = tmp_path.rglob("10-slicer-config.conf")
    drop_in.write_text("[Slice]\nMemoryMax=1G\n")
    for text in ("[slices.gpu]\nmemory_max = '24G'\n", ""):
        configure(tmp_path, text)
        assert apply(from_configuration(tmp_path)).files[-1].status == "edited"
        assert drop_in.read_text() == "[Slice]\nMemoryMax=1G\n"


# -- where it is to go --------------------------------------------------------------------------------


def test_what_a_package_brought_is_not_installed_a_second_time(tmp_path: Path) -> None:  # K5
    """A copy below /usr/local would hide the package's file, and miss its updates."""
    apply(plan())  # before there was a package
    shutil.copytree(tmp_path / "usr/local/lib", tmp_path / "usr/lib")
    shutil.copytree(tmp_path / "usr/local/share", tmp_path / "usr/share")
    fish = tmp_path / "usr/share/fish/vendor_completions.d/slicer.fish"
    fish.parent.mkdir(parents=True)
    shutil.copy(PACKAGE / "_completions/slicer.fish", fish)
    for number in (1, 5):  # as packages have them
        for page in list((tmp_path / f"usr/share/man/man{number}").iterdir()):
            page.rename(f"{page}.gz")
    zsh = tmp_path / "usr/share/zsh"
    (zsh / "site-functions").rename(zsh / "vendor-completions")  # as Debian's have it
    shutil.copy(UNITS / "system/gpu.slice", tmp_path / "usr/lib/systemd/system/gpu.slice")  # by another tool
    configure(tmp_path, "[slices.gpu]\nmemory_max = '48G'\n")
    assert statuses(apply(from_configuration(tmp_path))) == {"created", "removed"}
    assert files_below(tmp_path / "usr/local") == {"lib/systemd/system/gpu.slice.d/10-slicer-config.conf"}
    assert not (tmp_path / "etc/fish/completions/slicer.fish").exists()
    assert statuses(remove(plan(limits={}))) == {"removed"}
    assert (tmp_path / "usr/lib/systemd/system/gpu.slice").exists()


def test_without_manual_pages_there_are_none_to_install(tmp_path: Path, pages: Path) -> None:
    """As in a checkout before they were built."""
    shutil.rmtree(pages)
    assert not [action for action in plan().actions if "manual" in action.what]


def test_a_manual_page_keeps_to_its_own_comments(tmp_path: Path) -> None:
    apply(plan())
    page = tmp_path / "usr/local/share/man/man1/slicer.1"
    text, comment, end = page.read_text().rpartition('.\\" Installed by slicer; ')
    assert (text, comment, end.count("\n")) == (".TH SLICER\n", '.\\" Installed by slicer; ', 1)
    assert statuses(apply(plan())) == {"unchanged"}


@pytest.mark.parametrize(
    ("number", "said"), [(errno.EROFS, "slicer install --user"), (errno.EPERM, "")]
)
def test_a_place_that_is_read_only_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:  # K5
    def refuse(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(SlicerError) as caught:
        apply(plan())
    expected = said or ("immutable" if os.geteuid() == 0 else "run it as root")
    assert expected in caught.value.hint


# -- what is said of the files -----------------------------------------------------------------------


def test_the_page_about_units_names_every_place_and_every_weight(tmp_path: Path) -> None:  # K5
    text = (Path(__file__).parents[3] / "docs/units.md").read_text()
    made = plan(user_delegation=True, limits={"gpu": (Limit("MemoryMax", "1G", "f:1"),)})
    for action in made.actions:
        place = action.destination.removeprefix(f"{tmp_path}/usr/local/").removeprefix(str(tmp_path))
        if "/man/" not in place:
            assert f"`{place.replace('/cpu.slice', '/gpu.slice')}`" in text  # the two stand together
    for key in ("CPUWeight", "IOWeight"):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{key}` |"))
        for name, weight in zip(("gpu", "cpu"), row.split("|")[2:], strict=False):
            assert f"\n{key}={weight.strip()}\n" in (UNITS / f"system/{name}.slice").read_text()


# -- what is in the files -----------------------------------------------------------------------------


def test_the_catalog_explains_every_kind_of_event() -> None:  # K7
    text = (UNITS / "catalog/slicer.catalog").read_text()
    entries = re.findall(r"^-- ([0-9a-f]{32})\nSubject: .+\nDefined-By: slicer\n\n\S", text, re.MULTILINE)
    assert entries == [kind.message_id for kind in journal.KINDS.values()]
    assert text.count("\n-- ") == len(entries)


@pytest.mark.parametrize("manager", ["system", "user"])
def test_the_slices_give_way_to_interactive_work(manager: str) -> None:  # A7
    weights = {}
    for name in ("cpu", "gpu"):
        text = (UNITS / manager / f"{name}.slice").read_text()
        values = dict(re.findall(r"^(\w+)=(.+)$", text, re.MULTILINE))
        assert values["Description"]
        weights[name] = int(values["CPUWeight"]), int(values["IOWeight"])
    assert weights["cpu"] < weights["gpu"] < (100, 100)  # 100 is everybody's default


def test_the_administrators_directory_is_there_and_goes_again_if_nobody_used_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    made = tmp_path / "etc/slicer"
    assert apply(plan()).made == (str(made),)
    assert apply(plan()).made == ()
    remove(plan())
    assert not made.exists()
    apply(plan())
    (made / "policy.toml").touch()
    remove(plan())
    assert (made / "policy.toml").exists()


def test_what_is_in_place_of_the_administrators_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/slicer").symlink_to("elsewhere")
    assert apply(plan()).made == ()
    remove(plan())
    assert (tmp_path / "etc/slicer").is_symlink()
