"""Configuration files: which are read, whose are trusted, what is said of bad ones. (K3)"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from slicer.config import files
from slicer.config.profiles import load
from slicer.errors import ConfigError
from tests.unit.config.machine import GIB, HOST, Machine, as_root, values

# ---- files and their order ----


def test_later_files_win_key_by_key_and_sources_say_so(machine: Machine) -> None:  # K3
    explicit = machine.write(machine.home / "mine.toml", "[profiles.heavy]\ntasks_max = 4\n")
    machine.environ["SLICER_CONFIG"] = str(explicit)
    machine.system("[profiles.heavy]\nio_weight = 1\ncpu_weight = 1\nmemory_max = '1G'\ntasks_max = 1\n")
    machine.write(machine.etc / "conf.d" / "20-b.toml", "[profiles.heavy]\ncpu_weight = 3\n")
    machine.write(
        machine.etc / "conf.d" / "10-a.toml", "[profiles.heavy]\ncpu_weight = 2\nmemory_max = '2G'\n"
    )
    machine.write(machine.etc / "conf.d" / "ignored.toml.bak", "not toml at all")
    machine.write(machine.etc / "conf.d" / ".hidden.toml", "not toml at all")
    machine.write(machine.user, "[profiles.heavy]\n\nmemory_max = '3G'\ntasks_max = 3\n")
    heavy = machine.profile("heavy")
    got = values(heavy)
    assert (got["IOWeight"], got["CPUWeight"], got["MemoryMax"], got["TasksMax"]) == (1, 3, 3 * GIB, 4)
    assert heavy.sources["IOWeight"] == f"{machine.etc}/config.toml:2"
    assert heavy.sources["CPUWeight"] == f"{machine.etc}/conf.d/20-b.toml:2"
    assert heavy.sources["MemoryMax"] == f"{machine.user}:3"
    assert heavy.sources["TasksMax"] == f"{explicit}:2"
    assert heavy.sources["CPUQuota"] == "built-in heavy"
    assert heavy.sources["gpus"] == "default"


def test_xdg_config_home_goes_before_home(machine: Machine, tmp_path: Path) -> None:  # K3
    machine.write(machine.user, "[slots]\ncpu = 7\n")
    other = tmp_path / "xdg" / "slicer"
    other.mkdir(parents=True)
    machine.write(other / "config.toml", "[slots]\ncpu = 8\n")
    assert machine.load().slots["cpu"] == 7
    machine.environ["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    assert machine.load().slots["cpu"] == 8
    machine.environ["XDG_CONFIG_HOME"] = "relative"
    assert machine.load().slots["cpu"] == 7


def test_home_is_looked_up_where_the_environment_lacks_it() -> None:  # K3
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert files.user_file({}) == f"{home}/.config/slicer/config.toml"
    assert files.user_file({"HOME": "relative"}) == f"{home}/.config/slicer/config.toml"
    assert files.user_file({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}) == "/x/slicer/config.toml"


def test_user_without_a_home_has_only_the_system_files(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:  # K3
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    machine.environ = {}
    machine.system("[slots]\ncpu = 2\n")
    assert files.user_file({}) == files.cache_dir({}) == ""
    assert machine.load().slots["cpu"] == 2


def test_directory_that_cannot_be_listed_is_an_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)  # root may list everything
    with pytest.raises(ConfigError, match=r"conf\.d: cannot list the directory: Permission denied"):
        machine.load()


def test_no_files_at_all_is_fine(machine: Machine, tmp_path: Path) -> None:  # K3
    made = load({"HOME": str(tmp_path / "none")}, HOST, system_dir=str(tmp_path / "none"))
    assert made.names() == ("gpu", "heavy", "light")
    assert set(made.sources.values()) == {"built-in"}
    (tmp_path / "file").write_text("")
    assert load({"HOME": str(tmp_path / "file")}, HOST, system_dir=str(tmp_path / "file")).names()


def test_file_named_by_slicer_config_must_exist(machine: Machine) -> None:  # K3
    machine.environ["SLICER_CONFIG"] = "/nonexistent/x.toml"
    with pytest.raises(ConfigError, match=r"^/nonexistent/x\.toml: .*SLICER_CONFIG does not exist"):
        machine.load()
    machine.environ["SLICER_CONFIG"] = ""
    assert machine.load().slots["cpu"] == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[profiles.a\n", ":1:12: not valid TOML: "),
        (b"default_profile = \n", ":1:19: not valid TOML: Invalid value"),
        (b"x = 1\n\ny == 2\n", ":3:4: not valid TOML: "),
        (b"x = 1\nx = 2\n", ":2:6: not valid TOML: Cannot overwrite"),
        (b'x = """abc\n', ":1:11: not valid TOML: "),
        (b"\n\nx = \xff\n", ":3:5: is not UTF-8 text"),
        (b"x = " + b"[" * 5000, ": brackets are nested too deeply"),
        (b"x = " + b"9" * 5000, ": not valid TOML: Exceeds the limit"),
        (b"\0", ":1:1: not valid TOML: "),
        (b"#" * (2**20 + 1), ": is larger than 1 MiB"),
    ],
)
def test_malformed_file_is_one_line_with_its_place(machine: Machine, content: bytes, message: str) -> None:
    path = machine.etc / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        machine.load()
    text = str(caught.value)
    assert text.startswith(f"{path}{message}"), text
    assert text.isprintable()
    assert caught.value.exit_code == 125


