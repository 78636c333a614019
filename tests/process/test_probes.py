"""Measuring the input of a route's job with programs that stand in for probes. (C1, C4)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slicer.config.routes import Route
from slicer.errors import ProbeError
from slicer.kernel import proc
from slicer.route.deciding import Metric
from slicer.route.probe_program import ProgramStart, ask
from slicer.route.probing import measure
from tests.patience import until
from tests.unit.route.made_up import route

COMMAND = "probe = 'command'\nprobe_command = ['./probe', '{{}}']\nprobe_timeout = '{timeout}'\ninput = 1\n"
AGES = "1h"
PLAIN = ProgramStart(os.environ)


@pytest.fixture(autouse=True)
def _in_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LC_ALL", "C")
    Path("in").write_text("two words\n")


def program(name: str, body: str, *, head: str = "#!/bin/sh\n") -> None:
    path = Path(name)
    path.write_text(f"{head}{body}\n")
    path.chmod(0o755)


def asked(body: str, *arguments: str, timeout: str = AGES) -> float:
    """What is measured by a command with this script."""
    program("probe", body)
    _, (metric,) = measure(route(COMMAND.format(timeout=timeout)), ("w", *(arguments or ("in",))), 0)
    assert metric.kind == "command"
    return metric.value


def refused(act: Route, *arguments: str, stdin: int = 0) -> ProbeError:
    with pytest.raises(ProbeError) as raised:
        measure(act, ("w", *arguments), stdin)
    assert str(raised.value).isprintable()
    return raised.value


def said(body: str, *, timeout: str = AGES) -> str:
    with pytest.raises(ProbeError) as raised:
        asked(body, timeout=timeout)
    assert raised.value.input == "in"
    assert str(raised.value).isprintable()
    return str(raised.value)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("echo 5", 5.0),
        ("printf '  0.25\\n\\n'", 0.25),
        ("echo 1e3", 1000.0),
        ("echo +7", 7.0),
        ("echo 0", 0.0),
        ("wc -w < $1", 2.0),
        ("echo 5; echo noise >&2", 5.0),
        ("yes warning | head -c 1000000 >&2; echo 5", 5.0),
        ("echo 5; exec >&- 2>&-; cat $1 >/dev/null", 5.0),
    ],
)
def test_any_program_that_prints_a_number_is_a_probe(body: str, value: float) -> None:  # C1
    assert asked(body) == value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("true", "in: ./probe printed nothing (it must print one number and nothing else)"),
        ("echo", "./probe printed nothing"),
        ("wc -w $1", "./probe printed '2 in'"),
        ("echo 5; echo 6", "./probe printed '5\\\\n6'"),
        ("echo 12s", "printed '12s'"),
        ("echo 12,5", "printed '12,5'"),
        ("echo 1_000", "printed '1_000'"),
        ("echo nan", "printed 'nan'"),
        ("echo inf", "printed 'inf'"),
        ("echo e", "printed 'e'"),
        ("echo -3", "printed -3, which is negative"),
        ("echo 1e400", "printed 1e400, which is absurdly large"),
        ("echo 99999999999999999999", "which is absurdly large"),
        ("printf '%0100d' 7", "printed '0000000000"),
        ("printf '\\033[31m5'", "printed '\\\\x1b[31m5'"),
        ("head -c 10 /dev/zero", "printed '"),
        ("yes", "printed more than 64 KiB"),
        ("echo 5; exit 3", "./probe failed with exit code 3"),
        ("echo first >&2; echo 'no such thing' >&2; exit 1", "exit code 1: no such thing"),
        ("echo $1: is broken >&2; exit 1", "exit code 1: is broken"),
        ("printf '\\033]0;title\\007' >&2; exit 1", "exit code 1: \\x1b]0;title\\x07"),
        ("echo 5; kill -SEGV $$", "./probe was killed by SIGSEGV"),
    ],
)
def test_what_is_no_number_is_an_error_with_its_reason(body: str, message: str) -> None:  # C4
    assert message in said(body)


def test_a_program_that_is_missing_or_no_program_is_an_error() -> None:  # C4
    act = route(COMMAND.format(timeout=AGES))
    assert "in: there is no ./probe (see probe_command)" in str(refused(act, "in"))
    program("probe", "echo 5", head="")
    error = str(refused(act, "in"))
    assert "./probe cannot be executed: Exec format error (a script must begin with #!" in error
    Path("probe").chmod(0o644)
    assert "./probe cannot be executed: Permission denied" in str(refused(act, "in"))


def gone(name: str) -> None:
    """The process whose pid is in that file must end."""
    pid = int(until(lambda: Path(name).read_text().strip(), "a pid"))
    until(lambda: proc.start_time(pid) is None, f"{pid} is gone")


@pytest.mark.parametrize(
    "body",
    [
        "echo $$ >pid; exec sleep 1000",
        "trap '' TERM INT HUP; echo $$ >pid; sleep 1000; sleep 1000",
        "sleep 1000 & echo $! >pid; wait",
        "echo $$ >pid; exec yes >&2",
    ],
)
def test_a_probe_that_hangs_is_ended_with_all_that_it_started(body: str) -> None:  # C4
    assert "in: ./probe had no answer after 500ms (probe_timeout" in said(body, timeout="500ms")
    if Path("pid").exists():  # else it was too slow to begin
        gone("pid")


def test_what_a_probe_leaves_behind_is_not_waited_for_and_ended() -> None:  # C4
    assert asked("sleep 1000 & echo $! >pid; echo 5") == 5.0
    gone("pid")


def test_an_interrupt_ends_the_probe_and_then_us(tmp_path: Path) -> None:  # C4
    program("probe", "echo $$ >pid.new; mv pid.new pid; exec sleep 1000")
    code = (
        "from slicer.kernel.signals import block_interrupts; block_interrupts()\n"
        "from slicer.route.probing import measure; from tests.unit.route.made_up import route\n"
        f"measure(route({COMMAND.format(timeout=AGES)!r}), ('w', 'in'), 0)\n"
    )
    repo = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": f"{repo}:{repo / 'src'}"}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: Path("pid").exists() or process.poll() is not None, "the probe runs")
            process.send_signal(signal.SIGTERM)
            assert process.wait() == -signal.SIGTERM
        finally:
            process.kill()
    gone("pid")


# -- what the probe gets -----------------------------------------------------------------------------------


def test_the_input_goes_where_the_command_says() -> None:  # C1
    program("probe", 'echo "$@" >seen; echo 1')
    lines = "probe = 'command'\nprobe_command = ['./probe', {}]\ninput = 1\n"
    for words, seen in (
        ("'--in={}', '{}'", "--in=in in"),
        ("'-q'", "-q in"),
        ("'-x', '{}', '-y'", "-x in -y"),
    ):
        measure(route(lines.replace("{}", words, 1)), ("w", "in"), 0)
        assert Path("seen").read_text() == f"{seen}\n"


def test_a_name_is_never_an_option_and_never_a_script(tmp_path: Path) -> None:
    name = "-rf;$(touch bad) \n%d"
    Path(name).write_text("x")
    program("probe", 'test -f "$1" && printf %s "$1" >seen && echo 1')
    measure(route(COMMAND.format(timeout=AGES)), ("w", name), 0)
    assert Path("seen").read_text() == f"./{name}"
    assert not Path("bad").exists()


def test_a_command_may_measure_what_is_no_file() -> None:
    assert asked("test $1 = https://example.org/x && echo 3", "https://example.org/x") == 3.0
    assert asked('printf %s "$1" | wc -w', "a prompt " * 500) == 1000.0


def test_a_probe_is_sent_signals_as_any_program() -> None:
    # Not by a shell script: dash unblocks them itself.
    assert ask(("grep", "-c", "SigBlk:.0*$", "/proc/self/status"), 3600, PLAIN).stdout == b"1\n"


def test_what_a_probe_says_on_stderr_is_not_kept_without_end() -> None:
    program("talks", "yes warning | head -c 1000000 >&2")
    assert len(ask(("./talks",), 3600, PLAIN).stderr) <= 4096


def test_a_wrapped_program_that_a_probe_starts_is_not_routed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a route whose probe starts the wrapped program would call itself for ever."""
    monkeypatch.delenv("SLICER_ROUTE", raising=False)
    assert asked("test $SLICER_ROUTE = r && echo 1") == 1.0
    monkeypatch.setenv("SLICER_ROUTE", "outer")
    assert asked("test $SLICER_ROUTE = outer,r && echo 1") == 1.0


