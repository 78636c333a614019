"""Configuration files: which are read, whose are trusted, what is said of bad ones, the cache. (K3)"""

from __future__ import annotations

import os
import pwd
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from slicer.config import files
from slicer.config.profiles import load
from slicer.config.toml import key_lines
from slicer.errors import ConfigError, SlicerError
from tests.unit.config.machine import GIB, HOST, Machine, values


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


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
    assert machine.load().slots_cpu == 7
    machine.environ["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    assert machine.load().slots_cpu == 8
    machine.environ["XDG_CONFIG_HOME"] = "relative"
    assert machine.load().slots_cpu == 7


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
    assert machine.load().slots_cpu == 2


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
    assert machine.load().slots_cpu == 4


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
    assert (made.slots_cpu, made.sources["slots.cpu"]) == (2, f"{machine.etc}/config.toml:3")


# ---- whose files root follows ----


def as_root(monkeypatch: pytest.MonkeyPatch, foreign: Path) -> None:
    """Make ``foreign`` another user's file in root's eyes, whoever runs the tests."""
    if os.geteuid() == 0:
        os.chown(foreign, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_root_passes_over_the_configuration_in_another_users_home(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:  # K3
    machine.write(machine.user, "[slots]\ncpu = 9\n")
    as_root(monkeypatch, machine.home)
    made = machine.load()
    assert made.slots_cpu == 4
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


# ---- the cache ----


def settle(*paths: Path) -> None:
    """Age files, so that the cache believes that nothing changes them within this tick of the clock."""
    for path in paths:
        os.utime(path, (1, 1))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were really parsed, with the change time not looked at (a test cannot age it)."""
    from slicer.config import cache, toml

    seen: list[str] = []
    parse = toml.parse

    def spy(content: bytes, where: str) -> object:
        seen.append(where)
        return parse(content, where)

    monkeypatch.setattr(toml, "parse", spy)
    monkeypatch.setattr(cache, "_SETTLED_NS", -(10**12))
    return seen


def cache_file(machine: Machine) -> Path:
    return machine.home / ".cache" / "slicer" / "config"


def test_unchanged_files_are_parsed_once(machine: Machine, parsed: list[str]) -> None:
    path = machine.system("[profiles.a]\nmemory_max = '1G'\nenv = { X = 'ü' }\n")
    first = machine.profile("a")
    assert (parsed, cache_file(machine).stat().st_mode & 0o777) == ([str(path)], 0o600)
    assert machine.profile("a") == first
    assert parsed == [str(path)]


def test_changed_added_and_removed_files_are_seen(machine: Machine, parsed: list[str]) -> None:
    path = machine.system("[slots]\ncpu = 2\n")
    settle(path)
    assert machine.load().slots_cpu == 2
    path.write_text("[slots]\ncpu = 3\n")
    settle(path)  # same size, same modification time: the change time still tells
    assert machine.load().slots_cpu == 3
    machine.write(machine.user, "[slots]\ncpu = 5\n")
    assert machine.load().slots_cpu == 5
    machine.user.unlink()
    assert machine.load().slots_cpu == 3


def test_file_changed_just_now_is_not_cached(machine: Machine) -> None:
    machine.system("")
    machine.load()
    assert not cache_file(machine).exists()


def test_bad_configuration_is_never_cached(machine: Machine, parsed: list[str]) -> None:
    machine.system("[profiles.a]\nmemory_max = 'x'\n")
    for _ in range(2):
        with pytest.raises(ConfigError):
            machine.load()
    assert len(parsed) == 2


def _damage(kind: str, path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(content[:-5])
    elif kind == "flipped":
        content[-5] ^= 0xFF
        path.write_bytes(content)
    elif kind == "other version":
        path.write_bytes(content.replace(b"Python ", b"python ", 1))
    elif kind == "readable by others":
        path.chmod(0o644)
    elif kind == "symbolic link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "hard link":
        os.link(path, tmp_path / "elsewhere")
    elif kind == "fifo":
        path.unlink()
        os.mkfifo(path, 0o600)
    elif kind == "open directory":
        path.parent.chmod(0o777)
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "cut",
        "flipped",
        "other version",
        "readable by others",
        "symbolic link",
        "hard link",
        "fifo",
        "open directory",
        "a directory",
    ],
)
def test_odd_cache_is_not_believed_and_does_no_harm(
    machine: Machine, parsed: list[str], tmp_path: Path, kind: str
) -> None:
    machine.system("[slots]\ncpu = 2\n")
    machine.load()
    _damage(kind, cache_file(machine), tmp_path)
    assert machine.load().slots_cpu == 2
    assert len(parsed) == 2


def test_cache_that_cannot_be_written_is_no_error(machine: Machine, parsed: list[str]) -> None:
    machine.system("[slots]\ncpu = 2\n")
    (machine.home / ".cache").write_text("not a directory")
    assert machine.load().slots_cpu == 2
    assert machine.load().slots_cpu == 2


def test_root_keeps_no_cache_in_another_users_home(
    machine: Machine, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.system("[slots]\ncpu = 2\n")
    as_root(monkeypatch, machine.home)
    assert machine.load().slots_cpu == 2
    assert not (machine.home / ".cache").exists()


def test_cpus_missing_here_matter_only_to_a_profile_in_use(machine: Machine) -> None:  # K3
    machine.system("[profiles.big]\nallowed_cpus = '64-127'\n")
    assert machine.profile("heavy").name == "heavy"
    with pytest.raises(ConfigError, match=r":2: allowed_cpus: none of the CPUs '64-127' is usable here"):
        machine.profile("big")


# ---- line numbers ----


def test_line_of_every_key_is_found() -> None:
    text = """# [no.table]
a = "x # [y]"
'q.r' . "s\\u0074" = 1
long = \"\"\"
b = 1
\\\"\"\" c = 2
""\"\"\"
[t]
lit = '''
d = 3'''
list = [ # e = 1
  "]", [1, 2], { f = 1 },
]
in = { g = 1, h.i = { j = [1] }, k = 'l}' }
date = 1979-05-27T07:32:00Z
[t."u v".w] # comment
x.y = 2
[[z]]
n = 1
[[z]]
n = 2"""
    found = key_lines(text)
    assert found == {
        ("a",): 2,
        ("q.r",): 3,
        ("q.r", "st"): 3,
        ("long",): 4,
        ("t",): 8,
        ("t", "lit"): 9,
        ("t", "list"): 11,
        ("t", "in"): 14,
        ("t", "in", "g"): 14,
        ("t", "in", "h"): 14,
        ("t", "in", "h", "i"): 14,
        ("t", "in", "h", "i", "j"): 14,
        ("t", "in", "k"): 14,
        ("t", "date"): 15,
        ("t", "u v"): 16,
        ("t", "u v", "w"): 16,
        ("t", "u v", "w", "x"): 17,
        ("t", "u v", "w", "x", "y"): 17,
        ("z",): 18,
        ("z", "n"): 19,
    }
    assert key_lines(text.replace("\n", "\r\n")) == found


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" if c in '"\\' or not c.isprintable() else c for c in text) + '"'


_words = st.text(st.characters(max_codepoint=0x2FF), max_size=6)
_scalars = st.one_of(_words.map(_quoted), st.integers().map(str), st.sampled_from(["true", "1.5", "'lit#['"]))


@given(st.dictionaries(_words, _scalars, min_size=1, max_size=8), st.lists(st.sampled_from(["", "# x = ["])))
def test_lines_are_right_in_any_flat_document(pairs: dict[str, str], gaps: list[str]) -> None:
    lines = list(gaps)
    wanted = {}
    for key, value in pairs.items():
        lines.append(f"{_quoted(key)}\t= [{value},] # =")
        wanted[(key,)] = len(lines)
    text = "\n".join(lines)
    assert set(tomllib.loads(text)) == set(pairs)
    assert key_lines(text) == wanted


_symbols = [*"[]{}=,.#\\\"'\n", "[[", "]]", '"' * 3, "'" * 3, "\r\n", "ü"]
_values = ["1", "-1", "1.5", "true", "nan", "2020-01-01", "'1G'", "'300%'"]
_keys = ["profiles", "heavy", "a.b", "slots", "cpu", "env", "inherits", "gpus", "timeout", "memory_max"]
_pieces = ["[profiles.x]", "inherits='x'", "threads='auto'"]
_fragments = st.sampled_from([*_symbols, *_values, *_keys, *_pieces])


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.lists(_fragments, max_size=25))
def test_any_text_loads_or_is_refused_in_one_line(machine: Machine, fragments: list[str]) -> None:
    machine.system(" ".join(fragments))
    said = ""
    try:
        made = machine.load()
        for name in made.names():
            made.profile(name)
    except SlicerError as error:
        said = str(error)
    assert said.isprintable()
