"""``slicer route`` under systemd: the scope of each attempt, its limits, and what the journal has of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import until
from tests.process.hot_path import SYSTEMD, imported_with_cache, surplus
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.terminal import BASH, CTRL_C, CTRL_Z, PROMPT, Terminal

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

ROUTES = """\
[routes.whisper]
probe = "size"
threshold = "1K"
on_gpu_oom = "cpu"
[routes.whisper.gpu]
vram = "2G"
memory = "300M"
[routes.whisper.cpu]
max_jobs = 1
"""
JOB = """\
grep -o 'slicer-.*scope' /proc/self/cgroup
echo "said by $where" >&2
[ -z "$CUDA_VISIBLE_DEVICES" ] || { echo "CUDA out of memory" >&2; exit 3; }
systemctl --no-pager show -P MemoryMax "$(grep -o 'slicer-.*scope' /proc/self/cgroup)"
"""


@pytest.fixture
def routed(slicer: Slicer) -> dict[str, str]:
    """The environment of a machine with the route ``whisper`` and a simulated GPU."""
    slicer.path("routes.toml").write_text(ROUTES)
    slicer.path("talk").write_bytes(b"x" * 100)
    return {"SLICER_CONFIG": str(slicer.path("routes.toml")), "SLICER_SIM": "1x24G"}


@pytest.mark.parametrize("journal", [(), ("--journal",)], ids=["", "journal"])
def test_each_attempt_has_its_scope_and_its_events(
    slicer: Slicer, routed: dict[str, str], journal: tuple[str, ...]
) -> None:  # C6, C8, K7
    talk = str(slicer.path("talk"))  # one of that name has run out of memory in another test
    done = slicer.run("whisper", *journal, "--", "sh", "-c", JOB, "sh", talk, env=routed, program="route")
    assert done.code == 0, done
    first, second, _ = done.stdout.splitlines()
    assert first != second
    assert done.stderr.count("said by") == 2
    on_gpu, on_cpu = (
        {entry["SLICER_EVENT"]: entry for entry in systemctl.journal("-t", "slicer", f"SLICER_UNIT={unit}")}
        for unit in (first, second)
    )
    routed_gpu, routed_cpu = on_gpu["routed"], on_cpu["routed"]
    assert (routed_gpu["SLICER_RESULT"], routed_gpu["PRIORITY"]) == ("started", "6")
    assert (routed_cpu["SLICER_RESULT"], routed_cpu["PRIORITY"]) == ("fallback", "5")
    assert routed_cpu["SLICER_AFTER"] == on_gpu["finished"]["SLICER_JOB"]
    assert (routed_gpu["SLICER_METRIC"], routed_gpu["SLICER_BOUND"]) == ("size=100", "size=1024")
    assert (routed_cpu["SLICER_DESTINATION"], routed_cpu["SLICER_MODE"]) == ("cpu", "cpu")
    assert {entry["SLICER_ROUTE"] for entry in (*on_gpu.values(), *on_cpu.values())} == {"whisper"}
    if journal:
        copied = systemctl.journal("-t", "whisper:talk", f"_SYSTEMD_UNIT={first}")
        assert "CUDA out of memory" in [entry["MESSAGE"] for entry in copied]


def test_a_destinations_memory_is_the_scopes(slicer: Slicer, routed: dict[str, str]) -> None:  # C2, C7
    show = "systemctl show -P MemoryMax $(grep -o 'slicer-.*scope' /proc/self/cgroup)"
    done = slicer.run("whisper", "-q", "--", "sh", "-c", show, "sh", "talk", env=routed, program="route")
    assert done.stdout == f"{300 << 20}\n"


def test_a_wrapped_program_ends_with_the_call_that_is_killed(
    slicer: Slicer, routed: dict[str, str]
) -> None:  # C5, N7
    """Here the call of a shim, which names the program itself; every process of the scope goes."""
    stubborn = "trap '' TERM; grep ^0: /proc/self/cgroup; sleep 1000 & wait"
    words = ("whisper", "--program", "/bin/sh", "--", "whisper", "-c", stubborn, "sh", "talk")
    call = slicer.start(*words, env=routed, program="route")
    call.said(".scope\n")
    directory = Path(f"/sys/fs/cgroup{call.stdout.strip().removeprefix('0::')}")
    assert directory.exists()
    call.kill()
    until(lambda: not directory.exists(), "nothing of it is left")
    outcome = slicer.outcome(directory.stem.removeprefix("slicer-"))
    assert (outcome.reason, outcome.ended_by) == ("stopped", "caller")


def test_what_does_not_start_is_told_without_a_job(slicer: Slicer, routed: dict[str, str]) -> None:  # C4, C6
    assert slicer.run("whisper", "--name", "lost", "--", "true", env=routed, program="route").code == 125
    (entry,) = systemctl.journal("-t", "slicer", "SLICER_EVENT=routed", "SLICER_NAME=lost")
    assert (entry["SLICER_RESULT"], entry["PRIORITY"]) == ("probe-error", "3")
    assert entry["SLICER_EXIT_CODE"] == "125"
    assert "SLICER_JOB" not in entry


STOPS = """\
echo ready >&2; read x; echo "got $x" >&2
[ -z "$CUDA_VISIBLE_DEVICES" ] || { echo "CUDA out of memory" >&2; exit 3; }
read x
"""


def test_at_a_terminal_both_attempts_stop_go_on_and_end_as_any_job(
    slicer: Slicer, routed: dict[str, str]
) -> None:  # C8
    with Terminal(*BASH, env=slicer.environ(**routed), cwd=slicer.directory) as bash:
        bash.expect(PROMPT)
        slicer.path("job").write_text(STOPS)
        bash.line("slicer route whisper -q -- sh -c \"$(cat ./job)\" sh talk")
        for word, end in (("one", ""), ("two", CTRL_C)):
            bash.expect("ready\n")
            bash.type(CTRL_Z)
            bash.expect("Stopped")
            bash.expect(PROMPT)
            bash.line("fg")
            bash.line(word)
            bash.expect(f"got {word}\n")  # it goes on; sooner, a Ctrl-C would be bash's
            bash.type(end)
        bash.expect(PROMPT)
        bash.line("echo code=$?")
        bash.expect("code=$?\n")
        assert "code=130" in bash.expect(PROMPT)


class _Place:
    prefix = ()

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env


def test_the_hot_path_imports_what_it_needs(slicer: Slicer, routed: dict[str, str]) -> None:  # K8
    place = _Place(slicer.environ(SLICER_CONFIG=routed["SLICER_CONFIG"]))
    slicer.path("long").write_bytes(b"x" * 5000)
    line = ("whisper", "-q", "--", "true", str(slicer.path("long")))
    assert surplus(imported_with_cache(place, *line, program="route"), SYSTEMD) == set()