def test_file_that_cannot_be_a_configuration_is_refused_without_waiting(machine: Machine) -> None:
    path = machine.etc / "config.toml"
    path.mkdir()
    with pytest.raises(ConfigError, match=r"config\.toml: is a directory"):
        machine.load()
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"config\.toml: is not a regular file"):
        machine.load()
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(ConfigError, match=r"config\.toml: cannot read the file: Too many levels"):
        machine.load()


def test_unreadable_file_is_an_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    path = machine.system("")
    opened = os.open

    def refuse(name: str, *args: int) -> int:
        if name == str(path):
            raise PermissionError(13, "Permission denied")
        return opened(name, *args)

    monkeypatch.setattr(os, "open", refuse)  # root may read everything
    with pytest.raises(ConfigError, match=r"config\.toml: cannot read the file: Permission denied"):
        machine.load()


def test_path_with_a_newline_still_makes_one_line(machine: Machine, tmp_path: Path) -> None:
    odd = machine.write(tmp_path / "a\nb.toml", "x = 1\n")
    machine.environ["SLICER_CONFIG"] = str(odd)
    with pytest.raises(ConfigError) as caught:
        machine.load()
    assert str(caught.value).isprintable()


def test_windows_line_ends_and_byte_order_mark_are_read(machine: Machine) -> None:
    (machine.etc / "config.toml").write_bytes(b"\xef\xbb\xbf[slots]\r\n\r\ncpu = 2\r\n")
    made = machine.load()
    assert (made.slots["cpu"], made.sources["slots.cpu"]) == (2, f"{machine.etc}/config.toml:3")


# ---- whose files root follows ----


def test_root_passes_over_the_configuration_in_another_users_home(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:  # K3
    machine.write(machine.user, "[slots]\ncpu = 9\n")
    as_root(monkeypatch, machine.home)
    made = machine.load()
    assert made.slots["cpu"] == 4
    assert [str(machine.user) in line and "root" in line for line in made.warnings] == [True]
    machine.user.unlink()
    assert machine.load().warnings == ()


def test_root_refuses_a_file_that_another_user_could_change(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:  # K3
    path = machine.write(machine.home / "mine.toml", "")
    machine.environ["SLICER_CONFIG"] = str(path)
    machine.load()
    as_root(monkeypatch, path)
    with pytest.raises(
        ConfigError, match=r"mine\.toml: users other than root can write it .*chown root:root"
    ):
        machine.load()


def test_root_refuses_a_system_file_that_everybody_can_write(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:  # K3
    path = machine.system("")
    path.chmod(0o666)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="users other than root can write it"):
        machine.load()
    path.chmod(0o644)
    machine.load()