def test_a_probe_has_no_terminal_and_no_input_of_ours() -> None:
    assert asked("read line; test -z \"$line\" && test $(ps -o pgid= -p $$) = $$ && echo 1") == 1.0


# -- standard input ----------------------------------------------------------------------------------------


def test_standard_input_is_measured_from_where_it_stands_and_left_there() -> None:  # C1
    Path("in").write_text("header\none two\n")
    program("probe", "cat $1 | wc -c")
    fd = os.open("in", os.O_RDONLY)
    try:
        assert os.read(fd, 7) == b"header\n"
        for lines, value in (
            ("probe = 'size'", 8.0),
            ("probe = 'lines'", 1.0),
            ("probe = 'tokens'", 3.0),
            ("probe = 'command'\nprobe_command = ['./probe']", 15.0),  # by name it is the whole file
            ("probe = 'command'\nprobe_command = ['sh', '-c', 'cat | wc -c']", 8.0),
        ):
            found = measure(route(f"{lines}\ninput = 'stdin'"), ("w",), fd)
            assert found == ("-", (Metric(found[1][0].kind, value),)), lines
        assert os.read(fd, 100) == b"one two\n"
    finally:
        os.close(fd)


def test_standard_input_must_be_a_file_by_then() -> None:  # C4
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        stdin = route("probe = 'lines'\ninput = 'stdin'")
        assert "standard input: is a pipe, which" in str(refused(stdin, stdin=read_end))
        assert "standard input: is a device" in str(refused(stdin, stdin=null))
        dash = route("probe = 'lines'\ninput = 1")
        assert '(input = "stdin" in the route' in str(refused(dash, "-", stdin=read_end))
    finally:
        for fd in (read_end, write_end, null):
            os.close(fd)
    assert "Bad file descriptor" in str(refused(stdin, stdin=987))


