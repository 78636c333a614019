"""What ``slicer profiles`` shows and writes. (K3)"""

from __future__ import annotations

import tomllib

import pytest

from slicer.config import profile_report
from slicer.config.profiles import host
from slicer.model import Host
from tests.unit.config.machine import GIB, HOST, Machine


def _uncommented(text: str) -> str:
    lines = (
        line[1:] if line[:1] == "#" and line[1:2] not in ("", " ") else line for line in text.split("\n")
    )
    return "\n".join(lines)


@pytest.mark.parametrize(
    "here",
    [HOST, Host((0,), 3 * 2**20), Host(tuple(range(96)), 377 * GIB + 12345), host()],
    ids=lambda h: len(h.cpus),
)
def test_written_file_says_exactly_what_the_builtins_do(machine: Machine, here: Host) -> None:  # K3
    machine.host = here
    text = profile_report.default_config_text(here)
    assert tomllib.loads(text) == {}
    plain = machine.load()
    machine.write(machine.user, _uncommented(text))
    written = machine.load()
    tables = {"default_profile", "slots", "gpu", "waiting", "logs", "history", "queue", "profiles"}
    assert set(tomllib.loads(_uncommented(text))) == tables
    for field in ("slots", "default_profile", "margin_mib", "policy"):
        assert getattr(written, field) == getattr(plain, field)
    assert written.names() == plain.names()
    for name in plain.names():
        ours, theirs = plain.profile(name), written.profile(name)
        for field in ("description", "slice", "gpus", "slots", "threads", "timeout_s", "linger", "env"):
            assert getattr(ours, field) == getattr(theirs, field)
        assert ours.properties == theirs.properties


def test_examples_in_the_written_file_are_valid(machine: Machine) -> None:
    tail = profile_report.default_config_text(HOST).partition("# Your own profile")[2]
    examples = [line[4:] for line in tail.split("\n") if line.startswith("#   ")]
    machine.write(machine.user, "\n".join([examples[-1], *examples[:-1]]))
    assert machine.profile("train").threads == 8
    assert machine.profile("train").gpu_choice == ("0", "1")
    assert machine.load().compat_gpu_lock == "/tmp/gpu.lock"


def test_every_value_is_shown_with_its_source(machine: Machine) -> None:  # K3
    machine.system(
        "[profiles.a]\ninherits='heavy'\nenv = { X = '1' }\ndevice_allow = ['/dev/a r', '/dev/b']\n"
    )
    config = machine.load()
    shown = {row.name: (row.value, row.source) for row in profile_report.settings(config, "a")}
    profile = config.profile("a")
    assert shown["CPUWeight"] == ("20", "built-in heavy")
    assert shown["env.X"] == ("1", f"{machine.etc}/config.toml:3")
    assert shown["DeviceAllow"] == ("/dev/a r, /dev/b", f"{machine.etc}/config.toml:4")
    assert shown["timeout"] == ("infinity", "default")
    assert len(shown) == 7 + len(profile.properties) + len(profile.env)
    rows = profile_report.summaries(config)
    assert [(row.name, row.inherits, row.is_default) for row in rows] == [
        ("a", ("heavy",), False),
        ("gpu", (), False),
        ("heavy", (), False),
        ("light", (), True),
    ]
    general = {row.name: (row.value, row.source) for row in profile_report.general_settings(config)}
    assert general["slots.cpu"] == ("4", "built-in")
