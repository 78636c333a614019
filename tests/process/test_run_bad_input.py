"""Bad input: one line that says what is wrong and what to do, the right exit code, nothing left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate, kill_9

pytestmark = pytest.mark.both_pythons

TRUE = ("--", "true")


def refused(
    box: Box, done: subprocess.CompletedProcess[str], code: int, *words: str, hint: bool = True
) -> None:
    """Check the exit code, that stderr is one line with these words and a hint, and that nothing is left."""
    assert done.returncode == code, done
    # The shell in front of slicer may have its own word on a directory that is gone.
    lines = [line for line in done.stderr.splitlines() if not line.startswith("sh: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("slicer: ")
    assert lines[0].isprintable()
    for word in words:
        assert word in lines[0]
    assert not hint or lines[0].endswith(")"), "no hint"
    assert box.outcomes() == []
    box.assert_clean()


# Issue section 4: the command line. What is said of each wrong line: the golden surface, wrong-lines
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "a\nb\x1b[31m", *TRUE), (r"'a\nb\x1b[31m'",)),
        (("-p", "x" * 10000, *TRUE), ("unknown profile 'xxx",)),
        (("--timeout", "1" * 400, *TRUE), ("--timeout",)),
        (("--gpus", "1" * 5000, *TRUE), ("--gpus",)),
        (("-\n", *TRUE), ("no such option",)),
    ],
    ids=lambda value: repr(value)[:50] if isinstance(value, tuple) else None,
)
def test_a_bad_command_line(box: Box, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(box, box.run("-q", *arguments), 2, *words, hint=False)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("no-such-command",), 127, ("no-such-command", "PATH")),
        (("./folder",), 126, ("./folder", "directory")),
        (("a\nb\x1b[2J",), 127, (r"a\nb\x1b[2J",)),
    ],
)
def test_a_command_that_cannot_be_executed(
    box: Box, command: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    (box.root / "folder").mkdir()
    refused(box, box.run("-q", "-p", "heavy", "--", *command), code, *words)


# A script that was moved away from its environment, or edited on Windows; a binary for another system
@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"#!/gone/conda/bin/python -u\nprint()\n", ("interpreter /gone/conda/bin/python: No such file",)),
        (b"#! \t/bin/sh\r\necho\r\n", (r"interpreter /bin/sh\r: No such file", "CRLF", "sed -i")),
        (b"#!/etc/passwd\n", ("interpreter /etc/passwd: Permission denied",)),
        (b"#!/gone/\x1b[31m", (r"/gone/\x1b[31m",)),
    ],
)  # fmt: skip
def test_a_script_whose_interpreter_is_missing(box: Box, head: bytes, words: tuple[str, ...]) -> None:
    (box.root / "script").write_bytes(head)
    (box.root / "script").chmod(0o755)
    refused(box, box.run("-q", "--", "./script"), 126, "./script", *words)


def test_a_binary_whose_loader_is_missing(box: Box) -> None:
    program = Path("/bin/true").read_bytes()
    (box.root / "binary").write_bytes(re.sub(rb"/lib(64)?/(ld-[a-z0-9-]*)\.so", rb"/gon\1/\2.so", program))
    (box.root / "binary").chmod(0o755)
    refused(box, box.run("-q", "--", "./binary"), 126, "./binary", "its dynamic loader: No such file")


def test_a_script_without_an_interpreter_line_runs_as_everywhere(box: Box) -> None:
    (box.root / "script").write_text("echo $1; exit 5\n")
    (box.root / "script").chmod(0o755)
    done = box.run("-q", "--", "./script", "an argument")
    assert (done.returncode, done.stdout) == (5, "an argument\n")


# Issue section 4: the configuration. What is said of each mistake: the golden surface, configuration
@pytest.mark.parametrize("kind", ["missing", "directory", "FIFO", "not UTF-8", "huge"])
def test_an_unreadable_configuration(box: Box, kind: str) -> None:
    path = box.root / "config.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "not UTF-8":
        path.write_bytes(b"[profiles.heavy]\ndescription = '\xff'\n")
    elif kind == "huge":
        path.write_text("#\n" * 2**20)
    if path.is_file():
        path.chmod(0o644)
    refused(box, box.run("-q", *TRUE, env={"SLICER_CONFIG": str(path)}), 125, str(path), hint=False)


def test_a_configuration_that_changes_while_a_job_runs_changes_nothing_that_runs(
    box: Box, gate: Gate
) -> None:
    path = box.root / "config.toml"
    path.write_text("[profiles.heavy]\ntimeout = '1h'\n")
    path.chmod(0o644)
    job = box.hold(gate, env={"SLICER_CONFIG": str(path)})
    path.write_text("[profiles.heavy\n")
    bad = box.run("-q", "-p", "heavy", *TRUE, env={"SLICER_CONFIG": str(path)})
    assert bad.returncode == 125
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    (outcome,) = box.outcomes()
    assert outcome.reason == "exited"
    box.assert_clean()


@pytest.mark.parametrize("name", ["CPU_RUN_SLOTS", "CPU_RUN_THREADS"])
def test_a_huge_setting_in_the_environment(box: Box, name: str) -> None:
    refused(box, box.run("-q", *TRUE, env={name: "9" * 5000}), 2, name, hint=False)


# Issue section 4: names and arguments
@pytest.mark.parametrize(
    "name",
    ["a\nb", 'say "hi"', "it's", "\x1b]0;owned\x07", "\x1b[31mred", "a\tb", "é", "\u202e", b"\xff\xfe", "-x"],
)
def test_a_hostile_name_is_shown_safely(box: Box, gate: Gate, name: str | bytes) -> None:
    shown = os.fsdecode(name)
    process = box.start("-p", "heavy", "--name", name, "--", "sh", "-c", f'read x <"{gate.path}"')
    until(lambda: box.leases() and box.leases()[0].keeper, "it runs")
    assert box.leases()[0].name == shown
    waiter = box.start("-p", "heavy", *TRUE)
    until(lambda: box.tickets(), "somebody waits")
    gate.open()
    for made in (process, waiter):
        _, error = made.communicate(timeout=LONGEST_S)
        assert made.returncode == 0
        for line in error.decode().splitlines():
            assert line.startswith("slicer: ")
            assert line.isprintable()
    names = {outcome.name for outcome in box.outcomes()}  # the waiter's may be the first
    assert names == {"", shown.encode("utf-8", "backslashreplace").decode()}
    box.assert_clean()


def test_a_very_long_name_does_not_free_the_slot(box: Box, gate: Gate) -> None:
    script = f'read x <"{gate.path}"'
    process = box.start("-q", "-p", "heavy", "--name", "x" * 100_000, "--", "sh", "-c", script)
    until(lambda: box.leases() or process.poll() is not None, "it runs, or it is refused")
    if process.poll() is None:
        assert box.run("-p", "heavy", "--no-wait", "-q", *TRUE).returncode == 75
        gate.open()
    assert process.wait(LONGEST_S) in (0, 2)


def test_arguments_arrive_as_the_bytes_they_were(box: Box) -> None:
    given = [b"\xff\xfe", b"a\nb", b"'\"$(x)", b"", b"--", b"-q", b"\xc3\xa9", b"\x01", b"*"]
    done = box.start("-q", "--", "sh", "-c", 'for a; do printf "%s\\0" "$a"; done', "sh", *given)
    out, error = done.communicate(timeout=LONGEST_S)
    assert (done.returncode, error) == (0, b"")
    assert out.split(b"\0")[:-1] == given
    assert [os.fsencode(word) for word in box.outcomes()[0].command[4:]] == given


@pytest.mark.parametrize(
    "words",
    [
        ("--", "echo", "-q", "--profile", "x"),
        ("echo", "-q", "--profile", "x"),
        ("-q", "echo", "-q", "--profile", "x"),
    ],
)
def test_the_commands_own_options_are_never_eaten(box: Box, words: tuple[str, ...]) -> None:
    done = box.run(*words)
    assert (done.returncode, done.stdout) == (0, "-q --profile x\n")


def test_the_longest_argument_passes(box: Box) -> None:
    done = box.run("-q", "--", "sh", "-c", "echo ${#1}", "sh", "x" * (128 * 1024 - 1))
    assert (done.returncode, done.stdout) == (0, "131071\n")


def test_what_the_kernel_finds_too_long_cannot_be_executed(box: Box) -> None:
    path = box.root / "config.toml"
    path.write_text(f"[profiles.heavy.env]\nBIG = '{'x' * (128 * 1024)}'\n")
    path.chmod(0o644)
    done = box.run("-q", "-p", "heavy", *TRUE, env={"SLICER_CONFIG": str(path)})
    refused(box, done, 126, "Argument list too long", hint=False)


# Issue section 4: surroundings
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_stay_closed_and_hit_no_file_of_ours(box: Box, closed: str, gate: Gate) -> None:
    witness = box.root / "witness"
    script = f'ls /proc/$$/fd >"{witness}"; echo out; echo err >&2; read x <"{gate.path}"; exit 3'
    inner = [*box.command("-p", "heavy", "-v", "--", "sh", "-c", script)]
    before = box.prefix
    box.prefix = ()
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *inner], env=box.env, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    box.prefix = before
    until(lambda: witness.exists() and box.leases(), "the job runs")
    # Neither the job's output nor our own messages went into the lease or the lock.
    assert box.run("-p", "heavy", "--no-wait", "-q", *TRUE).returncode == 75
    assert (box.state / "lock").read_bytes() == b""
    gate.open()
    assert process.wait(LONGEST_S) == 3
    box.assert_clean()


# Issue section 4: where what is printed cannot go
@pytest.mark.parametrize(
    ("where", "code", "says"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        (">/dev/full", 125, "slicer: standard output: cannot be written: No space left on device\n"),
    ],
)
@pytest.mark.parametrize("command", ["status", "history", "profiles"])
def test_nowhere_to_print_to(box: Box, command: str, where: str, code: int, says: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {where}', "sh", *SLICER, command], env=box.env, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, says)


def test_stdout_and_stderr_as_closed_pipes_stop_no_job(box: Box, gate: Gate) -> None:
    script = f'read x <"{gate.path}"; echo out; echo err >&2; exit 3'
    process = box.start("-p", "heavy", "-v", "--", "sh", "-c", script)
    until(lambda: box.leases(), "it runs")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    gate.open()
    assert process.wait(LONGEST_S) in (3, 128 + signal.SIGPIPE)
    assert len(box.outcomes()) == 1
    box.assert_clean()


def test_a_job_dies_of_a_closed_pipe_as_without_slicer(box: Box) -> None:
    done = box.run("-q", "--", "sh", "-c", "yes | head -1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "y\n", "")
    process = box.start("-q", "--", "yes")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(LONGEST_S) == 128 + signal.SIGPIPE
    assert box.outcomes()[0].signal == signal.SIGPIPE


def test_umask_077_changes_nothing(box: Box) -> None:
    done = box.run("-q", "-p", "heavy", "--", "sh", "-c", "umask", umask=0o077)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0077\n", "")
    assert box.run("-q", "-p", "heavy", *TRUE).returncode == 0
    box.assert_clean()


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--outcome", "here.json")),
    ],
)
def test_a_deleted_working_directory(box: Box, options: tuple[str, ...]) -> None:
    (box.root / "gone").mkdir()
    command = box.command("-q", "-p", "heavy", *options, "--", "sh", "-c", "exit 3")
    shell = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *command]
    done = subprocess.run(
        shell, env=box.env, cwd=box.root / "gone", capture_output=True, text=True, timeout=60
    )
    if options:
        done.stderr = "".join(line for line in done.stderr.splitlines(True) if not line.startswith("sh: "))
        refused(box, done, 2, "--outcome here.json", hint=False)
    else:
        assert (done.returncode, "Traceback" in done.stderr, "slicer" in done.stderr) == (3, False, False)
        box.assert_clean()


@pytest.mark.parametrize("path", [None, ""])
def test_without_a_path(box: Box, path: str | None) -> None:
    # unshare and sh need a PATH themselves: take it away behind them.
    setting = "unset PATH" if path is None else 'PATH=""'
    wrapped = ("sh", "-c", f'{setting}; exec "$@"', "sh")
    box.prefix = (*box.prefix, *wrapped)
    done = box.run("-q", "--", "sh", "-c", "exit 3")
    assert done.returncode == (3 if path is None else 127), done
    assert "Traceback" not in done.stderr


def test_an_empty_environment(box: Box) -> None:
    names = ("PYTHONPATH", "SLICER_STATE_DIR", "XDG_STATE_HOME", *box.shield)
    # Without HOME it is the user's own configuration that counts.
    kept = [*(f"{name}={box.env[name]}" for name in names), f"XDG_CONFIG_HOME={box.home}"]
    box.prefix = (*box.prefix, "env", "-i", *kept)
    done = box.run("-q", "-p", "heavy", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("limit", [6, 7, 8, 9, 10, 11])
def test_hardly_any_descriptors(box: Box, limit: int) -> None:
    """Whatever fails with so few, it is told in one line, and nothing is left."""
    box.prefix = (*box.prefix, "sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh")
    done = box.run("-q", "-p", "heavy", "--", "sh", "-c", "exit 3")
    if "Python" in done.stderr or "distutils" in done.stderr:
        return  # the interpreter itself did not get as far as slicer
    assert "Traceback" not in done.stderr
    if done.returncode != 3:
        refused(box, done, 125, "Too many open files", hint=False)
    box.assert_clean()


def test_killed_before_anything_happens_leaves_nothing(box: Box) -> None:
    process = box.start("-q", "-p", "heavy", *TRUE)
    kill_9(process.pid)
    assert process.wait() in (0, -signal.SIGKILL)
    until(lambda: not box.processes(), "all is gone")
    assert box.run("-q", "-p", "heavy", "--no-wait", *TRUE).returncode == 0
    box.assert_clean()


def test_the_history_of_the_machine_is_left_alone(box: Box) -> None:
    own = Path("/var/lib/slicer/history.db")
    before = own.stat().st_mtime_ns if own.exists() else None
    assert box.run("-q", *TRUE).returncode == 0
    assert (own.stat().st_mtime_ns if own.exists() else None) == before
    assert len(box.outcomes()) == 1