# -- hostile and broken inputs -----------------------------------------------------------------------------


@pytest.mark.parametrize("probe", ["size", "lines", "tokens", "duration", "pixels", "count", "command"])
def test_neither_a_fifo_nor_a_device_is_opened(
    probe: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C4
    os.mkfifo("fifo")
    Path("link").symlink_to("fifo")
    more = "probe_command = ['cat']\n" if probe == "command" else ""
    act = route(f"probe = '{probe}'\n{more}input = 1")
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda path, *how: opened.append(path))
    for word, what in (("fifo", "a pipe"), ("link", "a pipe"), ("/dev/zero", "a device")):
        assert f"{word}: is {what}, which cannot be measured and then read again" in str(refused(act, word))
    assert not opened  # a tape would rewind


def test_a_file_that_becomes_a_fifo_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who may write in the directory exchanges it after the look and before the open."""
    os.mkfifo("fifo")
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: real("in" if path == "fifo" else path, **how))
    assert "fifo: is a pipe" in str(refused(route("probe = 'lines'\ninput = 1"), "fifo"))


@pytest.mark.parametrize("probe", ["size", "lines", "duration"])
def test_what_cannot_be_read_is_an_error(probe: str, monkeypatch: pytest.MonkeyPatch) -> None:  # C4
    act = route(f"probe = '{probe}'\ninput = 1")
    assert "none: cannot be measured: No such file or directory" in str(refused(act, "none"))
    assert "in/x: cannot be measured: Not a directory" in str(refused(act, "in/x"))
    assert ".: is a directory, but probe" in str(refused(act, "."))
    Path("loop").symlink_to("loop")
    assert "loop: cannot be measured: Too many levels" in str(refused(act, "loop"))
    real = os.open

    def denied(path: str, *how: int, **more: int) -> int:  # root may read everything
        if path == "in":
            raise PermissionError(13, "Permission denied")
        return real(path, *how, **more)

    monkeypatch.setattr(os, "open", denied)
    failure = refused(act, "in")
    assert str(failure) == "in: cannot be measured: Permission denied"
    assert failure.input == "in"


def test_count_wants_a_directory() -> None:  # C4
    act = route("probe = 'count'\ninput = 1")
    assert "in: is a file, but probe count measures a directory" in str(refused(act, "in"))
    assert measure(act, ("w", "."), 0) == (".", (Metric("count", 1.0),))


def test_without_a_probe_nothing_is_looked_for() -> None:  # C8
    assert measure(route(), ("w",), 0) == ("", ())


# -- ffprobe, of which another program does the talking ----------------------------------------------------

ANSWER = 'streams.stream.0.codec_type="video"\nstreams.stream.0.width={width}\n' \
    'streams.stream.0.height=1080\nformat.duration="{duration}"\n'  # fmt: skip


def ffprobe(duration: object, body: str = "", width: object = 1920) -> None:
    Path("answer").write_text(ANSWER.format(duration=duration, width=width))
    program("ffprobe", f'printf "%s|" "$@" >>asked; echo >>asked; {body}\ncat answer')


def test_ffprobe_is_asked_once_for_both_of_its_metrics() -> None:  # C1
    ffprobe("12.5")
    both = route("probe = ['duration', 'pixels']\ninput = 1")
    assert measure(both, ("w", "in"), 0)[1] == (Metric("duration", 12.5), Metric("pixels", 1920.0 * 1080))
    (line,) = Path("asked").read_text().splitlines()
    assert line.endswith("-i|file:in|")  # never a URL, never an option
    assert "-protocol_whitelist|file,crypto,data|" in line


def test_a_name_that_ffprobe_would_take_for_a_sequence_is_not_given() -> None:
    ffprobe("12.5", body="cat /proc/self/fd/0 >seen")
    Path("a%d.mp4").write_text("content")
    measure(route("probe = 'duration'\ninput = 1"), ("w", "a%d.mp4"), 0)
    assert Path("asked").read_text().endswith("-i|file:/proc/self/fd/0|\n")
    assert Path("seen").read_text() == "content"


def test_a_file_that_does_not_say_its_duration_is_read_to_its_end() -> None:  # C4
    packets = "case $* in *packet=*) yes 9.0,0.5 | head -c 999999; echo; echo 61.5,0.5; exit;; esac"
    ffprobe("N/A", body=packets)
    act = route("probe = 'duration'\ninput = 1")
    assert measure(act, ("w", "in"), 0)[1] == (Metric("duration", 62.0),)
    ffprobe("N/A", body="case $* in *packet=*) echo 61.5,0.5; exit;; esac; echo format.start_time=1.5")
    assert measure(act, ("w", "in"), 0)[1] == (Metric("duration", 60.5),)
    for many in ("head -n 2", "head -n 99999"):
        ffprobe("N/A", body=f"case $* in *packet=*) yes N/A,0.04 | {many}; exit;; esac")
        assert "in: has no duration, and its packets have no times" in str(refused(act, "in"))


@pytest.mark.parametrize(
    ("duration", "width", "body", "probe", "message"),
    [
        ("9" * 30, 1, "", "duration", "has no duration"),
        ("99999999999", 1, "", "duration", "has an impossible duration of 1e+11 s: the file is damaged"),
        ("5", "-1", "", "pixels", "contains no picture and no video"),
        ("5", "1", "echo 'Invalid data' >&2; exit 1", "duration", "ffprobe failed with exit code 1: Invalid"),
        ("5", "1", ": >answer", "duration", "contains no audio and no video"),
        ("5", "1", ": >answer", "pixels", "contains no picture and no video"),
        ("5", "1", "yes", "pixels", "ffprobe printed more than 64 KiB"),
    ],
)  # fmt: skip
def test_a_bad_answer_of_ffprobe_is_an_error(
    duration: str, width: object, body: str, probe: str, message: str
) -> None:  # C4
    ffprobe(duration, body, width)
    assert message in str(refused(route(f"probe = '{probe}'\ninput = 1"), "in"))


def test_ffprobe_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:  # C4
    monkeypatch.setenv("PATH", "/nowhere")
    message = "in: there is no ffprobe (install ffmpeg, which includes it)"
    assert str(refused(route("probe = 'duration'\ninput = 1"), "in")) == message


def test_every_descriptor_is_given_back() -> None:
    ffprobe("12.5")
    before = sorted(os.listdir("/proc/self/fd"))
    measure(route("probe = ['duration', 'size']\ninput = 1"), ("w", "in"), 0)
    refused(route("probe = 'lines'\ninput = 1"), "none")
    refused(route("probe = 'count'\ninput = 1"), "in")
    assert sorted(os.listdir("/proc/self/fd")) == before

